//! Parses frames from the guest and encodes the headers of frames to it.
//!
//! This crate reads no clock, opens no socket, starts no thread and has no unsafe code. The engine's local services
//! (DHCP, NDP, ...) use `smoltcp::wire`, re-exported here. The packet path has its own code: parsing of a frame's
//! headers in one pass, encoding of headers, partial checksums, and `virtio_net_hdr`.
//!
//! A frame is parsed once, on arrival ([`frame::parse`]); later code does not read header bytes. A frame to the guest
//! consists of encoded headers ([`emit`]) and payload that is not copied.
#![forbid(unsafe_code)]
#![deny(clippy::iter_over_hash_type)]
#![warn(missing_docs)]

pub mod checksum;
pub mod emit;
pub mod frame;
mod layout;
#[cfg(test)]
mod oracle;
pub mod quote;
pub mod vnet;

pub use smoltcp::wire as smol;

/// An Ethernet (MAC) address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl core::fmt::Display for Mac {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Mac {
    /// The Ethernet broadcast address ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);
}

/// IP protocol numbers that the engine handles (IANA "Protocol Numbers").
pub mod protocol {
    /// Protocol number of ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// Protocol number of TCP.
    pub const TCP: u8 = 6;
    /// Protocol number of UDP.
    pub const UDP: u8 = 17;
    /// Protocol number of ICMPv6.
    pub const ICMPV6: u8 = 58;
}
