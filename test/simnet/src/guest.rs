//! The trait of simulated guests: Ethernet hosts with a TCP stack, connected to the simulated network.

pub mod scripted;
pub mod smol;

use core::net::{IpAddr, SocketAddr};

use pontoon_engine::Instant;
use pontoon_wire::Mac;

use crate::app::{ConnectionEnd, Script, SimApp};
use crate::frames::EtherAddresses;

/// A TCP connection that the guest opens. The remote port selects the contents of its streams.
#[derive(Clone, Debug)]
pub struct GuestCall {
    /// Remote address and port of the connection.
    pub to: SocketAddr,
    /// Source port of the connection.
    pub from: u16,
    /// Script of the guest's application on the connection.
    pub script: Script,
    /// Time at which the guest sends its SYN.
    pub at: Instant,
}

/// A TCP port on which the guest accepts one connection. The port selects the contents of its streams.
#[derive(Clone, Debug)]
pub struct GuestListener {
    /// TCP port on which the guest listens.
    pub port: u16,
    /// Script of the guest's application on the accepted connection.
    pub script: Script,
}

/// Addresses of a guest and its gateway.
#[derive(Clone, Copy, Debug)]
pub struct Addressing {
    /// IPv4 and IPv6 address of the guest.
    pub addresses: [IpAddr; 2],
    /// Ethernet address of the guest.
    pub mac: Mac,
    /// Ethernet address of the gateway, to which the guest sends all frames.
    pub gateway: Mac,
}

/// The result of one connection, as the guest observed it.
#[derive(Clone, Debug)]
pub struct GuestReport {
    /// The port that identifies the connection and its streams.
    pub port: u16,
    /// The guest's application on the connection; `None` if the connection was never established.
    pub app: Option<SimApp>,
    /// End of the connection as the guest observed it; `None` while it is open.
    pub outcome: Option<ConnectionEnd>,
    /// True if the guest's own TCP stack has violated TCP in a way that may stall the connection forever.
    pub broken: bool,
}

/// A simulated guest: an Ethernet host with a TCP stack.
pub trait Guest {
    /// Opens a connection at the time `call.at`.
    fn call(&mut self, call: GuestCall);

    /// Accepts one connection on the listener's port.
    fn listen(&mut self, listener: GuestListener);

    /// Processes a frame that the network delivers to the guest.
    fn receive(&mut self, frame: &[u8], now: Instant);

    /// Runs the guest's stack and applications, and returns the frames that the guest sends.
    fn poll(&mut self, now: Instant) -> Vec<Vec<u8>>;

    /// Returns the time at which the guest has to be polled next.
    fn next(&mut self, now: Instant) -> Option<Instant>;

    /// Returns the results of the guest's connections. A listener that has accepted no connection has none.
    fn reports(&self) -> Vec<GuestReport>;

    /// Returns descriptions of the engine's TCP violations that the guest has detected.
    fn wrong(&self) -> &[String];
}

impl Addressing {
    /// Returns the guest's address of the same family as `like`.
    #[must_use]
    pub fn own(&self, like: IpAddr) -> IpAddr {
        self.addresses[usize::from(like.is_ipv6())]
    }

    /// Returns source and destination Ethernet address of the guest's frames.
    #[must_use]
    pub fn ether(&self) -> EtherAddresses {
        EtherAddresses {
            source: self.mac,
            destination: self.gateway,
        }
    }
}
