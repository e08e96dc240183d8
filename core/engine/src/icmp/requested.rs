//! Addresses that the guest has sent echo requests to. Replies and errors that concern other addresses are dropped: a
//! raw socket also receives the replies to requests of the host's other programs.

use core::net::IpAddr;
use core::time::Duration;

use rand_chacha::ChaCha12Rng;

use crate::table::{Secret, Table};
use crate::{FlowId, Instant};

/// The time for which an address may reply to a request (RFC 5508 REQ-2).
const MEMORY: Duration = Duration::from_secs(60);

/// Addresses of all ids together. Beyond it, the one whose last request is oldest is evicted.
pub(super) const MOST_ADDRESSES: usize = 1 << 16;

/// Destinations of recent echo requests.
#[derive(Debug)]
pub(super) struct RequestedAddresses {
    /// By id and address on the host's side. Entries of ids that are closed are never found again, and expire.
    table: Table<(FlowId, IpAddr), LastRequest>,
}

#[derive(Debug)]
struct LastRequest {
    /// The destination as the guest wrote it.
    written: IpAddr,
    sent: Instant,
}

impl LastRequest {
    fn is_recent(&self, now: Instant) -> bool {
        now.since(self.sent) <= MEMORY
    }
}

impl RequestedAddresses {
    /// No addresses.
    pub(super) fn new(random: &mut ChaCha12Rng) -> Self {
        Self {
            table: Table::new(Secret::new(random)),
        }
    }

    /// Remembers a request of the id `flow` to `remote`, which the guest wrote as `written`.
    pub(super) fn insert(&mut self, flow: FlowId, remote: IpAddr, written: IpAddr, now: Instant) {
        let request = LastRequest { written, sent: now };
        if let Some(index) = self.table.find(&(flow, remote)) {
            self.table.touch(index);
            *self.table.at_mut(index) = request;
            return;
        }
        // Two for one: expired entries are removed faster than new ones are added.
        for _ in 0..2 {
            let is_full = self.table.len() >= MOST_ADDRESSES;
            match self.table.idlest() {
                Some(oldest) if is_full || !self.table.at(oldest).is_recent(now) => {
                    self.table.remove(oldest);
                }
                Some(_) | None => break,
            }
        }
        self.table.insert((flow, remote), request);
    }

    /// Returns the address by which the guest knows `remote`, if the id `flow` has sent a request there recently.
    pub(super) fn written(&self, flow: FlowId, remote: IpAddr, now: Instant) -> Option<IpAddr> {
        let index = self.table.find(&(flow, remote))?;
        let request = self.table.at(index);
        request.is_recent(now).then_some(request.written)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}
