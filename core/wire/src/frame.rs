//! Types of parsed frames: the header fields of Ethernet, IP, TCP, UDP and ICMP that the engine uses.

use core::net::IpAddr;

mod parse;
#[cfg(test)]
mod tests;

pub use parse::parse;

/// Number of bytes at the beginning of a frame that links copy to private memory before parsing. It exceeds the longest
/// chain of headers that [`parse()`] accepts.
pub const HEAD: usize = 256;

/// The parsed headers of a frame from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedFrame {
    /// Source address of the Ethernet header.
    pub source: crate::Mac,
    /// Destination address of the Ethernet header.
    pub destination: crate::Mac,
    /// The packet behind the Ethernet header.
    pub body: Body,
}

/// The packet behind an Ethernet header: ARP or IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// An ARP packet, which is not parsed further; it begins at byte 14 of the frame.
    Arp,
    /// An IPv4 or IPv6 packet with its upper-layer header.
    Ip(Ip, Transport),
}

/// The fields of an IPv4 header, or of an IPv6 header with its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source address in the IP header, as the guest has sent it.
    pub source: IpAddr,
    /// Destination address, before any translation by the engine.
    pub destination: IpAddr,
    /// TTL (IPv4) or hop limit (IPv6).
    pub hop_limit: u8,
    /// DSCP and ECN: the IPv4 field Type of Service, the IPv6 field Traffic Class.
    pub traffic_class: u8,
    /// DF bit of IPv4; true for IPv6, which routers do not fragment.
    pub dont_fragment: bool,
    /// Protocol number of the upper layer, behind IPv6 extension headers.
    pub protocol: u8,
    /// Position of the fragment, if the packet is one. The transport is [`Transport::Fragment`] then.
    pub fragment: Option<Fragment>,
    /// Offset of the upper-layer header, from the frame's first byte.
    pub payload_offset: usize,
    /// Bytes of upper-layer header and data, according to the IP header's length field; never beyond the frame's end.
    pub payload_len: usize,
}

/// Position of an IP fragment in the original packet (RFC 791, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification: 16 bits in IPv4, 32 bits in IPv6.
    pub id: u32,
    /// Offset of the fragment's payload in the original packet's payload, in bytes.
    pub offset: u32,
    /// True if the More Fragments flag is set, so that this is not the last fragment.
    pub more: bool,
}

/// The upper-layer header of an IP packet. Payload offsets count from the frame's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The packet is a TCP segment.
    Tcp(Tcp),
    /// The packet is a UDP datagram.
    Udp(Udp),
    /// An ICMP or ICMPv6 message, according to `Ip::protocol`; it begins at `Ip::payload_offset`.
    Icmp(Icmp),
    /// An IP fragment, whose upper-layer header is parsed after reassembly.
    Fragment,
    /// A packet of an upper-layer protocol that the engine does not parse, SCTP for example.
    Other,
}

/// The header fields of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port of the segment, the guest's.
    pub source_port: u16,
    /// Destination port of the segment, the remote host's.
    pub destination_port: u16,
    /// Sequence number of the first data byte, or of the SYN.
    pub seq: u32,
    /// Acknowledgement number; valid if [`Flags::ACK`] is set.
    pub ack: u32,
    /// TCP flags (control bits).
    pub flags: Flags,
    /// Window field as received, before the left shift by the window scale.
    pub window: u16,
    /// TCP options of the segment.
    pub options: TcpOptions,
    /// Offset of the segment's data, from the frame's first byte.
    pub payload_offset: usize,
    /// Number of data bytes in the segment.
    pub payload_len: usize,
}

/// The TCP flags CWR to FIN: byte 13 of the TCP header, counted from 0 (RFC 9293 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The flag FIN: the sender has no more data.
    pub const FIN: Self = Self(0x01);
    /// The flag SYN: opens a connection by synchronizing sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// The flag RST: resets the connection.
    pub const RST: Self = Self(0x04);
    /// The flag PSH: the receiver should pass the data to its user.
    pub const PSH: Self = Self(0x08);
    /// The flag ACK: the acknowledgement number is valid.
    pub const ACK: Self = Self(0x10);

    /// Returns true if every flag of `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of two sets of flags.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The TCP options that the engine supports. Unknown options are skipped, as are MSS, window scale and SACK-permitted
/// options of segments without SYN; parsing ends at the first malformed option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Maximum segment size (SYN only).
    pub mss: Option<u16>,
    /// Shift of the window scale option (SYN only), at most 14 (RFC 7323 section 2.3).
    pub window_scale: Option<u8>,
    /// True if the SACK-permitted option is present (SYN only).
    pub sack_permitted: bool,
    /// SACK blocks as (left edge, right edge); `None` where there are fewer than four.
    pub sack: [Option<(u32, u32)>; 4],
}

/// The header fields of a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port of the datagram, the guest's.
    pub source_port: u16,
    /// Destination port of the datagram, the remote host's.
    pub destination_port: u16,
    /// Offset of the datagram's data, from the frame's first byte.
    pub payload_offset: usize,
    /// Number of data bytes. In a UDP super-frame, those of all datagrams together.
    pub payload_len: usize,
}

/// The first eight bytes of an ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// Bytes 4 and 5 of the message: the identifier of an echo request or reply.
    pub ident: u16,
    /// Bytes 6 and 7 of the message: the sequence number of an echo request or reply.
    pub seq: u16,
    /// Offset of the bytes behind the message's first eight, from the frame's first byte.
    pub payload_offset: usize,
    /// Number of message bytes behind the first eight.
    pub payload_len: usize,
}

/// The reason why [`parse()`] refuses a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is shorter than its headers.
    #[error("{0} bytes are too few for the headers")]
    Truncated(usize),
    /// The EtherType is neither ARP, IPv4 nor IPv6.
    #[error("unknown EtherType {0:#06x}")]
    EtherType(u16),
    /// IP version, header length or total length are inconsistent, or the IPv4 header checksum is wrong.
    #[error("inconsistent IP header")]
    IpHeader,
    /// Upper-layer lengths are inconsistent, or the checksum is wrong where it is verified ([`parse()`] does not).
    #[error("inconsistent header of protocol {0}")]
    Transport(u8),
    /// The headers are longer than [`HEAD`].
    #[error("headers longer than {HEAD} bytes")]
    TooManyHeaders,
}

/// Largest window scale shift; a larger one in a SYN is treated as 14 (RFC 7323 section 2.3).
const MAX_WINDOW_SCALE: u8 = 14;
