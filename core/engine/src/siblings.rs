//! The other workers of a guest. A flow has one owner for life, whichever worker its frames arrive at.
//!
//! Owners are kept in a directory that all workers share. It is asked only about what the worker's own tables do not
//! know: before a flow is opened, and before the guest is told that there is none. With one worker there is none of
//! this.

use core::fmt::Debug;
use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pontoon_wire::Mac;

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

/// The worker that does what is not to be done twice: echo requests, whose raw sockets all ids share; the DNS
/// forwarder, which knows repeated queries and silent resolvers; published UDP ports.
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

/// A worker's interface to the other workers, and to the state that all share.
pub trait Siblings: Debug + Send {
    /// Returns the owner of a flow.
    fn owner(&self, key: &FlowKey) -> Option<WorkerId>;

    /// Makes a flow this worker's, if it is not already.
    ///
    /// # Errors
    /// It is the named other worker's.
    fn claim(&self, key: &FlowKey) -> Result<(), WorkerId>;

    /// Makes a flow this worker's, also if another has it.
    fn seize(&self, key: &FlowKey);

    /// A flow of this worker's has ended.
    fn release(&self, key: &FlowKey);

    /// The worker that reassembles a datagram: the same one for each of its fragments.
    fn reassembler(&self, source: IpAddr, destination: IpAddr, id: u32) -> WorkerId;

    /// Copies a frame to another worker, for [`Engine::handle_handed`](crate::Engine::handle_handed). `reassembled`
    /// is what [`Handed`] says of it. False: there was no room, and the frame is lost.
    fn hand_over(&self, to: WorkerId, frame: &Frame<'_>, reassembled: bool) -> bool;

    /// Flows of all workers. Each one's [`Self::opened`] and [`Self::closed`] keep the count.
    fn flows(&self) -> u32;

    /// A slot has been given to a flow.
    fn opened(&self);

    /// A slot is free again.
    fn closed(&self);

    /// The number of clients that the published TCP port with this `Published::share_key` has in all workers.
    /// [`Self::client_opened`] and [`Self::client_closed`] keep the count.
    fn clients(&self, port: u32) -> u32;

    /// The number of clients that all published TCP ports have in all workers.
    fn all_clients(&self) -> u32;

    /// A client of that port has got a slot.
    fn client_opened(&self, port: u32);

    /// Its slot is free again.
    fn client_closed(&self, port: u32);

    /// Datagram flows of this worker's that may be evicted.
    fn set_evictable(&self, flows: u32);

    /// The worker that has most datagram flows that may be evicted, unless none has any.
    fn most_evictable(&self) -> Option<WorkerId>;

    /// UDP ports of the host that endpoints of all workers hold in this family. Each worker's [`Self::port_taken`] and
    /// [`Self::port_freed`] keep the count.
    fn ports(&self, family_of: IpAddr) -> u32;

    /// A UDP endpoint of this worker's holds a port of the host.
    fn port_taken(&self, family_of: IpAddr);

    /// A UDP endpoint of this worker's has given its port back.
    fn port_freed(&self, family_of: IpAddr);

    /// Counts one more flow against a limit of `rate` a second for all workers together. Returns false, and counts
    /// nothing, if the limit does not allow it. See [`flow_rate`](crate::flow_rate).
    fn count_against_rate(&self, rate: u32, now: Instant) -> bool;

    /// The guest's Ethernet address is another one than was known.
    fn guest_moved(&self, mac: Mac);
}

/// A frame that came by way of another worker.
#[derive(Clone, Copy, Debug)]
pub struct Handed<'a> {
    /// The frame.
    pub frame: Frame<'a>,
    /// The guest had sent it in fragments.
    pub reassembled: bool,
}

/// The origin of the current packet, which decides if it may be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This worker's own queue of the link.
    Link,
    /// This worker put it together.
    Fragments,
    /// Another worker. A frame is handed over once only, or it might circulate for ever.
    Peer,
}
