//! Ports of a UDP peer to which the guest has sent, because a peer may represent all ports of an address.

use crate::state::record;

/// The last [`MOST`] ports of a peer to which the guest has sent, and those of them that the egress rules do not apply to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerPorts {
    /// The ports, the last one first; 0 stands for none.
    recent: [u16; MOST],
    /// Ports that the rules refuse since they changed, and that are kept.
    kept: [u16; MOST],
}

record! { PeerPorts { recent, kept } }

/// Comparison of a peer with the egress rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RulesSeen {
    /// Generation of the rules with which the peer was stored or compared.
    generation: u32,
    /// The only port that was compared with these rules; 0 if all ports of the peer may send to the guest.
    port: u16,
}

record! { RulesSeen { generation, port } }

impl RulesSeen {
    /// Returns the state of a peer that is stored while the rules have this generation.
    pub(super) const fn new(generation: u32) -> Self {
        Self { generation, port: 0 }
    }

    /// Returns the state of a peer that represents all ports and is older than the rules, which permit `port`.
    pub(super) const fn with_port(generation: u32, port: u16) -> Self {
        Self { generation, port }
    }

    /// Returns true if `port` need not be compared with the rules.
    pub(super) const fn covers(&self, generation: u32, port: u16) -> bool {
        self.generation == generation && (self.port == 0 || self.port == port)
    }
}

/// Number of ports that are stored for a peer.
const MOST: usize = 4;

impl PeerPorts {
    /// Returns the ports of a peer to which the guest has sent at `port` only.
    pub(super) fn of(port: u16) -> Self {
        let mut ports = Self::default();
        ports.note(port);
        ports
    }

    /// Stores the port of a datagram of the guest.
    pub(super) fn note(&mut self, port: u16) {
        let place = self.recent.iter().position(|other| *other == port);
        self.recent[..=place.unwrap_or(MOST - 1)].rotate_right(1);
        self.recent[0] = port;
    }

    /// Returns the stored ports, the last one first.
    pub(super) fn recent(&self) -> impl Iterator<Item = u16> {
        self.recent.into_iter().filter(|port| *port > 0)
    }

    /// Exempts the stored ports for which `is` returns true from the egress rules, and no other port.
    pub(super) fn keep(&mut self, is: impl Fn(u16) -> bool) {
        self.kept = self
            .recent
            .map(|port| if port > 0 && is(port) { port } else { 0 });
    }

    /// Returns true if the egress rules do not apply to the port.
    pub(super) fn is_kept(&self, port: u16) -> bool {
        port > 0 && self.kept.contains(&port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_ports_are_stored_once_each() {
        let mut ports = PeerPorts::of(1);
        for port in [2, 1, 3, 4, 1, 5] {
            ports.note(port);
        }
        assert_eq!(ports.recent().collect::<Vec<_>>(), [5, 1, 4, 3]);
        ports.keep(|port| port < 5);
        assert_eq!(
            [0, 1, 2, 5].map(|port| ports.is_kept(port)),
            [false, true, false, false]
        );
        ports.keep(|_| false);
        assert!(!ports.is_kept(1));
    }
}
