//! Parses frames from the guest and encodes the headers of frames to it.
//!
//! Pure: no clock, no sockets, no threads, no unsafe code. The local services use `smoltcp::wire`, re-exported here.
//! The packet path has its own code: one-pass parsing of a frame's headers, header blocks, partial checksums,
//! `virtio_net_hdr`.
//!
//! A frame is parsed once, on arrival ([`frame::parse`]); later code does not read header bytes. Outgoing frames are a
//! header block ([`emit`]) in front of payload that is not moved.
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

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);
}

/// IP protocol numbers that the engine handles (IANA "Protocol Numbers").
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}
