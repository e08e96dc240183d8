//! Who may be reached, decided once, before a socket exists.

use core::net::IpAddr;

use crate::config::Addresses;

/// Why a destination is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The address as written is of a class that is never reachable.
    Class,
    /// An address of the guest's subnet behind which there is nobody.
    Nobody,
    /// The host's loopback, which is not open.
    HostLoopback,
    /// An address that the host owns, and `--host-addresses` was not given.
    HostAddress,
}

/// The table. `decide` is the one place where a destination is judged, for TCP, UDP and ICMP alike.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Addresses on the guest's side.
    pub addresses: Addresses,
    /// Addresses that reach the host's loopback.
    pub host_loopback: Vec<IpAddr>,
    /// The host's own addresses may be reached.
    pub host_addresses: bool,
    /// Addresses that the host owns, followed while running.
    pub owned: Vec<IpAddr>,
}

impl Policy {
    /// Where a packet that the guest wrote to `written` may go on the host's side.
    ///
    /// # Errors
    /// It may not; nothing is opened for it.
    pub fn decide(&self, written: IpAddr) -> Result<IpAddr, Refusal> {
        let _ = written;
        todo!()
    }

    /// How a client at `peer` appears to the guest: itself, or the gateway where it cannot be shown (loopback, an
    /// address of the guest's subnets, unspecified, link-local). The caller picks a fresh port for the gateway.
    #[must_use]
    pub fn shown(&self, peer: IpAddr) -> IpAddr {
        let _ = peer;
        todo!()
    }
}
