//! The ledger: a list of TCP connections, and the guest's Ethernet address, in memory that outlives an engine process.
//!
//! An engine that replaces one that has exited has none of its flows. A guest that sends on such a connection receives
//! a reset, but a guest that only receives would wait for ever. Therefore the new engine probes the guest for each
//! connection in the ledger ([`Engine::ask_about`]); the guest's reply belongs to no connection of the new engine, and
//! is answered by a reset.
//!
//! [`Engine::ask_about`]: crate::Engine::ask_about

use core::fmt::Debug;
use core::net::SocketAddr;

use pontoon_wire::Mac;

/// Both ends of a TCP connection, as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The guest's address and port.
    pub guest: SocketAddr,
    /// The remote address and port.
    pub remote: SocketAddr,
}

/// Access to the ledger: one slot for each TCP connection, with the index of the connection's slot in the worker's
/// table.
pub trait Ledger: Debug + Send {
    /// Writes a connection into a slot of the ledger.
    fn enter(&self, slot: u32, ends: Ends);

    /// Removes the connection from a slot of the ledger.
    fn strike(&self, slot: u32);

    /// Stores the guest's Ethernet address in the ledger.
    fn guest_moved(&self, mac: Mac);
}
