//! The trait [`Siblings`], a worker's interface to the other workers of its engine. A flow has one owner, whichever
//! worker receives its frames.
//!
//! Owners are listed in a directory that all workers share. It is queried only for flows that are not in the worker's
//! own tables: before a flow is opened, and before a reset is sent. A single worker has no directory.

use core::fmt::Debug;
use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pontoon_wire::Mac;

use crate::flow_rate::{Admission, FlowOpener};
use crate::{Frame, Instant, WorkerId};

/// Key of a flow in the directory of flow owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowKey {
    /// A TCP connection, by both its ends as the guest sees them.
    Tcp {
        /// The guest's address and port of the connection.
        guest: SocketAddr,
        /// The remote address and port of the connection.
        remote: SocketAddr,
    },
    /// A UDP endpoint of the guest, by its address and port.
    Udp(SocketAddr),
}

/// The worker with the tasks that only one worker can have: echo requests, whose raw sockets all ids share; the DNS
/// forwarder, which merges equal queries and knows failed resolvers; published UDP ports.
pub const FIRST: WorkerId = WorkerId(0);

/// A share of `--max-flows` that clients of published TCP ports must not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClientShare {
    /// Share of the clients of all published ports together.
    AllPorts,
    /// Share of the clients of the published port with this `Published::share_key`.
    Port(u32),
}

impl ClientShare {
    /// Returns true if a connection counts against this share; `port` is the key of the published port through which it
    /// was accepted, if any.
    pub(crate) fn includes(self, port: Option<u32>) -> bool {
        match self {
            Self::AllPorts => port.is_some(),
            Self::Port(own) => port == Some(own),
        }
    }
}

/// Number of open clients of each published TCP port, by `Published::share_key`. Ports without clients use no memory.
#[derive(Debug, Default)]
pub struct PortClients {
    by_port: BTreeMap<u32, u32>,
    total: u32,
}

impl PortClients {
    /// Returns the number of clients of the port with the key `port`.
    #[must_use]
    pub fn count(&self, port: u32) -> u32 {
        self.by_port.get(&port).copied().unwrap_or(0)
    }

    /// Returns the number of clients of all published TCP ports.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Counts a new client of the port with the key `port`.
    pub fn add(&mut self, port: u32) {
        *self.by_port.entry(port).or_default() += 1;
        self.total += 1;
    }

    /// Counts down the clients of the port with the key `port`.
    pub fn remove(&mut self, port: u32) {
        match self.by_port.entry(port) {
            Entry::Occupied(mut clients) => {
                self.total -= 1;
                *clients.get_mut() -= 1;
                if *clients.get() == 0 {
                    clients.remove();
                }
            }
            Entry::Vacant(_) => debug_assert!(false, "the client was added"),
        }
    }
}

/// The outcome of handing a frame over to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum HandOver {
    /// A copy of the frame is in the other worker's inbox.
    Queued,
    /// There was no room, and the frame was dropped.
    Dropped,
}

/// A worker's interface to the other workers of its engine, and to the state that all workers share.
pub trait Siblings: Debug + Send {
    /// Returns the owner of a flow; `None` if no worker owns it.
    fn owner(&self, key: &FlowKey) -> Option<WorkerId>;

    /// Claims a flow for this worker, which may own it already.
    ///
    /// # Errors
    /// Another worker, which is returned, owns the flow.
    fn claim(&self, key: &FlowKey) -> Result<(), WorkerId>;

    /// Claims a flow for this worker, even if another worker owns it.
    fn seize(&self, key: &FlowKey);

    /// Releases this worker's claim on a flow.
    fn release(&self, key: &FlowKey);

    /// Returns the worker that reassembles a datagram, which is the same for all its fragments.
    fn reassembler(&self, source: IpAddr, destination: IpAddr, id: u32) -> WorkerId;

    /// Copies a frame to another worker, for [`Engine::handle_handed`](crate::Engine::handle_handed). `reassembled` is that of
    /// [`Handed`].
    fn hand_over(&self, to: WorkerId, frame: &Frame<'_>, reassembled: bool) -> HandOver;

    /// Returns the number of open flows of all workers, which [`Self::opened`] and [`Self::closed`] update.
    fn flows(&self) -> u32;

    /// Counts a flow that this worker has opened.
    fn opened(&self);

    /// Counts down the flows, because this worker has closed one.
    fn closed(&self);

    /// Returns the number of clients of the published TCP port with this `Published::share_key` in all workers, which
    /// [`Self::client_opened`] and [`Self::client_closed`] update.
    fn clients(&self, port: u32) -> u32;

    /// Returns the number of clients that all published TCP ports have in all workers.
    fn all_clients(&self) -> u32;

    /// Counts a new client of the published TCP port with this key.
    fn client_opened(&self, port: u32);

    /// Counts down the clients of the published TCP port with this key.
    fn client_closed(&self, port: u32);

    /// Sets the number of UDP endpoints and echo ids of this worker that may be evicted.
    fn set_evictable(&self, flows: u32);

    /// Returns the worker with the largest number of flows that may be evicted; `None` if no worker has one.
    fn most_evictable(&self) -> Option<WorkerId>;

    /// Returns the number of host UDP ports that endpoints of all workers hold in the family of `family_of`, which
    /// [`Self::port_taken`] and [`Self::port_freed`] update.
    fn ports(&self, family_of: IpAddr) -> u32;

    /// Counts a host UDP port that an endpoint of this worker has bound.
    fn port_taken(&self, family_of: IpAddr);

    /// Counts down the host UDP ports, because an endpoint of this worker has released one.
    fn port_freed(&self, family_of: IpAddr);

    /// Decides whether a limit of `rate` flows per second for all workers together admits one more flow, and counts it
    /// if so (module [`flow_rate`](crate::flow_rate)).
    fn count_against_rate(&self, rate: u32, opener: FlowOpener, now: Instant) -> Admission;

    /// Sends the guest's new Ethernet address to the other workers.
    fn guest_moved(&self, mac: Mac);
}

/// A frame that another worker has handed over to this one.
#[derive(Clone, Copy, Debug)]
pub struct Handed<'a> {
    /// Copy of the frame in this worker's inbox.
    pub frame: Frame<'a>,
    /// True if the other worker has reassembled the frame from IP fragments.
    pub reassembled: bool,
}

/// Origin of the frame that is being handled, which decides whether it may be handed over to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The worker's own queue of the link.
    Link,
    /// Reassembly of IP fragments in this worker.
    Fragments,
    /// Another worker. Such a frame is not handed over again, so that it cannot circulate.
    Peer,
}
