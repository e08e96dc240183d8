//! Peers of a guest's endpoint, and their addresses as the guest sees them.

use core::hash::Hash;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeSet;

use hashbrown::HashTable;

use crate::Instant;
use crate::table::{Secret, Table};

/// The time for which a peer may reply after the guest has sent to it (RFC 4787 REQ-5).
pub(super) const MEMORY: Duration = Duration::from_secs(120);

/// Peers in the pool of one worker that the guest has sent to first, beyond the first peer of each endpoint; and as
/// many strangers, which have sent to the guest first.
pub(super) const POOL: usize = 65_536;

/// Peers of one kind, which are evicted only for others of their kind: a flood of strangers evicts no peer of the guest's
/// choice, and a flood at one published port evicts no clients of other ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerGroup {
    /// The guest has sent to them first.
    Outbound,
    /// They have sent first, to an endpoint without a published port.
    Strangers,
    /// They have sent first, to the published port at this place of the configuration.
    Clients(u32),
}

impl PeerGroup {
    /// The group of the strangers at an endpoint.
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

/// The first index of a group of strangers; those of published ports follow.
const FIRST_OF_STRANGERS: u32 = 1;

/// One peer of one endpoint. If the filter compares addresses alone, both ports are 0 and stand for every port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// On the host's side.
    pub(super) remote: SocketAddr,
    /// Its address as the guest sees it.
    pub(super) written: SocketAddr,
    /// Slot of the socket that leads there.
    pub(super) via: u32,
    /// The host's address to which it sent, if that socket is bound to a wildcard.
    pub(super) from: Option<IpAddr>,
    /// When a datagram was last exchanged with it (RFC 4787 REQ-6: traffic in both directions keeps the filter open).
    pub(super) used: Instant,
    /// It is a client of a published port: egress rules do not apply to it.
    pub(super) came_in: bool,
}

impl Peer {
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.used) <= MEMORY
    }

    /// Returns the guest's address for `remote`, which is this peer or a port of it.
    pub(super) fn written_for(&self, remote: SocketAddr) -> SocketAddr {
        at_port(self.written, remote)
    }

    /// Returns the destination of a datagram that the guest sent to `written`, which is this peer or a port of it.
    pub(super) fn remote_for(&self, written: SocketAddr) -> SocketAddr {
        at_port(self.remote, written)
    }

    fn key(&self, side: Side) -> SocketAddr {
        match side {
            Side::Remote => self.remote,
            Side::Written => self.written,
        }
    }
}

/// Returns a recorded address, with the port of `meant` if it stands for every port.
fn at_port(remembered: SocketAddr, meant: SocketAddr) -> SocketAddr {
    match remembered.port() {
        0 => SocketAddr::new(remembered.ip(), meant.port()),
        _ => remembered,
    }
}

/// One of a peer's two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Remote,
    Written,
}

/// An endpoint's slot and its generation. Peers of an earlier generation are never found, and are evicted as the pool's oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) index: u32,
    pub(super) generation: u16,
}

/// An endpoint's peers: the first in place, the others in the worker's pool.
#[derive(Debug)]
pub(super) struct Peers {
    /// Peers are distinguished by port, too.
    pub(super) by_port: bool,
    first: Option<Peer>,
    pooled: bool,
}

/// The place of a peer's record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    First,
    Pool(u32),
}

impl Peers {
    pub(super) fn new(by_port: bool) -> Self {
        Self {
            by_port,
            first: None,
            pooled: false,
        }
    }

    /// Returns the only peer that there ever was.
    pub(super) fn only(&self) -> Option<&Peer> {
        self.first.as_ref().filter(|_| !self.pooled)
    }

    /// Removes the peer that is stored in place, if `is` returns true for it.
    pub(super) fn forget_first(&mut self, is: impl FnOnce(&Peer) -> bool) {
        self.first = self.first.filter(|first| !is(first));
    }

    /// Returns the peer that is stored in place.
    pub(super) fn first(&self) -> Option<&Peer> {
        self.first.as_ref()
    }

    /// Returns the form in which an address is recorded.
    pub(super) fn key(&self, address: SocketAddr) -> SocketAddr {
        match self.by_port {
            true => address,
            false => SocketAddr::new(address.ip(), 0),
        }
    }

    pub(super) fn find(&self, pool: &Pool, owner: Owner, side: Side, address: SocketAddr) -> Option<Place> {
        let key = self.key(address);
        if self.first.is_some_and(|first| first.key(side) == key) {
            return Some(Place::First);
        }
        let index = self.pooled.then(|| pool.find(owner, side, key)).flatten()?;
        Some(Place::Pool(index))
    }

    /// The record at a place that was just found.
    pub(super) fn at<'a>(&'a self, pool: &'a Pool, place: Place) -> &'a Peer {
        match place {
            Place::First => self.first.as_ref().expect("found there"),
            Place::Pool(index) => pool.table.at(index),
        }
    }

    /// Records the socket by which a datagram of the peer has come.
    pub(super) fn set_via(&mut self, pool: &mut Pool, place: Place, via: u32) {
        match place {
            Place::First => self.first.as_mut().expect("found there").via = via,
            Place::Pool(index) => pool.set_via(index, via),
        }
    }

    /// As [`Self::at`], for changes to anything but the addresses and the socket; in the pool it becomes the newest.
    pub(super) fn touch<'a>(&'a mut self, pool: &'a mut Pool, place: Place) -> &'a mut Peer {
        match place {
            Place::First => self.first.as_mut().expect("found there"),
            Place::Pool(index) => {
                pool.table.touch(index);
                pool.table.at_mut(index)
            }
        }
    }

    /// Records a peer, and removes those that share an address with it.
    pub(super) fn learn(
        &mut self,
        pool: &mut Pool,
        owner: Owner,
        group: PeerGroup,
        peer: Peer,
        now: Instant,
    ) {
        let peer = Peer {
            remote: self.key(peer.remote),
            written: self.key(peer.written),
            ..peer
        };
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

/// The peers of all endpoints, beyond each one's first. When a group's share is full, the peer of that group that was
/// not used for longest is evicted.
#[derive(Debug)]
pub(super) struct Pool {
    /// Sockets of published ports.
    ports: usize,
    table: Table<(Owner, SocketAddr), Peer>,
    by_remote: HashTable<u32>,
    /// Socket and index of the peers with another socket than their endpoint's first one.
    by_via: BTreeSet<(u32, u32)>,
    secret: Secret,
    /// Searches of the whole pool.
    #[cfg(test)]
    pub(super) scans: u32,
}

impl Pool {
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

    /// One more published port has clients: the shares of the others shrink.
    pub(super) fn add_port(&mut self) {
        self.ports += 1;
        let share = self.share(PeerGroup::Strangers);
        // Ports without clients, as all are at the start, are skipped.
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

    /// Removes a published port: the shares of the others grow.
    pub(super) fn remove_port(&mut self) {
        self.ports -= 1;
    }

    /// Peers that one group may have. Strangers at all endpoints without a published port share like one published port.
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

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.table.iter().map(|(_, peer)| peer)
    }

    fn find(&self, owner: Owner, side: Side, key: SocketAddr) -> Option<u32> {
        match side {
            Side::Written => self.table.find(&(owner, key)),
            Side::Remote => self
                .by_remote
                .find(self.secret.hash(&(owner, key)), |&index| {
                    self.table.key(index).0 == owner && self.table.at(index).remote == key
                })
                .copied(),
        }
    }

    fn insert(&mut self, owner: Owner, group: PeerGroup, peer: Peer, now: Instant) {
        let share = self.share(group);
        // Two for each new one, so that expired peers are removed faster than new ones are added.
        for _ in 0..2 {
            let full = self.table.len_of(group.index()) >= share;
            match self.table.idlest_in(group.index()) {
                Some(oldest) if full || !self.table.at(oldest).is_fresh(now) => self.remove(oldest),
                Some(_) | None => break,
            }
        }
        let index = self.table.insert_in(group.index(), (owner, peer.written), peer);
        let (table, secret) = (&self.table, self.secret);
        let hash = |&index: &u32| secret.hash(&(table.key(index).0, table.at(index).remote));
        self.by_remote.insert_unique(hash(&index), index, hash);
        self.list_via(index);
    }

    /// Removes the peers that share an address with `peer`.
    fn forget(&mut self, owner: Owner, peer: &Peer) {
        for side in [Side::Written, Side::Remote] {
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
