//! Guests: Ethernet hosts behind the simulated network.

pub mod scripted;
pub mod smol;

use core::net::{IpAddr, SocketAddr};

use pontoon_engine::Instant;
use pontoon_wire::Mac;

use crate::app::{App, Outcome, Script};
use crate::frames::Ether;

/// A connection that the guest opens. The remote port names its streams.
#[derive(Clone, Debug)]
pub struct Call {
    /// Destination.
    pub to: SocketAddr,
    /// The source port.
    pub from: u16,
    /// Script of the guest's application.
    pub script: Script,
    /// The time at which it begins.
    pub at: Instant,
}

/// A port on which the guest accepts one connection. The port names its streams.
#[derive(Clone, Debug)]
pub struct GuestListener {
    /// The port.
    pub port: u16,
    /// Script of the guest's application.
    pub script: Script,
}

/// Addresses of the guest.
#[derive(Clone, Copy, Debug)]
pub struct Addressing {
    /// Its addresses, IPv4 and IPv6.
    pub addresses: [IpAddr; 2],
    /// Its Ethernet address.
    pub mac: Mac,
    /// The Ethernet address that it sends everything to.
    pub gateway: Mac,
}

/// Result of one connection, seen from the guest.
#[derive(Clone, Debug)]
pub struct GuestReport {
    /// The port that names it.
    pub port: u16,
    /// Its application; `None` while there was no connection.
    pub app: Option<App>,
    /// End of the connection; `None` while it is open.
    pub outcome: Option<Outcome>,
    /// The guest's own stack has violated TCP in a way that may stall the connection for ever.
    pub broken: bool,
}

/// A guest.
pub trait Guest {
    /// Opens a connection, at the time in `call`.
    fn call(&mut self, call: Call);

    /// Accepts one connection.
    fn listen(&mut self, listener: GuestListener);

    /// Processes a frame from the network.
    fn receive(&mut self, frame: &[u8], now: Instant);

    /// Runs the guest, and returns the frames that it sends.
    fn poll(&mut self, now: Instant) -> Vec<Vec<u8>>;

    /// Returns the time of its next action.
    fn next(&mut self, now: Instant) -> Option<Instant>;

    /// Returns the results of its connections. A listener without a connection is not among them.
    fn reports(&self) -> Vec<GuestReport>;

    /// Returns the engine's violations of TCP.
    fn wrong(&self) -> &[String];
}

impl Addressing {
    /// Returns the guest's address of `like`'s family.
    #[must_use]
    pub fn own(&self, like: IpAddr) -> IpAddr {
        self.addresses[usize::from(like.is_ipv6())]
    }

    /// Returns the Ethernet addresses of the guest's frames.
    #[must_use]
    pub fn ether(&self) -> Ether {
        Ether {
            source: self.mac,
            destination: self.gateway,
        }
    }
}
