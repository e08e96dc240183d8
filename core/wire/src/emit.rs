//! Encodes the header blocks of frames to the guest.
//!
//! A block contains everything in front of the payload. TCP and UDP blocks carry a partial checksum (the
//! pseudo-header's sum), which the link or the guest completes.

use core::mem;
use core::net::IpAddr;

use zerocopy::{Immutable, IntoBytes};

use crate::checksum::{self, Sum};
use crate::frame::{Flags, Fragment};
use crate::layout::{self, ether_type, extension};
use crate::vnet::Checksum;
use crate::{Mac, protocol};

#[cfg(test)]
mod tests;

/// Bytes of the longest block: Ethernet, IPv6, TCP with 40 bytes of options.
const ROOM: usize = 14 + 40 + 60;

/// A header block.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; ROOM],
    len: usize,
    /// The checksum's state, for the link.
    pub checksum: Checksum,
}

impl Head {
    /// Returns the block's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Addresses of the Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct Ether {
    /// Source: the engine's address.
    pub source: Mac,
    /// Destination: the guest's address.
    pub destination: Mac,
}

/// Fields of the IP header. Both addresses are of one family.
#[derive(Clone, Copy, Debug)]
pub struct Ip {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// IPv4: the DF bit (with it, identification is 0: RFC 6864 section 4.1).
    pub dont_fragment: bool,
    /// IPv4 identification, used without DF.
    pub ident: u16,
}

/// Fields of the TCP header.
#[derive(Clone, Copy, Debug)]
pub struct TcpFields<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags.
    pub flags: Flags,
    /// Window field, already scaled.
    pub window: u16,
    /// SYN options: MSS, window scale, SACK permitted.
    pub syn: Option<Syn>,
    /// SACK blocks, at most four.
    pub sack: &'a [(u32, u32)],
}

/// Options of a SYN or SYN-ACK from the engine.
#[derive(Clone, Copy, Debug)]
pub struct Syn {
    /// Maximum segment size.
    pub mss: u16,
    /// Window scale; `None` if the guest offered none.
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
}

/// Returns the headers of a TCP segment with `payload_len` bytes of data to follow.
///
/// The packet must not exceed 65,535 bytes: `payload_len` is at most the link's limit minus the headers.
#[must_use]
pub fn tcp(ether: Ether, ip: Ip, tcp: TcpFields<'_>, payload_len: usize) -> Head {
    let options = EncodedOptions::new(&tcp);
    let header_len = size_of::<layout::TcpHeader>() + options.len;
    let mut head = Head::new(ether);
    head.ip(&ip, ip.whole(), protocol::TCP, header_len + payload_len);
    head.partial(
        &ip,
        protocol::TCP,
        header_len + payload_len,
        mem::offset_of!(layout::TcpHeader, checksum),
        |checksum| layout::TcpHeader {
            source_port: tcp.source_port.into(),
            destination_port: tcp.destination_port.into(),
            seq: tcp.seq.into(),
            ack: tcp.ack.into(),
            data_offset: field(header_len * 4).to_be_bytes()[1],
            flags: tcp.flags.0,
            window: tcp.window.into(),
            checksum,
            urgent: 0.into(),
        },
    );
    head.push(&options.bytes[..options.len]);
    head
}

/// Returns the headers of a UDP datagram (or of a super-frame of several) with `payload_len` bytes of data to follow.
///
/// The packet must not exceed 65,535 bytes. A super-frame's length fields cover all of it, as Linux requires.
#[must_use]
pub fn udp(ether: Ether, ip: Ip, source_port: u16, destination_port: u16, payload_len: usize) -> Head {
    let len = size_of::<layout::UdpHeader>() + payload_len;
    let mut head = Head::new(ether);
    head.ip(&ip, ip.whole(), protocol::UDP, len);
    head.partial(
        &ip,
        protocol::UDP,
        len,
        mem::offset_of!(layout::UdpHeader, checksum),
        |checksum| layout::UdpHeader {
            source_port: source_port.into(),
            destination_port: destination_port.into(),
            length: field(len).into(),
            checksum,
        },
    );
    head
}

/// Returns Ethernet and IP headers for `protocol` with `payload_len` bytes to follow (ICMP, or a complete datagram).
#[must_use]
pub fn ip(ether: Ether, ip: Ip, protocol: u8, payload_len: usize) -> Head {
    let mut head = Head::new(ether);
    head.ip(&ip, ip.whole(), protocol, payload_len);
    head
}

/// Returns Ethernet and IP headers of a fragment with `payload_len` bytes of `protocol` to follow.
///
/// The identification is that of `fragment` (its lower 16 bits for IPv4), the offset must be a multiple of 8, and DF is
/// not set. The transport checksum, which is in the first fragment, must be complete.
#[must_use]
pub fn fragment(ether: Ether, ip: Ip, protocol: u8, fragment: Fragment, payload_len: usize) -> Head {
    let mut head = Head::new(ether);
    match (ip.source, ip.destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => head.ip(&ip, Identity::of(fragment), protocol, payload_len),
        (IpAddr::V6(_), _) | (_, IpAddr::V6(_)) => {
            let header_len = size_of::<layout::FragmentHeader>();
            head.ip(&ip, ip.whole(), extension::FRAGMENT, header_len + payload_len);
            head.push(
                layout::FragmentHeader {
                    next_header: protocol,
                    reserved: 0,
                    offset_more: ((units(fragment) << 3) | u16::from(fragment.more)).into(),
                    id: fragment.id.into(),
                }
                .as_bytes(),
            );
        }
    }
    head
}

/// An IPv4 header's second word: identification, flags and fragment offset.
#[derive(Clone, Copy)]
struct Identity {
    ident: u16,
    flags_offset: u16,
}

impl Identity {
    fn of(fragment: Fragment) -> Self {
        let [_, _, high, low] = fragment.id.to_be_bytes();
        Self {
            ident: u16::from_be_bytes([high, low]),
            flags_offset: units(fragment) | if fragment.more { layout::Ipv4Header::MF } else { 0 },
        }
    }
}

impl Ip {
    /// Returns the identity of an unfragmented packet.
    const fn whole(&self) -> Identity {
        if self.dont_fragment {
            Identity {
                ident: 0,
                flags_offset: layout::Ipv4Header::DF,
            }
        } else {
            Identity {
                ident: self.ident,
                flags_offset: 0,
            }
        }
    }
}

impl Head {
    fn new(ether: Ether) -> Self {
        let mut head = Self {
            bytes: [0; ROOM],
            len: 0,
            checksum: Checksum::Complete,
        };
        head.push(
            layout::EthernetHeader {
                destination: ether.destination.0,
                source: ether.source.0,
                ether_type: 0.into(),
            }
            .as_bytes(),
        );
        head
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends the IP header and sets the EtherType.
    fn ip(&mut self, ip: &Ip, identity: Identity, protocol: u8, payload_len: usize) {
        let ether_type = match (ip.source, ip.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = layout::Ipv4Header {
                    version_length: 0x45,
                    traffic_class: ip.traffic_class,
                    total_length: field(size_of::<layout::Ipv4Header>() + payload_len).into(),
                    ident: identity.ident.into(),
                    flags_offset: identity.flags_offset.into(),
                    ttl: ip.hop_limit,
                    protocol,
                    checksum: [0; 2],
                    source: source.octets(),
                    destination: destination.octets(),
                };
                header.checksum = Sum::new().add(header.as_bytes()).finish().to_be_bytes();
                self.push(header.as_bytes());
                ether_type::IPV4
            }
            (source, destination) => {
                let header = layout::Ipv6Header {
                    version_class_label: (6 << 28 | u32::from(ip.traffic_class) << 20).into(),
                    payload_length: field(payload_len).into(),
                    next_header: protocol,
                    hop_limit: ip.hop_limit,
                    source: checksum::v6(source).octets(),
                    destination: checksum::v6(destination).octets(),
                };
                self.push(header.as_bytes());
                ether_type::IPV6
            }
        };
        self.bytes[ETHER_TYPE..ETHER_TYPE + 2].copy_from_slice(&ether_type.to_be_bytes());
    }

    /// Appends a transport header, which `header` returns for the content of its checksum field, the pseudo-header's
    /// sum.
    fn partial<T: IntoBytes + Immutable>(
        &mut self,
        ip: &Ip,
        protocol: u8,
        len: usize,
        offset: usize,
        header: impl FnOnce([u8; 2]) -> T,
    ) {
        self.checksum = Checksum::Partial {
            start: field(self.len),
            offset: field(offset),
        };
        let sum = Sum::pseudo(ip.source, ip.destination, protocol, len).partial();
        self.push(header(sum.to_be_bytes()).as_bytes());
    }
}

/// A list of TCP options, padded to whole words.
struct EncodedOptions {
    bytes: [u8; 40],
    len: usize,
}

impl EncodedOptions {
    /// Encodes a SYN's options, or else SACK blocks: a SYN has none, and both together would not fit.
    fn new(tcp: &TcpFields<'_>) -> Self {
        let mut options = Self {
            bytes: [0; 40],
            len: 0,
        };
        if let Some(syn) = tcp.syn {
            let [high, low] = syn.mss.to_be_bytes();
            options.push([2, 4, high, low]);
            if let Some(shift) = syn.window_scale {
                options.push([NOP, 3, 3, shift]);
            }
            if syn.sack_permitted {
                options.push([NOP, NOP, 4, 2]);
            }
        } else if !tcp.sack.is_empty() {
            let blocks = &tcp.sack[..tcp.sack.len().min(4)];
            let [_, count] = field(blocks.len()).to_be_bytes();
            options.push([NOP, NOP, 5, 2 + 8 * count]);
            for (left, right) in blocks {
                options.push(left.to_be_bytes());
                options.push(right.to_be_bytes());
            }
        }
        options
    }

    #[inline]
    fn push(&mut self, word: [u8; 4]) {
        self.bytes[self.len..self.len + 4].copy_from_slice(&word);
        self.len += 4;
    }
}

/// Converts a length to a header's 16-bit field; callers keep it in range.
#[inline]
fn field(len: usize) -> u16 {
    debug_assert!(len <= 0xffff, "{len} passes its field");
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// Returns a fragment's offset in the 13-bit field of both families, whose unit is 8 bytes.
fn units(fragment: Fragment) -> u16 {
    debug_assert!(
        fragment.offset.is_multiple_of(8) && fragment.offset <= 0xffff,
        "no fragment begins at {}",
        fragment.offset
    );
    u16::try_from(fragment.offset / 8).unwrap_or(u16::MAX) & layout::Ipv4Header::OFFSET
}

/// The no-operation TCP option (RFC 9293 section 3.1).
const NOP: u8 = 1;

/// Offset of the EtherType.
const ETHER_TYPE: usize = mem::offset_of!(layout::EthernetHeader, ether_type);
