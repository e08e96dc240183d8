//! Parsed frames: the header fields that the engine uses.

use core::net::IpAddr;

mod parse;
#[cfg(test)]
mod tests;

pub use parse::parse;

/// Bytes of a frame that links copy to private memory before parsing: more than the longest chain of headers that is
/// accepted.
pub const HEAD: usize = 256;

/// A parsed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedFrame {
    /// Sender's Ethernet address.
    pub source: crate::Mac,
    /// Receiver's Ethernet address.
    pub destination: crate::Mac,
    /// The packet after the Ethernet header.
    pub body: Body,
}

/// The packet after an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// ARP; the packet begins at byte 14.
    Arp,
    /// An IP packet.
    Ip(Ip, Transport),
}

/// The fields of an IPv4 header, or of an IPv6 header with its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source address, as sent.
    pub source: IpAddr,
    /// Destination address, as sent.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// IPv4: the DF bit. IPv6: true.
    pub dont_fragment: bool,
    /// Upper-layer protocol number.
    pub protocol: u8,
    /// Set if the packet is a fragment (the transport is [`Transport::Fragment`] then).
    pub fragment: Option<Fragment>,
    /// Offset of the upper-layer header, from the frame's first byte.
    pub payload_offset: usize,
    /// Bytes of upper-layer header and data, according to the IP header's length field (never past the frame's end).
    pub payload_len: usize,
}

/// Position of a fragment (RFC 791, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification.
    pub id: u32,
    /// Offset in bytes.
    pub offset: u32,
    /// More fragments follow.
    pub more: bool,
}

/// The upper layer. Payload offsets count from the frame's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp(Udp),
    /// ICMP or ICMPv6, by `Ip::protocol`; the message begins at `Ip::payload_offset`.
    Icmp(Icmp),
    /// A fragment, to be parsed after reassembly.
    Fragment,
    /// Anything else.
    Other,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number of the first byte (or of SYN).
    pub seq: u32,
    /// Acknowledgement number; meaningful with [`Flags::ACK`].
    pub ack: u32,
    /// Flags.
    pub flags: Flags,
    /// Window field, unscaled.
    pub window: u16,
    /// Options.
    pub options: TcpOptions,
    /// Offset of the data, from the frame's first byte.
    pub payload_offset: usize,
    /// Bytes of data.
    pub payload_len: usize,
}

/// TCP flags, as in the header's 14th byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// FIN.
    pub const FIN: Self = Self(0x01);
    /// SYN.
    pub const SYN: Self = Self(0x02);
    /// RST.
    pub const RST: Self = Self(0x04);
    /// PSH.
    pub const PSH: Self = Self(0x08);
    /// ACK.
    pub const ACK: Self = Self(0x10);

    /// Returns whether every flag in `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The TCP options that the engine supports. Unknown options are skipped, as are SYN options in other segments; a
/// malformed list ends at the first invalid option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Maximum segment size (SYN only).
    pub mss: Option<u16>,
    /// Window scale shift (SYN only), at most 14 (RFC 7323 section 2.3).
    pub window_scale: Option<u8>,
    /// SACK permitted (SYN only).
    pub sack_permitted: bool,
    /// SACK blocks, left and right edge; unused ones are `None`.
    pub sack: [Option<(u32, u32)>; 4],
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Offset of the data, from the frame's first byte.
    pub payload_offset: usize,
    /// Bytes of data. With UDP segmentation, those of all datagrams together.
    pub payload_len: usize,
}

/// The fixed part of an ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Bytes 4 to 6: identifier of an echo.
    pub ident: u16,
    /// Bytes 6 to 8: sequence number of an echo.
    pub seq: u16,
    /// Offset of the data after the first eight bytes, from the frame's first byte.
    pub payload_offset: usize,
    /// Bytes of data after the first eight.
    pub payload_len: usize,
}

/// The reason why a frame is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is shorter than its headers.
    #[error("{0} bytes are too few for the headers")]
    Truncated(usize),
    /// The EtherType is neither ARP, IPv4 nor IPv6.
    #[error("unknown EtherType {0:#06x}")]
    EtherType(u16),
    /// Version, header length or total length are inconsistent, or the IPv4 header checksum is wrong.
    #[error("inconsistent IP header")]
    IpHeader,
    /// Upper-layer lengths are inconsistent, or the checksum is wrong where it is verified ([`parse()`] does not).
    #[error("inconsistent header of protocol {0}")]
    Transport(u8),
    /// The headers are longer than [`HEAD`].
    #[error("headers longer than {HEAD} bytes")]
    TooManyHeaders,
}

/// RFC 7323 section 2.3: a larger shift is treated as this one.
const MAX_WINDOW_SCALE: u8 = 14;
