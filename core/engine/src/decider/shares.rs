//! Shares of the pending decisions: those about clients of published ports leave room to those about flows of the guest, the
//! latter leave room to clients, and those about clients of one port leave room to clients of other ports.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use super::{Direction, MOST_BYTES, MOST_PENDING, NewFlow};
use crate::egress::EgressProtocol;
use crate::state::{Reader, Record, StateError, Writer};

/// The side that has opened a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Guest,
    /// A client of the published port with this protocol, host address and port.
    Client(EgressProtocol, SocketAddr),
}

impl Record for Asker {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&match self {
            Self::Guest => None,
            Self::Client(protocol, published) => Some((*protocol, *published)),
        });
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let client: Option<(EgressProtocol, SocketAddr)> = from.get()?;
        Ok(client.map_or(Self::Guest, |(protocol, published)| Self::Client(protocol, published)))
    }
}

impl Asker {
    pub(super) const fn of(flow: &NewFlow) -> Self {
        match flow.direction {
            Direction::Out { .. } => Self::Guest,
            Direction::In { published } => Self::Client(flow.protocol, published),
        }
    }
}

/// Number of pending decisions, and the bytes that are kept for them.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    count: usize,
    bytes: usize,
}

/// Numbers of pending decisions: of the guest, of all clients, and of the clients of each published port that has any.
#[derive(Debug, Default)]
pub(super) struct Shares {
    guest: Load,
    clients: Load,
    ports: BTreeMap<(EgressProtocol, SocketAddr), Load>,
}

impl Load {
    fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
        }
    }

    fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }

    /// Returns true if this number of eighths of [`MOST_PENDING`] or [`MOST_BYTES`] is reached.
    fn reaches(self, eighths: usize) -> bool {
        self.count >= MOST_PENDING / 8 * eighths || self.bytes >= MOST_BYTES / 8 * eighths
    }
}

impl Shares {
    /// Returns true if no further decision about a flow of `asker` may be pending: the guest and all clients have seven
    /// eighths each, the clients of one port six.
    pub(super) fn are_full_for(&self, asker: &Asker) -> bool {
        let own = match asker {
            Asker::Guest => self.guest,
            Asker::Client(..) => self.clients,
        };
        let port = match asker {
            Asker::Guest => None,
            Asker::Client(protocol, published) => self.ports.get(&(*protocol, *published)),
        };
        self.guest.plus(self.clients).reaches(8) || own.reaches(7) || port.is_some_and(|port| port.reaches(6))
    }

    /// Returns true if the decisions and their bytes are within the limits.
    pub(super) const fn are_within_limits(&self) -> bool {
        // One more datagram or frame is kept after the last check of the limit.
        self.guest.count + self.clients.count <= MOST_PENDING
            && self.guest.bytes + self.clients.bytes <= MOST_BYTES + (128 << 10)
    }

    /// Counts a decision for which this number of bytes is kept.
    pub(super) fn add(&mut self, asker: Asker, bytes: usize) {
        match asker {
            Asker::Guest => self.guest.add(bytes),
            Asker::Client(protocol, published) => {
                self.clients.add(bytes);
                self.ports.entry((protocol, published)).or_default().add(bytes);
            }
        }
    }

    /// Counts a decision down that was added with this number of bytes.
    pub(super) fn remove(&mut self, asker: &Asker, bytes: usize) {
        match *asker {
            Asker::Guest => self.guest.remove(bytes),
            Asker::Client(protocol, published) => {
                self.clients.remove(bytes);
                if let Some(port) = self.ports.get_mut(&(protocol, published)) {
                    port.remove(bytes);
                    if port.count == 0 {
                        self.ports.remove(&(protocol, published));
                    }
                }
            }
        }
    }
}
