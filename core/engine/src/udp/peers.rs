//! Peers of the guest's UDP endpoints, with their addresses as the guest sees them.

use core::hash::Hash;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeSet;

use hashbrown::HashTable;

use super::peer_ports::{PeerPorts, RulesSeen};
use crate::Instant;
use crate::table::{Secret, Table};
use crate::state::{Reader, StateError, Writer, check, record};

/// Time for which a peer may send to the guest after the last datagram in either direction (RFC 4787 REQ-5).
pub(super) const MEMORY: Duration = Duration::from_secs(120);

/// Maximum number of peers in the pool of one worker to which the guest has sent first, beyond the first peer of each
/// endpoint; and maximum number of strangers, which have sent to the guest first.
pub(super) const POOL: usize = 65_536;

/// Groups of peers, which are evicted only for others of their group: a flood of strangers evicts no peer to which the
/// guest has sent first, and a flood at one published port evicts no clients of other ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerGroup {
    /// Peers to which the guest has sent first.
    Outbound,
    /// Peers that have sent first, to an endpoint without a published port.
    Strangers,
    /// Peers that have sent first, to the published port with this index in the configuration.
    Clients(u32),
}

impl PeerGroup {
    /// Returns the group of peers that send first to an endpoint; `published` is the index of its published port, if
    /// any.
    pub(super) fn of_strangers(published: Option<u32>) -> Self {
        published.map_or(Self::Strangers, Self::Clients)
    }

    fn index(self) -> u32 {
        match self {
            Self::Outbound => 0,
            Self::Strangers => FIRST_OF_STRANGERS,
            Self::Clients(place) => place.saturating_add(FIRST_OF_STRANGERS + 1),
        }
    }
}

/// Index of the first group of peers that send first; the groups of published ports follow.
const FIRST_OF_STRANGERS: u32 = 1;

/// A peer of a UDP endpoint. If the filter compares addresses only, both ports are 0, and the peer represents all
/// ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Address and port of the peer on the host's side.
    pub(super) remote: SocketAddr,
    /// Address and port of the peer as the guest sees them.
    pub(super) written: SocketAddr,
    /// Slot of the endpoint whose host socket reaches the peer.
    pub(super) via: u32,
    /// Host address to which the peer has sent, if that socket is bound to a wildcard address.
    pub(super) from: Option<IpAddr>,
    /// Time of the last datagram from or to the peer (RFC 4787 REQ-6: traffic in both directions keeps the filter
    /// open).
    pub(super) used: Instant,
    /// True if the peer is a client of a published port, to which egress rules do not apply.
    pub(super) came_in: bool,
    /// True if the guest reaches the peer through a guest forward: the peer represents its port only, even if `by_port`
    /// is false. The same if a decider has allowed the peer.
    pub(super) has_port: bool,
    /// Ports to which the guest has sent, and which of them the egress rules do not apply to.
    pub(super) ports: PeerPorts,
    /// True if the decider has redirected the guest's datagrams to `remote`.
    pub(super) redirected: bool,
    /// The egress rules with which the peer was compared last. Rules that are replaced later are compared with it when it
    /// sends.
    pub(super) rules: RulesSeen,
}

record! { Peer {
    remote, written, via, from, used, came_in, has_port, ports, redirected, rules,
} }

impl Peer {
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.used) <= MEMORY
    }

    /// Returns the guest's address for `remote`, which is this peer or, if it represents all ports, one of its ports.
    pub(super) fn written_for(&self, remote: SocketAddr) -> SocketAddr {
        at_port(self.written, remote)
    }

    /// Returns the destination of a datagram that the guest has sent to `written`, which is this peer or, if it
    /// represents all ports, one of its ports.
    pub(super) fn remote_for(&self, written: SocketAddr) -> SocketAddr {
        at_port(self.remote, written)
    }

    fn key(&self, side: AddressSide) -> SocketAddr {
        match side {
            AddressSide::Remote => self.remote,
            AddressSide::Written => self.written,
        }
    }
}

/// Returns the stored address, with the port of `meant` if the stored port is 0.
fn at_port(remembered: SocketAddr, meant: SocketAddr) -> SocketAddr {
    match remembered.port() {
        0 => SocketAddr::new(remembered.ip(), meant.port()),
        _ => remembered,
    }
}

/// Selects one of the two addresses of a peer: on the host's side, or as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressSide {
    Remote,
    Written,
}

/// The endpoint that a peer belongs to, as slot and generation. Peers of an earlier generation are not found any more,
/// and are evicted as the idlest ones of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerOwner {
    pub(super) index: u32,
    pub(super) generation: u16,
}

record! { PeerOwner { index, generation } }

/// The peers of one endpoint: the first is stored here, the others in the worker's pool.
#[derive(Debug)]
pub(super) struct EndpointPeers {
    /// True if peers are distinguished by address and port, false if by address only.
    pub(super) by_port: bool,
    /// True if a peer with [`Peer::has_port`] was stored although `by_port` is false.
    some_have_ports: bool,
    first: Option<Peer>,
    pooled: bool,
}

record! { EndpointPeers { by_port, some_have_ports, first, pooled } }

/// Storage location of a peer: with its endpoint, or in the worker's pool.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerPlace {
    First,
    Pool(u32),
}

impl EndpointPeers {
    pub(super) fn new(by_port: bool) -> Self {
        Self {
            by_port,
            some_have_ports: false,
            first: None,
            pooled: false,
        }
    }

    /// Returns the first peer, if the endpoint has never had another one.
    pub(super) fn only(&self) -> Option<&Peer> {
        self.first.as_ref().filter(|_| !self.pooled)
    }

    /// Removes the first peer if `is` returns true for it.
    pub(super) fn forget_first(&mut self, is: impl FnOnce(&Peer) -> bool) {
        self.first = self.first.filter(|first| !is(first));
    }

    /// Changes the first peer except for its addresses and its socket.
    pub(super) fn change_first(&mut self, change: impl FnOnce(&mut Peer)) {
        self.first.as_mut().map(change);
    }

    /// Returns the first peer, which is not stored in the pool.
    pub(super) fn first(&self) -> Option<&Peer> {
        self.first.as_ref()
    }

    /// Returns an address as peers store it: without port if the filter compares addresses only.
    pub(super) fn key(&self, address: SocketAddr) -> SocketAddr {
        match self.by_port {
            true => address,
            false => SocketAddr::new(address.ip(), 0),
        }
    }

    pub(super) fn find(
        &self,
        pool: &PeerPool,
        owner: PeerOwner,
        side: AddressSide,
        address: SocketAddr,
    ) -> Option<PeerPlace> {
        let exact = self
            .some_have_ports
            .then(|| self.find_key(pool, owner, side, address));
        exact
            .flatten()
            .or_else(|| self.find_key(pool, owner, side, self.key(address)))
    }

    fn find_key(
        &self,
        pool: &PeerPool,
        owner: PeerOwner,
        side: AddressSide,
        key: SocketAddr,
    ) -> Option<PeerPlace> {
        if self.first.is_some_and(|first| first.key(side) == key) {
            return Some(PeerPlace::First);
        }
        let index = self.pooled.then(|| pool.find(owner, side, key)).flatten()?;
        Some(PeerPlace::Pool(index))
    }

    /// Returns the peer at a location that [`Self::find`] has just returned.
    pub(super) fn at<'a>(&'a self, pool: &'a PeerPool, place: PeerPlace) -> &'a Peer {
        match place {
            PeerPlace::First => self.first.as_ref().expect("the caller has found the peer there"),
            PeerPlace::Pool(index) => pool.table.at(index),
        }
    }

    /// Records the socket by which a datagram of the peer at `place` has arrived.
    pub(super) fn set_via(&mut self, pool: &mut PeerPool, place: PeerPlace, via: u32) {
        match place {
            PeerPlace::First => self.first.as_mut().expect("found there").via = via,
            PeerPlace::Pool(index) => pool.set_via(index, via),
        }
    }

    /// Returns the peer at a location, for changes except of its addresses and its socket; in the pool, it becomes the last
    /// used one.
    pub(super) fn touch<'a>(&'a mut self, pool: &'a mut PeerPool, place: PeerPlace) -> &'a mut Peer {
        match place {
            PeerPlace::First => self.first.as_mut().expect("the caller has found the peer there"),
            PeerPlace::Pool(index) => {
                pool.table.touch(index);
                pool.table.at_mut(index)
            }
        }
    }

    /// Stores a peer, and removes peers with the same remote or guest-visible address.
    pub(super) fn learn(
        &mut self,
        pool: &mut PeerPool,
        owner: PeerOwner,
        group: PeerGroup,
        peer: Peer,
        now: Instant,
    ) {
        let peer = match peer.has_port {
            true => peer,
            false => Peer {
                remote: self.key(peer.remote),
                written: self.key(peer.written),
                ..peer
            },
        };
        self.some_have_ports |= peer.has_port && !self.by_port;
        let same = |first: &Peer| first.remote == peer.remote || first.written == peer.written;
        if self.pooled {
            pool.forget(owner, &peer);
        }
        if self
            .first
            .as_ref()
            .is_none_or(|first| same(first) || !first.is_fresh(now))
        {
            self.first = Some(peer);
        } else {
            self.pooled = true;
            pool.insert(owner, group, peer, now);
        }
    }
}

/// The peers of all endpoints of one worker, except the first peer of each. If a group has reached its limit, the peer
/// of that group that was not used for longest is evicted.
#[derive(Debug)]
pub(super) struct PeerPool {
    /// Number of open host sockets of published UDP ports.
    ports: usize,
    table: Table<(PeerOwner, SocketAddr), Peer>,
    by_remote: HashTable<u32>,
    /// Socket and index of the peers with another socket than their endpoint's first one.
    by_via: BTreeSet<(u32, u32)>,
    secret: Secret,
    /// Number of searches through the whole pool.
    #[cfg(test)]
    pub(super) scans: u32,
}

impl PeerPool {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            ports: 0,
            table: Table::new(secret),
            by_remote: HashTable::new(),
            by_via: BTreeSet::new(),
            secret,
            #[cfg(test)]
            scans: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Appends the peers, and the number of published ports.
    pub(super) fn save(&self, to: &mut Writer<'_>) {
        let Self {
            ports: _,
            table,
            by_remote: _,
            by_via: _,
            secret: _,
            #[cfg(test)]
                scans: _,
        } = self;
        table.save(to, |to, _, _, peer| to.put(peer));
    }

    /// Reads what [`Self::save`] has written, after the endpoints of `ports` published ports. `is_sound` checks a peer.
    pub(super) fn load(
        &mut self,
        from: &mut Reader<'_>,
        ports: usize,
        most_groups: usize,
        is_sound: impl Fn(&PeerOwner, &Peer) -> bool,
    ) -> Result<(), StateError> {
        self.ports = ports;
        self.table
            .load(from, (3 * POOL, most_groups), |from, _, _, (owner, written)| {
                let peer: Peer = from.get()?;
                check(peer.written == *written && is_sound(owner, &peer))?;
                Ok(Some(peer))
            })?;
        for index in self.table.places() {
            let owner = self.table.key(index).0;
            check(self.find(owner, AddressSide::Remote, self.table.at(index).remote).is_none())?;
            self.list_remote(index);
            self.list_via(index);
        }
        Ok(())
    }

    fn list_remote(&mut self, index: u32) {
        let (table, secret) = (&self.table, self.secret);
        let hash = |&index: &u32| secret.hash(&(table.key(index).0, table.at(index).remote));
        self.by_remote.insert_unique(hash(&index), index, hash);
    }

    /// Counts one more published port, which reduces the limits of the other groups of peers that send first.
    pub(super) fn add_port(&mut self) {
        self.ports += 1;
        let share = self.share(PeerGroup::Strangers);
        // If all peers together are within the limit of one group, no group has to be examined.
        if self.table.len() <= share {
            return;
        }
        for group in FIRST_OF_STRANGERS..self.table.groups() {
            while self.table.len_of(group) > share
                && let Some(idlest) = self.table.idlest_in(group)
            {
                self.remove(idlest);
            }
        }
    }

    /// Counts down the published ports, which increases the limits of the other groups.
    pub(super) fn remove_port(&mut self) {
        self.ports -= 1;
    }

    /// Returns the maximum number of peers of a group. Strangers at all endpoints without a published port have the
    /// same limit as one published port.
    fn share(&self, group: PeerGroup) -> usize {
        match group {
            PeerGroup::Outbound => POOL,
            PeerGroup::Strangers | PeerGroup::Clients(_) => (POOL / (self.ports + 1)).max(1),
        }
    }

    /// Removes the peers for which `is` returns true.
    pub(super) fn forget_all(&mut self, is: impl Fn(&Peer) -> bool) {
        #[cfg(test)]
        {
            self.scans += 1;
        }
        let gone: Vec<u32> = self
            .table
            .iter()
            .filter(|(_, peer)| is(peer))
            .map(|(index, _)| index)
            .collect();
        for index in gone {
            self.remove(index);
        }
    }

    /// Removes the peers that have this socket, which is not the first one of their endpoint.
    pub(super) fn forget_via(&mut self, via: u32) {
        let gone: Vec<u32> = self
            .by_via
            .range((via, 0)..=(via, u32::MAX))
            .map(|&(_, index)| index)
            .collect();
        for index in gone {
            self.remove(index);
        }
    }

    fn set_via(&mut self, index: u32, via: u32) {
        if self.table.at(index).via != via {
            self.unlist_via(index);
            self.table.at_mut(index).via = via;
            self.list_via(index);
        }
    }

    fn list_via(&mut self, index: u32) {
        let via = self.table.at(index).via;
        if via != self.table.key(index).0.index {
            self.by_via.insert((via, index));
        }
    }

    fn unlist_via(&mut self, index: u32) {
        let via = self.table.at(index).via;
        if via != self.table.key(index).0.index {
            self.by_via.remove(&(via, index));
        }
    }

    /// Changes all peers except for their addresses and their sockets.
    pub(super) fn change_all(&mut self, change: impl Fn(&mut Peer)) {
        for index in self.table.places() {
            change(self.table.at_mut(index));
        }
    }

    /// Returns the peers with the endpoints that they belong to.
    pub(super) fn owned(&self) -> impl Iterator<Item = (PeerOwner, &Peer)> {
        self.table
            .iter()
            .map(|(index, peer)| (self.table.key(index).0, peer))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.table.iter().map(|(_, peer)| peer)
    }

    fn find(&self, owner: PeerOwner, side: AddressSide, key: SocketAddr) -> Option<u32> {
        match side {
            AddressSide::Written => self.table.find(&(owner, key)),
            AddressSide::Remote => self
                .by_remote
                .find(self.secret.hash(&(owner, key)), |&index| {
                    self.table.key(index).0 == owner && self.table.at(index).remote == key
                })
                .copied(),
        }
    }

    fn insert(&mut self, owner: PeerOwner, group: PeerGroup, peer: Peer, now: Instant) {
        let share = self.share(group);
        // Two peers are checked for each new one, so that expired peers are removed faster than new ones are added.
        for _ in 0..2 {
            let full = self.table.len_of(group.index()) >= share;
            match self.table.idlest_in(group.index()) {
                Some(oldest) if full || !self.table.at(oldest).is_fresh(now) => self.remove(oldest),
                Some(_) | None => break,
            }
        }
        let index = self.table.insert_in(group.index(), (owner, peer.written), peer);
        self.list_remote(index);
        self.list_via(index);
    }

    /// Removes the peers that have an address in common with `peer`.
    fn forget(&mut self, owner: PeerOwner, peer: &Peer) {
        for side in [AddressSide::Written, AddressSide::Remote] {
            if let Some(index) = self.find(owner, side, peer.key(side)) {
                self.remove(index);
            }
        }
    }

    fn remove(&mut self, index: u32) {
        self.unlist_via(index);
        let hash = self
            .secret
            .hash(&(self.table.key(index).0, self.table.at(index).remote));
        if let Ok(entry) = self.by_remote.find_entry(hash, |&other| other == index) {
            entry.remove();
        }
        self.table.remove(index);
    }
}
