//! Ports that are published because the guest listens on them (`auto`).

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Arc, Budget, Draft, GuestTarget, IpAddr, OwnedFd, Port, PortChanges, PortUpdate, Ports, Protocol,
    Publish, PublishedKey, SocketAddr, interface_index, open, shown,
};
use crate::listeners::ListenerSet;

/// Limit on the ports of each protocol that are published because the guest listens on them.
pub(super) const MOST_FOUND: usize = 1_024;

/// Numbers of ports that the last scan has found. A port of one protocol is counted once, whatever its number of
/// sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AutoCounts {
    /// Ports that are published or forwarded.
    pub open: u64,
    /// Ports that are not open, because another program has them or this user may not.
    pub taken: u64,
    /// Ports beyond the limit.
    pub excess: u64,
}

impl Ports {
    /// Returns the values with `auto`, which publish the ports on which the guest listens.
    pub fn autos(&self) -> &[Publish] {
        &self.autos
    }

    /// Returns true if the guest's listening ports have to be scanned.
    pub fn needs_scan(&self) -> bool {
        !self.autos.is_empty() || self.ports.values().any(|port| port.is_found)
    }

    /// Returns each port that is published because the guest listens on it, as an option value.
    pub fn found(&self) -> impl Iterator<Item = Publish> {
        let ports = self.ports.iter().filter(|(_, port)| port.is_found);
        ports.map(|(key, port)| shown(*key, port))
    }

    /// Returns the ports of the host at which clients reach the guest.
    pub fn own(&self) -> BTreeSet<(Protocol, u16)> {
        let keys = self.ports.keys();
        keys.map(|key| (key.protocol, key.host.port())).collect()
    }

    /// Closes ports that are published because the guest listens on them, and returns the updates for the engine.
    pub fn close_found(&mut self, keys: &BTreeSet<PublishedKey>) -> Vec<PortUpdate> {
        let is_found = |key: &&PublishedKey| self.ports.get(key).is_some_and(|port| port.is_found);
        let draft = Draft {
            gone: keys.iter().filter(is_found).copied().collect(),
            ..Draft::default()
        };
        let autos = self.autos.clone();
        self.apply(draft, autos).port_updates
    }

    /// Returns the ports that are published because the guest listens on them, and that none of `autos` publishes.
    pub(super) fn found_without(&self, autos: &[Publish]) -> Vec<PublishedKey> {
        let is_of = |key: &PublishedKey, port: &Port, spec: &Publish| {
            spec.auto_contains(key.protocol, key.host.port())
                && spec.interface == port.interface
                && self.addresses(spec).contains(&key.host.ip())
        };
        let found = self.ports.iter().filter(|(_, port)| port.is_found);
        let gone = found.filter(|(key, port)| !autos.iter().any(|spec| is_of(key, port, spec)));
        gone.map(|(key, _)| *key).collect()
    }

    /// Opens the ports on which the guest has begun to listen, and closes those on which it does not listen any more. Ports
    /// in `unusable` are counted as taken without another try.
    pub fn apply_scan(
        &mut self,
        listeners: &ListenerSet,
        unusable: &BTreeSet<PublishedKey>,
    ) -> (PortChanges, AutoCounts) {
        let mut counts = AutoCounts::default();
        let is_wanted = |protocol, port| self.autos.iter().any(|spec| spec.auto_contains(protocol, port));
        let ports = limited(listeners, &is_wanted, &mut counts);
        let wanted = self.wanted(&ports, listeners);
        let mut draft = Draft::default();
        let found = self.ports.iter().filter(|(_, port)| port.is_found);
        let gone = found.filter(|(key, _)| !wanted.contains_key(key));
        draft.gone.extend(gone.map(|(key, _)| *key));
        let (mut is_open, mut is_taken) = (BTreeSet::new(), BTreeSet::new());
        // All are judged before any is opened, so that a port that was skipped in one family is not opened in the other.
        let is_named = |key: &PublishedKey| self.ports.get(key).is_some_and(|port| !port.is_found);
        let (others, wanted): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .partition(|(key, _)| !is_named(key) && self.is_of_other_program(*key, &draft.new));
        for (key, _) in others {
            is_taken.insert((key.protocol, key.host.port()));
            draft.gone.extend(self.ports.contains_key(&key).then_some(key));
        }
        for (key, spec) in wanted {
            let port = (key.protocol, key.host.port());
            if self.ports.contains_key(&key) {
                is_open.insert(port);
                continue;
            }
            let opened = match unusable.contains(&key) {
                true => None,
                false => open(spec, key, Budget::Half).ok(),
            };
            match opened {
                Some(Some(socket)) => {
                    is_open.insert(port);
                    draft.new.insert(key, found_port(spec, key, socket));
                }
                // The host has no IPv6.
                Some(None) => {}
                None => {
                    is_taken.insert(port);
                }
            }
        }
        counts.open = is_open.len() as u64;
        counts.taken = is_taken.difference(&is_open).count() as u64;
        let autos = self.autos.clone();
        (self.apply(draft, autos), counts)
    }

    /// Returns the keys of the sockets that publish the ports of `listeners`, each with the value that requests the
    /// socket.
    fn wanted(&self, ports: &[(Protocol, u16)], listeners: &ListenerSet) -> BTreeMap<PublishedKey, &Publish> {
        let mut wanted = BTreeMap::new();
        for spec in &self.autos {
            let Ok(interface) = interface_index(spec) else {
                continue;
            };
            let addresses = self.addresses(spec);
            let ports = ports.iter().copied();
            for (protocol, port) in ports.filter(|(protocol, port)| spec.auto_contains(*protocol, *port)) {
                let has = |address: &&IpAddr| listeners.contains(protocol, address.is_ipv6(), port);
                for address in addresses.iter().filter(has) {
                    let host = SocketAddr::new(*address, port);
                    let key = PublishedKey {
                        protocol,
                        host,
                        interface,
                        in_guest: false,
                    };
                    wanted.entry(key).or_insert(spec);
                }
            }
        }
        wanted
    }
}

/// Returns the ports of `listeners` for which `is_wanted` returns true: the 1,024 lowest ones of each
/// protocol. Adds the number of the others to `counts`.
pub fn limited(
    listeners: &ListenerSet,
    is_wanted: &dyn Fn(Protocol, u16) -> bool,
    counts: &mut AutoCounts,
) -> Vec<(Protocol, u16)> {
    let mut ports = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let mut wanted = listeners
            .ports(protocol)
            .filter(|port| is_wanted(protocol, *port));
        ports.extend(wanted.by_ref().take(MOST_FOUND).map(|port| (protocol, port)));
        counts.excess += wanted.count() as u64;
    }
    ports
}

fn found_port(spec: &Publish, key: PublishedKey, socket: Arc<OwnedFd>) -> Port {
    Port {
        guest: GuestTarget {
            target: None,
            port: key.host.port(),
            path: spec.path,
        },
        interface: spec.interface.clone(),
        is_found: true,
        socket,
    }
}
