//! Encodes the headers of frames that the engine sends to the guest.
//!
//! A [`Head`] contains all headers in front of the payload. A TCP or UDP header carries a partial checksum (the
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

/// Length in bytes of the longest headers: Ethernet, IPv6, and TCP with 40 bytes of options.
const ROOM: usize = 14 + 40 + 60;

/// The encoded headers of a frame to the guest: Ethernet, IP and, if there is one, TCP or UDP.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; ROOM],
    len: usize,
    /// State of the TCP or UDP checksum, which the link passes on as offload metadata or completes.
    pub checksum: Checksum,
}

impl Head {
    /// Returns the encoded headers, from the first byte of the Ethernet header.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Source and destination address of an Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct Ether {
    /// Source: the engine's Ethernet address.
    pub source: Mac,
    /// Destination: the guest's Ethernet address.
    pub destination: Mac,
}

/// Fields of an IPv4 or IPv6 header to encode. Both addresses are of the same family.
#[derive(Clone, Copy, Debug)]
pub struct Ip {
    /// Source address of the packet to the guest: a remote host's or the engine's.
    pub source: IpAddr,
    /// Destination address of the packet: the guest's.
    pub destination: IpAddr,
    /// TTL (IPv4) or hop limit (IPv6).
    pub hop_limit: u8,
    /// DSCP and ECN: the IPv4 field Type of Service, the IPv6 field Traffic Class.
    pub traffic_class: u8,
    /// DF bit of IPv4. If it is set, the identification is 0 (RFC 6864 section 4.1).
    pub dont_fragment: bool,
    /// IPv4 identification; encoded only if DF is not set.
    pub ident: u16,
}

/// Fields of a TCP header to encode.
#[derive(Clone, Copy, Debug)]
pub struct TcpFields<'a> {
    /// Source port of the segment, the remote host's.
    pub source_port: u16,
    /// Destination port of the segment, the guest's.
    pub destination_port: u16,
    /// Sequence number of the segment.
    pub seq: u32,
    /// Acknowledgement number of the segment.
    pub ack: u32,
    /// TCP flags (control bits) of the segment.
    pub flags: Flags,
    /// Window field as encoded: the receive window after the right shift by the window scale.
    pub window: u16,
    /// Options of a SYN or SYN-ACK; `None` in other segments.
    pub syn: Option<SynOptions>,
    /// Edges (left, right) of SACK blocks (RFC 2018); more than four do not fit and are not encoded.
    pub sack: &'a [(u32, u32)],
}

/// TCP options of a SYN or SYN-ACK that the engine sends.
#[derive(Clone, Copy, Debug)]
pub struct SynOptions {
    /// Content of the option Maximum Segment Size, in bytes.
    pub mss: u16,
    /// Shift of the window scale option (RFC 7323); `None` if the guest's SYN had no such option.
    pub window_scale: Option<u8>,
    /// True if the SACK-permitted option (RFC 2018) is present.
    pub sack_permitted: bool,
}

/// Returns the headers of a TCP segment whose payload of `payload_len` bytes follows.
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

/// Returns the headers of a UDP datagram, or of a super-frame of several, whose payload of `payload_len` bytes follows.
///
/// The packet must not exceed 65,535 bytes. The length fields of a super-frame cover all its datagrams, as Linux
/// requires.
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

/// Returns Ethernet and IP headers; `payload_len` bytes of `protocol` follow: an ICMP message or a complete UDP
/// datagram.
#[must_use]
pub fn ip(ether: Ether, ip: Ip, protocol: u8, payload_len: usize) -> Head {
    let mut head = Head::new(ether);
    head.ip(&ip, ip.whole(), protocol, payload_len);
    head
}

/// Returns the Ethernet and IP headers of an IP fragment that contains `payload_len` bytes of a packet of `protocol`.
///
/// The identification is that of `fragment` (its lower 16 bits for IPv4), the offset must be a multiple of 8, and DF is
/// not set. The first fragment contains the transport checksum, which must be complete.
#[must_use]
pub fn fragment(ether: Ether, ip: Ip, protocol: u8, fragment: Fragment, payload_len: usize) -> Head {
    let mut head = Head::new(ether);
    match (ip.source, ip.destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => head.ip(&ip, Ipv4Identity::of(fragment), protocol, payload_len),
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

/// Second 32-bit word of an IPv4 header: identification, flags and fragment offset (RFC 791 section 3.1).
#[derive(Clone, Copy)]
struct Ipv4Identity {
    ident: u16,
    flags_offset: u16,
}

impl Ipv4Identity {
    fn of(fragment: Fragment) -> Self {
        let [_, _, high, low] = fragment.id.to_be_bytes();
        Self {
            ident: u16::from_be_bytes([high, low]),
            flags_offset: units(fragment) | if fragment.more { layout::Ipv4Header::MF } else { 0 },
        }
    }
}

impl Ip {
    /// Returns identification and flags of an IPv4 packet that is not a fragment.
    const fn whole(&self) -> Ipv4Identity {
        if self.dont_fragment {
            Ipv4Identity {
                ident: 0,
                flags_offset: layout::Ipv4Header::DF,
            }
        } else {
            Ipv4Identity {
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

    /// Appends the IP header, and writes its EtherType into the Ethernet header.
    fn ip(&mut self, ip: &Ip, identity: Ipv4Identity, protocol: u8, payload_len: usize) {
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

    /// Appends a TCP or UDP header with a partial checksum. `header` encodes it, given the content of the checksum
    /// field: the sum of the pseudo-header.
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

/// Encoded TCP options, padded with NOP to a multiple of four bytes.
struct EncodedOptions {
    bytes: [u8; 40],
    len: usize,
}

impl EncodedOptions {
    /// Encodes the options of a SYN, or else SACK blocks. A SYN has no SACK blocks, and both together would not fit.
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

/// Converts a length to a 16-bit header field. Callers ensure that the length is below 65,536.
#[inline]
fn field(len: usize) -> u16 {
    debug_assert!(len <= 0xffff, "{len} does not fit into 16 bits");
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// Returns the offset of a fragment in the unit of the header's 13-bit field, 8 bytes (RFC 791, RFC 8200 section 4.5).
fn units(fragment: Fragment) -> u16 {
    debug_assert!(
        fragment.offset.is_multiple_of(8) && fragment.offset <= 0xffff,
        "fragment offset {} is not a multiple of 8 below 65,536",
        fragment.offset
    );
    u16::try_from(fragment.offset / 8).unwrap_or(u16::MAX) & layout::Ipv4Header::OFFSET
}

/// The no-operation TCP option (RFC 9293 section 3.1).
const NOP: u8 = 1;

/// Byte offset of the EtherType in an Ethernet frame.
const ETHER_TYPE: usize = mem::offset_of!(layout::EthernetHeader, ether_type);
