//! Guest forwards: ports of addresses on the guest's link at which the guest reaches ports of the host.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use crate::config::Protocol;

/// Consecutive ports at which the guest reaches consecutive ports of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestForward {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Address to which the guest sends, with the first port.
    pub from: SocketAddr,
    /// Destination on the host's side, with the first port; of the same family as `from`.
    pub to: SocketAddr,
    /// Number of ports, at least 1. The last port of either side is at most 65535.
    pub count: u16,
}

/// The guest forwards of an engine, which do not overlap.
#[derive(Clone, Debug, Default)]
pub struct GuestForwards(BTreeMap<(Protocol, SocketAddr), GuestForward>);

impl GuestForward {
    /// Returns true if packets of the guest to `written` are forwarded by this forward.
    #[must_use]
    pub fn contains(&self, protocol: Protocol, written: SocketAddr) -> bool {
        let (first, port) = (self.from.port(), written.port());
        let is_of = self.protocol == protocol && self.from.ip() == written.ip();
        is_of && port >= first && port - first < self.count
    }

    /// Returns true if both forwards contain the same port of the same protocol and address.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let starts_inside =
            |a: &Self, b: &Self| a.from.port() >= b.from.port() && a.from.port() - b.from.port() < b.count;
        self.protocol == other.protocol
            && self.from.ip() == other.from.ip()
            && (starts_inside(self, other) || starts_inside(other, self))
    }
}

impl GuestForwards {
    /// Adds a forward, unless it overlaps an existing one.
    pub fn add(&mut self, forward: GuestForward) {
        let key = (forward.protocol, forward.from);
        let (before, after) = (self.0.range(..=key).next_back(), self.0.range(key..).next());
        let is_taken = before
            .into_iter()
            .chain(after)
            .any(|(_, other)| other.overlaps(&forward));
        if !is_taken {
            self.0.insert(key, forward);
        }
    }

    /// Removes a forward, which is found by its protocol and the address and first port to which the guest sends.
    pub fn remove(&mut self, forward: &GuestForward) {
        self.0.remove(&(forward.protocol, forward.from));
    }

    /// Returns true if this set lacks a forward of `before`, or has it with another destination or number of ports.
    #[must_use]
    pub(crate) fn lacks_any_of(&self, before: &Self) -> bool {
        before
            .0
            .iter()
            .any(|(key, forward)| self.0.get(key) != Some(forward))
    }

    /// Returns the destination on the host's side of what the guest sends to `written`, if it is forwarded.
    #[must_use]
    pub fn translate(&self, protocol: Protocol, written: SocketAddr) -> Option<SocketAddr> {
        if self.0.is_empty() {
            return None;
        }
        let (_, forward) = self.0.range(..=(protocol, written)).next_back()?;
        forward.contains(protocol, written).then(|| {
            let offset = written.port() - forward.from.port();
            SocketAddr::new(forward.to.ip(), forward.to.port() + offset)
        })
    }
}

impl FromIterator<GuestForward> for GuestForwards {
    fn from_iter<I: IntoIterator<Item = GuestForward>>(forwards: I) -> Self {
        let mut all = Self::default();
        forwards.into_iter().for_each(|forward| all.add(forward));
        all
    }
}

#[cfg(test)]
mod tests;
