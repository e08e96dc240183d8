//! Set of published ports, and its changes while the guest runs.

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

/// Set of published ports, each with its host socket: listening (TCP) or bound (UDP), and non-blocking.
#[derive(Debug)]
pub(crate) struct Ports {
    families: Families,
    ports: BTreeMap<Key, Port>,
}

/// Key of a published port: its protocol and its address on the host.
type Key = (Protocol, SocketAddr);

/// Host socket of a published port, and the port of the guest to which it leads.
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

/// Result of a change of the published ports.
#[derive(Debug)]
pub(crate) struct PortChanges {
    /// Ports that were not published before, or were published to another guest port.
    pub(crate) added: Vec<Publish>,
    /// Ports that were published before and no longer are.
    pub(crate) removed: Vec<Publish>,
    /// Updates to be sent to the engine.
    pub(crate) port_updates: Vec<PortUpdate>,
    /// Ports before the change, from which it can be reverted.
    pub(crate) undo: PortUndo,
}

/// Published ports before and after a change, each with its key, from which the change can be reverted.
#[derive(Clone, Debug)]
pub(crate) struct PortUndo(Vec<(Key, Option<Port>, Option<Port>)>);

/// Reason why a change of the published ports was refused.
#[derive(Debug)]
pub(crate) enum PortRefusal {
    /// The request is invalid.
    Wrong(Error),
    /// A port of the request is in use on the host, or this user may not use it.
    Conflict(Error),
}

impl PortUndo {
    /// Returns true if the change has added the port or has published it to another guest port.
    pub(crate) fn has_added(&self, port: &Published) -> bool {
        let key = (port.protocol, port.host);
        let is_it = |(other, _, is): &(Key, Option<Port>, Option<Port>)| *other == key && is.is_some();
        self.0.iter().any(is_it)
    }
}

impl From<PortRefusal> for Error {
    fn from(refusal: PortRefusal) -> Self {
        match refusal {
            PortRefusal::Wrong(error) | PortRefusal::Conflict(error) => error,
        }
    }
}

impl Ports {
    /// Creates an empty set of published ports for a guest with these address families.
    pub(crate) fn new(families: Families) -> Self {
        Self {
            families,
            ports: BTreeMap::new(),
        }
    }

    /// Closes the ports `remove` and opens the ports `add`: either all of them, or none. A port in both lists keeps its
    /// socket, even if it is published to another guest port; sockets of ports in neither list are not changed. `add` may
    /// contain ports that are published already, and `remove` ports that are not.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub(crate) fn change(&mut self, remove: &[Publish], add: &[Publish]) -> Result<PortChanges, PortRefusal> {
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
                return Err(PortRefusal::Wrong(wrong.advise(advice)));
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
    ) -> Result<(), PortRefusal> {
        let key = (spec.protocol, host);
        let here = self.ports.get(&key);
        match new.get(&key).or(here.filter(|_| !gone.contains(&key))) {
            Some(port) if port.guest == guest => return Ok(()),
            Some(port) => {
                return Err(PortRefusal::Conflict(Error::new(format!(
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
                // The port was published without an address, and this host has no IPv6.
                Err(error)
                    if spec.address.is_none()
                        && host.is_ipv6()
                        && error.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(PortRefusal::Conflict(refused(host, spec.protocol, &error))),
            },
        };
        new.insert(key, Port { guest, socket });
        Ok(())
    }

    fn apply(&mut self, gone: BTreeSet<Key>, new: BTreeMap<Key, Port>) -> PortChanges {
        let mut changed = PortChanges {
            added: Vec::new(),
            removed: Vec::new(),
            port_updates: Vec::new(),
            undo: PortUndo(Vec::new()),
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
        // A change that only removes ports needs no undo: workers never refuse to close a port, and the undo would keep the
        // closed ports' sockets open.
        if changed.added.is_empty() {
            changed.undo.0.clear();
        }
        changed
    }

    /// Reverts a change, except for ports that were changed again since. Returns the updates for the engine: first the
    /// ports to close, because the engine may need their descriptors for the ports to open.
    pub(crate) fn take_back(&mut self, undo: &PortUndo) -> Vec<PortUpdate> {
        let (mut closed, mut others) = (Vec::new(), Vec::new());
        for (key, was, is) in undo.0.iter().cloned() {
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

    /// Returns each published port as an option value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Publish> {
        self.ports.iter().map(|(key, port)| shown(*key, port.guest))
    }

    /// Returns each published port in the form of the engine's configuration.
    pub(crate) fn published(&self) -> Vec<Published> {
        let published = self.ports.iter().map(|(key, port)| published(*key, port.guest));
        published.collect()
    }

    /// Returns the sockets of the published ports, in the order of [`Self::published`].
    pub(crate) fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.ports.values().map(|port| Arc::clone(&port.socket)).collect()
    }
}

/// Returns the socket, or an error if its descriptor is one of the last [`RESERVE`] below the limit. The kernel assigns the
/// lowest free descriptor first.
fn within_reserve(socket: OwnedFd) -> io::Result<OwnedFd> {
    let number = u64::try_from(socket.as_raw_fd()).unwrap_or(u64::MAX);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if number.saturating_add(RESERVE) >= limit => {
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        }
        _ => Ok(socket),
    }
}

/// Number of descriptors that are not used for published ports but reserved for 16 clients of each of the control socket and
/// the metrics address, 16 queues of the tap, the file of
/// a capture, and the start of another engine.
const RESERVE: u64 = 96;

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
