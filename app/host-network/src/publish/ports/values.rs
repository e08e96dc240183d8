//! Comparison of option values with the published ports.

use std::collections::BTreeSet;

use super::{Port, Ports, Publish, PublishedKey, PublishedPorts, all_ports, shown};
use crate::publish::port_range::PortRange;

impl Ports {
    /// Returns true if values with `auto` are permitted.
    pub fn permits_auto(&self) -> bool {
        self.permits_auto
    }

    /// Returns the ranges of ports of a value: for `all`, of those that are not ephemeral; for `auto`, of those that are
    /// published while the guest listens on them.
    pub fn ranges(spec: &Publish) -> Vec<PortRange> {
        match &spec.ports {
            PublishedPorts::All => all_ports(spec),
            PublishedPorts::Auto(ranges) if ranges.is_empty() => all_ports(spec),
            PublishedPorts::Auto(ranges) => spec.without_excluded(ranges),
            PublishedPorts::Range { .. } | PublishedPorts::List(_) => spec.named(),
        }
    }

    /// Returns true if the ports of a value are published as it requests: each of them at one of its host addresses at least,
    /// because the host may lack a family; of `all`, one port.
    pub fn publishes(&self, spec: &Publish) -> bool {
        if spec.is_auto() {
            return self.autos.contains(spec);
        }
        let Some(interface) = self.known_interface(spec) else {
            return false;
        };
        let (mut open, mut missing) = (BTreeSet::new(), BTreeSet::new());
        for (key, guest) in self.endpoints(spec, interface) {
            let port = (key.protocol, key.host.port());
            let is_here = |port: &Port| port.guest == guest && !port.is_found;
            match self.ports.get(&key).is_some_and(is_here) {
                true => open.insert(port),
                false => missing.insert(port),
            };
        }
        match spec.ports {
            PublishedPorts::All => !open.is_empty(),
            _ => missing.is_subset(&open),
        }
    }

    /// Returns option values for all that is published and is in none of `specs`: consecutive ports as one value, and values
    /// with `auto`.
    pub fn others<'a>(&self, specs: impl Iterator<Item = &'a Publish> + Clone) -> Vec<Publish> {
        let mut rest: BTreeSet<PublishedKey> = self.ports.keys().copied().collect();
        for spec in specs.clone() {
            let Some(interface) = self.known_interface(spec) else {
                continue;
            };
            for (key, guest) in self.endpoints(spec, interface) {
                if self.ports.get(&key).is_some_and(|port| port.guest == guest) {
                    rest.remove(&key);
                }
            }
        }
        let mut rest: Vec<_> = rest.into_iter().filter(|key| !self.ports[key].is_found).collect();
        rest.sort_by_key(|key| (key.protocol, key.host.ip(), key.interface, key.host.port()));
        let mut others: Vec<Publish> = Vec::new();
        for key in rest {
            let port = shown(key, &self.ports[&key]);
            if !others.last_mut().is_some_and(|last| extend(last, &port)) {
                others.push(port);
            }
        }
        let is_given = |auto: &&Publish| specs.clone().any(|spec| spec == *auto);
        others.extend(self.autos.iter().filter(|auto| !is_given(auto)).cloned());
        others
    }
}

/// Adds a port to a range of ports if it is the next one and differs in nothing else. Returns false if it does not.
fn extend(range: &mut Publish, port: &Publish) -> bool {
    let (
        PublishedPorts::Range { host, guest },
        PublishedPorts::Range {
            host: next,
            guest: to,
        },
    ) = (&range.ports, &port.ports)
    else {
        return false;
    };
    let is_next = u32::from(host.last) + 1 == u32::from(next.first)
        && u32::from(*guest) + u32::from(host.count()) == u32::from(*to);
    let ports = PublishedPorts::Range {
        host: PortRange {
            first: host.first,
            last: next.last,
        },
        guest: *guest,
    };
    let extended = Publish {
        ports: port.ports.clone(),
        ..range.clone()
    };
    let fits = is_next && extended == *port;
    if fits {
        range.ports = ports;
    }
    fits
}
