//! The other workers of a guest. A flow has one owner, whichever worker its frames arrive at.
//!
//! Owners are in a directory that all workers share. It is queried only for flows that are not in the worker's own tables:
//! before a flow is opened, and before a reset is sent. A single worker has no directory.

use core::fmt::Debug;
use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pontoon_wire::Mac;

use crate::flow_rate::Admission;
use crate::{Frame, Instant, WorkerId};

/// The key of a flow in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowKey {
    /// A TCP connection, by both ends as the guest sees them.
    Tcp {
        /// The guest's end.
        guest: SocketAddr,
        /// The other one.
        remote: SocketAddr,
    },
    /// A UDP endpoint of the guest's.
    Udp(SocketAddr),
}

/// The worker with the tasks of a single owner: echo requests, whose raw sockets all ids share; the DNS forwarder, which
/// recognizes retransmitted queries and failed resolvers; published UDP ports.
pub const FIRST: WorkerId = WorkerId(0);

/// A part of `--max-flows` that clients of published TCP ports may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClientShare {
    /// Clients of all published ports.
    AllPorts,
    /// Clients of the port with this `Published::share_key`.
    Port(u32),
}

impl ClientShare {
    /// Returns true if a connection counts against this share; `port` is the published port that it came in by.
    pub(crate) fn includes(self, port: Option<u32>) -> bool {
        match self {
            Self::AllPorts => port.is_some(),
            Self::Port(own) => port == Some(own),
        }
    }
}

/// Numbers of clients of published TCP ports, by `Published::share_key`. Ports without clients take no memory.
#[derive(Debug, Default)]
pub struct PortClients {
    by_port: BTreeMap<u32, u32>,
    total: u32,
}

impl PortClients {
    /// Returns the number of a port's clients.
    #[must_use]
    pub fn count(&self, port: u32) -> u32 {
        self.by_port.get(&port).copied().unwrap_or(0)
    }

    /// Returns the number of clients of all ports.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Adds a client of a port.
    pub fn add(&mut self, port: u32) {
        *self.by_port.entry(port).or_default() += 1;
        self.total += 1;
    }

    /// Removes a client that was added.
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

/// A worker's interface to the other workers, and to the state that all share.
pub trait Siblings: Debug + Send {
    /// Returns the owner of a flow.
    fn owner(&self, key: &FlowKey) -> Option<WorkerId>;

    /// Claims a flow for this worker, which may own it already.
    ///
    /// # Errors
    /// The returned worker, another one, owns it.
    fn claim(&self, key: &FlowKey) -> Result<(), WorkerId>;

    /// Claims a flow for this worker, also if another owns it.
    fn seize(&self, key: &FlowKey);

    /// Releases the claim on a flow of this worker.
    fn release(&self, key: &FlowKey);

    /// Returns the worker that reassembles a datagram, the same one for each of its fragments.
    fn reassembler(&self, source: IpAddr, destination: IpAddr, id: u32) -> WorkerId;

    /// Copies a frame to another worker, for [`Engine::handle_handed`](crate::Engine::handle_handed). `reassembled` is that of
    /// [`Handed`].
    fn hand_over(&self, to: WorkerId, frame: &Frame<'_>, reassembled: bool) -> HandOver;

    /// Returns the number of flows of all workers, which [`Self::opened`] and [`Self::closed`] update.
    fn flows(&self) -> u32;

    /// Counts a flow that got a slot.
    fn opened(&self);

    /// Counts a flow whose slot was freed.
    fn closed(&self);

    /// Returns the number of clients of the published TCP port with this `Published::share_key` in all workers, which
    /// [`Self::client_opened`] and [`Self::client_closed`] update.
    fn clients(&self, port: u32) -> u32;

    /// Returns the number of clients that all published TCP ports have in all workers.
    fn all_clients(&self) -> u32;

    /// Counts a client of that port that got a slot.
    fn client_opened(&self, port: u32);

    /// Counts a client whose slot was freed.
    fn client_closed(&self, port: u32);

    /// Sets the number of datagram flows of this worker that may be evicted.
    fn set_evictable(&self, flows: u32);

    /// Returns the worker with most datagram flows that may be evicted, if there are any.
    fn most_evictable(&self) -> Option<WorkerId>;

    /// Returns the number of UDP ports of the host that endpoints of all workers hold in this family, which
    /// [`Self::port_taken`] and [`Self::port_freed`] update.
    fn ports(&self, family_of: IpAddr) -> u32;

    /// Counts a port of the host that a UDP endpoint of this worker holds.
    fn port_taken(&self, family_of: IpAddr);

    /// Counts a port that a UDP endpoint of this worker has released.
    fn port_freed(&self, family_of: IpAddr);

    /// Admits one more flow under a limit of `rate` a second for all workers together, and counts it if it is admitted. See
    /// [`flow_rate`](crate::flow_rate).
    fn count_against_rate(&self, rate: u32, now: Instant) -> Admission;

    /// Publishes the guest's Ethernet address, which has changed.
    fn guest_moved(&self, mac: Mac);
}

/// A frame that another worker handed over.
#[derive(Clone, Copy, Debug)]
pub struct Handed<'a> {
    /// The frame.
    pub frame: Frame<'a>,
    /// The guest has sent it in fragments.
    pub reassembled: bool,
}

/// The origin of the current packet, which decides if it may be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This worker's own queue of the link.
    Link,
    /// Reassembly in this worker.
    Fragments,
    /// Another worker. A frame is handed over only once, so that it cannot circulate.
    Peer,
}
