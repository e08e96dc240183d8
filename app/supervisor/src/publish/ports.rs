//! The set of published ports, and its changes while the guest runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use pontoon_engine::config::{Protocol, Published};
use pontoon_process::error::Error;
use pontoon_worker::messages::PortUpdate;
use rustix::process::{Resource, getrlimit};

use super::{Families, Publish, disconnect_last, open_socket, refused};

/// Published ports, each with its host socket: listening (TCP) or bound (UDP), non-blocking.
#[derive(Debug)]
pub(crate) struct Ports {
    families: Families,
    ports: BTreeMap<Key, Port>,
}

/// Unique key of a published port.
type Key = (Protocol, SocketAddr);

#[derive(Clone, Debug)]
struct Port {
    guest: u16,
    socket: Arc<OwnedFd>,
}

impl Drop for Port {
    fn drop(&mut self) {
        disconnect_last(&self.socket);
    }
}

/// Result of a change.
#[derive(Debug)]
pub(crate) struct Changed {
    /// Ports that were not published, or led to another guest port.
    pub(crate) added: Vec<Publish>,
    /// Ports that are no longer published.
    pub(crate) removed: Vec<Publish>,
    /// Updates for the engine.
    pub(crate) port_updates: Vec<PortUpdate>,
    /// Data to revert the change.
    pub(crate) undo: Undo,
}

/// A change: each port with its state before and after.
#[derive(Clone, Debug)]
pub(crate) struct Undo(Vec<(Key, Option<Port>, Option<Port>)>);

/// The reason why nothing was changed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The request is invalid.
    Wrong(Error),
    /// The port is in use or may not be used.
    Conflict(Error),
}

impl Undo {
    /// Returns true if the port was added, or leads to another guest port now.
    pub(crate) fn has_added(&self, port: &Published) -> bool {
        let key = (port.protocol, port.host);
        let is_it = |(other, _, is): &(Key, Option<Port>, Option<Port>)| *other == key && is.is_some();
        self.0.iter().any(is_it)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Wrong(error) | Refusal::Conflict(error) => error,
        }
    }
}

impl Ports {
    /// Returns no ports.
    pub(crate) fn new(families: Families) -> Self {
        Self {
            families,
            ports: BTreeMap::new(),
        }
    }

    /// Closes `remove` and opens `add`: all of it, or nothing. No other socket is changed, nor is one that is in both, even if it
    /// leads to another guest port. `add` may contain published ports, and `remove` others.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub(crate) fn change(&mut self, remove: &[Publish], add: &[Publish]) -> Result<Changed, Refusal> {
        let mut gone: BTreeSet<Key> = BTreeSet::new();
        for spec in remove {
            for (host, guest) in spec.endpoints(self.families) {
                let key = (spec.protocol, host);
                if self.ports.get(&key).is_some_and(|port| port.guest == guest) {
                    gone.insert(key);
                }
            }
        }
        let mut new = BTreeMap::new();
        for spec in add {
            let missing = match (self.families, spec.address) {
                (Families::V4, Some(IpAddr::V6(_))) => Some(("IPv6", "an IPv4 address")),
                (Families::V6, Some(IpAddr::V4(_))) => Some(("IPv4", "an IPv6 address")),
                _ => None,
            };
            if let Some((family, advice)) = missing {
                let wrong = Error::new(format!("cannot publish {spec}: the guest has no {family}"));
                return Err(Refusal::Wrong(wrong.advise(advice)));
            }
            for (host, guest) in spec.endpoints(self.families) {
                self.add(spec, host, guest, &gone, &mut new)?;
            }
        }
        Ok(self.apply(gone, new))
    }

    fn add(
        &self,
        spec: &Publish,
        host: SocketAddr,
        guest: u16,
        gone: &BTreeSet<Key>,
        new: &mut BTreeMap<Key, Port>,
    ) -> Result<(), Refusal> {
        let key = (spec.protocol, host);
        let here = self.ports.get(&key);
        match new.get(&key).or(here.filter(|_| !gone.contains(&key))) {
            Some(port) if port.guest == guest => return Ok(()),
            Some(port) => {
                return Err(Refusal::Conflict(Error::new(format!(
                    "cannot publish {spec}: {host}/{} already leads to guest port {}",
                    spec.protocol, port.guest
                ))));
            }
            None => {}
        }
        let socket = match here {
            Some(port) => Arc::clone(&port.socket),
            None => match open_socket(spec.protocol, host).and_then(within_reserve) {
                Ok(socket) => Arc::new(socket),
                // No address was given, and this host has no IPv6.
                Err(error)
                    if spec.address.is_none()
                        && host.is_ipv6()
                        && error.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(Refusal::Conflict(refused(host, spec.protocol, &error))),
            },
        };
        new.insert(key, Port { guest, socket });
        Ok(())
    }

    fn apply(&mut self, gone: BTreeSet<Key>, new: BTreeMap<Key, Port>) -> Changed {
        let mut changed = Changed {
            added: Vec::new(),
            removed: Vec::new(),
            port_updates: Vec::new(),
            undo: Undo(Vec::new()),
        };
        for key in gone.into_iter().filter(|key| !new.contains_key(key)) {
            if let Some(port) = self.ports.remove(&key) {
                changed.removed.push(shown(key, port.guest));
                changed
                    .port_updates
                    .push(PortUpdate::Close(published(key, port.guest)));
                changed.undo.0.push((key, Some(port), None));
            }
        }
        for (key, port) in new {
            let published = published(key, port.guest);
            let port_update = match self.ports.get(&key) {
                Some(old) if old.guest == port.guest => continue,
                Some(_) => PortUpdate::Redirect(published),
                None => PortUpdate::Open(published, port.socket.clone().into()),
            };
            changed.port_updates.push(port_update);
            changed.added.push(shown(key, port.guest));
            let old = self.ports.insert(key, port.clone());
            changed.undo.0.push((key, old, Some(port)));
        }
        // Workers do not refuse to close a port, and an undo would keep the sockets of closed ports open.
        if changed.added.is_empty() {
            changed.undo.0.clear();
        }
        changed
    }

    /// Reverts a change, except for ports that were changed again since. Returns the updates for the engine, first the ports to
    /// close, whose descriptors it may need.
    pub(crate) fn take_back(&mut self, undo: Undo) -> Vec<PortUpdate> {
        let (mut closed, mut others) = (Vec::new(), Vec::new());
        for (key, was, is) in undo.0 {
            let socket = |port: Option<&Port>| port.map(|port| (port.guest, port.socket.as_raw_fd()));
            if socket(self.ports.get(&key)) != socket(is.as_ref()) {
                continue;
            }
            match (was, is) {
                (None, Some(port)) => {
                    self.ports.remove(&key);
                    closed.push(PortUpdate::Close(published(key, port.guest)));
                }
                (Some(port), None) => {
                    others.push(PortUpdate::Open(
                        published(key, port.guest),
                        Arc::clone(&port.socket).into(),
                    ));
                    self.ports.insert(key, port);
                }
                (Some(port), Some(_)) => {
                    others.push(PortUpdate::Redirect(published(key, port.guest)));
                    self.ports.insert(key, port);
                }
                (None, None) => {}
            }
        }
        closed.extend(others);
        closed
    }

    /// Returns each port.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Publish> {
        self.ports.iter().map(|(key, port)| shown(*key, port.guest))
    }

    /// Returns each port in the form of the engine's configuration.
    pub(crate) fn published(&self) -> Vec<Published> {
        let published = self.ports.iter().map(|(key, port)| published(*key, port.guest));
        published.collect()
    }

    /// Returns the sockets of the ports, in the same order.
    pub(crate) fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.ports.values().map(|port| Arc::clone(&port.socket)).collect()
    }
}

/// Refuses the last [`RESERVE`] descriptors below the limit, which are not for ports. The kernel uses the lowest free one first.
fn within_reserve(socket: OwnedFd) -> io::Result<OwnedFd> {
    let number = u64::try_from(socket.as_raw_fd()).unwrap_or(u64::MAX);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if number.saturating_add(RESERVE) >= limit => {
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        }
        _ => Ok(socket),
    }
}

/// Descriptors that no port gets: for clients of the control socket, a capture's file, and the start of another engine.
const RESERVE: u64 = 32;

fn shown((protocol, host): Key, guest: u16) -> Publish {
    Publish {
        protocol,
        address: Some(host.ip()),
        host: host.port(),
        guest,
        count: 1,
    }
}

fn published((protocol, host): Key, guest_port: u16) -> Published {
    Published {
        protocol,
        host,
        guest_port,
    }
}
