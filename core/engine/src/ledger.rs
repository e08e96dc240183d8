//! A record of TCP connections and of the guest's Ethernet address, in memory that outlives the engine.
//!
//! An engine that replaces one that has exited has none of its flows. A guest that sends on one of them receives a reset; a
//! guest that only receives would not notice. So the guest is probed for each connection ([`Engine::ask_about`]), and its
//! answer, which belongs to no connection, is answered by a reset.
//!
//! [`Engine::ask_about`]: crate::Engine::ask_about

use core::fmt::Debug;
use core::net::SocketAddr;

use pontoon_wire::Mac;

/// A TCP connection, by both ends as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The guest's address and port.
    pub guest: SocketAddr,
    /// The remote address and port.
    pub remote: SocketAddr,
}

/// The record of connections, by slot.
pub trait Ledger: Debug + Send {
    /// Records a connection in a slot.
    fn enter(&self, slot: u32, ends: Ends);

    /// Removes the record of a slot.
    fn strike(&self, slot: u32);

    /// Records the guest's Ethernet address.
    fn guest_moved(&self, mac: Mac);
}
