//! A record of TCP connections and of the guest's Ethernet address, in memory that outlives the engine.
//!
//! An engine that takes a dead one's place has none of its flows. A guest that sends on one of them hears so, by a
//! reset; one that only listens never would. So it is asked where each of them stands ([`Engine::ask_about`]), and its
//! answer, which belongs to nothing, is answered by a reset as any such segment is.
//!
//! [`Engine::ask_about`]: crate::Engine::ask_about

use core::fmt::Debug;
use core::net::SocketAddr;

use pontoon_wire::Mac;

/// A TCP connection, by both ends as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The guest's end.
    pub guest: SocketAddr,
    /// The other one.
    pub remote: SocketAddr,
}

/// The record of connections, by slot.
pub trait Ledger: Debug + Send {
    /// A slot has been given to a connection.
    fn enter(&self, slot: u32, ends: Ends);

    /// A slot is free again.
    fn strike(&self, slot: u32);

    /// The guest has this Ethernet address from now on.
    fn guest_moved(&self, mac: Mac);
}
