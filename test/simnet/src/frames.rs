//! Packets as values, which tests build by struct update syntax, and a strict parser.
//!
//! The code is independent of `pontoon_wire`, so that a second implementation of the RFCs checks the engine's frames.

use core::net::{IpAddr, SocketAddr};

use pontoon_wire::Mac;
use pontoon_wire::frame::Flags;
use pontoon_wire::protocol;
use pontoon_wire::vnet::{Checksum, Offload, Segmentation};

pub use crate::segment::Segment;

/// Length of an Ethernet header in bytes.
pub const ETHERNET: usize = 14;

/// The flag URG. The engine delivers urgent data in line.
pub const URG: Flags = Flags(0x20);

/// A UDP datagram with its IP addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source address and port of the datagram.
    pub from: SocketAddr,
    /// Destination address and port of the datagram.
    pub to: SocketAddr,
    /// UDP payload of the datagram.
    pub payload: Vec<u8>,
}

/// An ICMP or ICMPv6 message with its IP addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IcmpMessage {
    /// Source address of the IP packet.
    pub from: IpAddr,
    /// Destination address of the IP packet.
    pub to: IpAddr,
    /// Field type of the ICMP header.
    pub kind: u8,
    /// Field code of the ICMP header.
    pub code: u8,
    /// Bytes of the message after the checksum.
    pub rest: Vec<u8>,
}

/// The packet in an Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A TCP segment.
    Tcp(Segment),
    /// A UDP datagram.
    Udp(Datagram),
    /// An ICMP or ICMPv6 message.
    Icmp(IcmpMessage),
    /// Another EtherType or IP protocol (or an IP fragment), by its number, with the bytes after the header.
    Other(u16, Vec<u8>),
}

/// Source and destination Ethernet address of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtherAddresses {
    /// Source Ethernet address.
    pub source: Mac,
    /// Destination Ethernet address.
    pub destination: Mac,
}

impl Packet {
    /// Returns the frame of this packet, with complete checksums.
    #[must_use]
    pub fn emit(&self, ether: EtherAddresses) -> Vec<u8> {
        self.build(ether, Form::Complete).0
    }

    /// Returns the frame of this packet with a partial TCP or UDP checksum (VIRTIO_NET_HDR_F_NEEDS_CSUM).
    #[must_use]
    pub fn emit_partial(&self, ether: EtherAddresses, segmentation: Segmentation) -> (Offload, Vec<u8>) {
        let (frame, checksum) = self.build(ether, Form::Partial);
        (
            Offload {
                checksum,
                segmentation,
            },
            frame,
        )
    }

    fn build(&self, ether: EtherAddresses, form: Form) -> (Vec<u8>, Checksum) {
        let (from, to, number, mut body, field) = match self {
            Self::Tcp(tcp) => (tcp.from.ip(), tcp.to.ip(), protocol::TCP, tcp.bytes(), 16),
            Self::Udp(udp) => (udp.from.ip(), udp.to.ip(), protocol::UDP, udp.bytes(), 6),
            Self::Icmp(icmp) => {
                let number = match icmp.from {
                    IpAddr::V4(_) => protocol::ICMP,
                    IpAddr::V6(_) => protocol::ICMPV6,
                };
                (icmp.from, icmp.to, number, icmp.bytes(), 2)
            }
            Self::Other(ethertype, bytes) => {
                return (ethernet(ether, *ethertype, bytes), Checksum::Complete);
            }
        };
        let pseudo = match number {
            protocol::ICMP => 0,
            number => pseudo(from, to, number, body.len()),
        };
        let sum = match form {
            Form::Complete => match !fold(pseudo + sum(&body)) {
                0 if number == protocol::UDP => 0xffff,
                sum => sum,
            },
            Form::Partial => fold(pseudo),
        };
        body[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        let (ethertype, header) = ip_header(from, to, number, body.len());
        let start = (ETHERNET + header.len()) as u16;
        let frame = ethernet(ether, ethertype, &[header, body].concat());
        let checksum = match form {
            Form::Complete => Checksum::Complete,
            Form::Partial => Checksum::Partial {
                start,
                offset: field as u16,
            },
        };
        (frame, checksum)
    }

    /// Parses a frame. Every length and checksum must be correct, and a partial checksum must be that of the
    /// pseudo-header.
    ///
    /// # Errors
    /// A description of the first error in the frame.
    pub fn parse(offload: Offload, frame: &[u8]) -> Result<(EtherAddresses, Self), String> {
        if frame.len() < ETHERNET {
            return Err(format!("frame of {} bytes", frame.len()));
        }
        let ether = EtherAddresses {
            destination: mac(&frame[..6]),
            source: mac(&frame[6..12]),
        };
        let ethertype = be16(&frame[12..]);
        let packet = match ethertype {
            0x0800 | 0x86dd => Self::parse_ip(offload, ethertype, &frame[ETHERNET..])?,
            other => Self::Other(other, frame[ETHERNET..].to_vec()),
        };
        Ok((ether, packet))
    }

    fn parse_ip(offload: Offload, ethertype: u16, bytes: &[u8]) -> Result<Self, String> {
        let ip = IpHeader::parse(ethertype, bytes)?;
        let body = &bytes[ip.len..];
        let field = match (ip.protocol, ip.fragment) {
            (protocol::TCP, false) => 16,
            (protocol::UDP, false) => 6,
            (protocol::ICMP | protocol::ICMPV6, false) => 2,
            _ => return Ok(Self::Other(ethertype, bytes.to_vec())),
        };
        if body.len() < field + 2 {
            return Err(format!("{} bytes of protocol {}", body.len(), ip.protocol));
        }
        let pseudo = match ip.protocol {
            protocol::ICMP => 0,
            number => pseudo(ip.from, ip.to, number, body.len()),
        };
        match offload.checksum {
            Checksum::Complete
                if ip.protocol == protocol::UDP && ip.from.is_ipv4() && be16(&body[6..]) == 0 => {}
            Checksum::Complete if fold(pseudo + sum(body)) != 0xffff => {
                return Err(format!("checksum of protocol {} is wrong", ip.protocol));
            }
            Checksum::Complete => {}
            Checksum::Partial { start, offset } => {
                if (usize::from(start), usize::from(offset)) != (ETHERNET + ip.len, field) {
                    return Err(format!("partial checksum at {start}+{offset}"));
                }
                if be16(&body[field..]) != fold(pseudo) {
                    return Err("partial checksum is not the pseudo-header's sum".into());
                }
            }
        }
        match ip.protocol {
            protocol::TCP => Segment::parse(ip.from, ip.to, body).map(Self::Tcp),
            protocol::UDP => Datagram::parse(ip.from, ip.to, body).map(Self::Udp),
            _ => Ok(Self::Icmp(IcmpMessage {
                from: ip.from,
                to: ip.to,
                kind: body[0],
                code: body[1],
                rest: body[4..].to_vec(),
            })),
        }
    }
}

impl Datagram {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.payload.len());
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(((8 + self.payload.len()) as u16).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(&self.payload);
        bytes
    }

    fn parse(from: IpAddr, to: IpAddr, body: &[u8]) -> Result<Self, String> {
        if usize::from(be16(&body[4..])) != body.len() {
            return Err(format!("UDP length {} of {}", be16(&body[4..]), body.len()));
        }
        Ok(Self {
            from: (from, be16(body)).into(),
            to: (to, be16(&body[2..])).into(),
            payload: body[8..].to_vec(),
        })
    }
}

impl IcmpMessage {
    fn bytes(&self) -> Vec<u8> {
        [&[self.kind, self.code, 0, 0], &self.rest[..]].concat()
    }
}

/// IP version, addresses and protocol from the header of an IP packet.
struct IpHeader {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    fragment: bool,
    len: usize,
}

impl IpHeader {
    fn parse(ethertype: u16, bytes: &[u8]) -> Result<Self, String> {
        if ethertype == 0x0800 {
            if bytes.len() < 20 || bytes[0] != 0x45 {
                return Err("IPv4 header is not of 20 bytes".into());
            }
            if usize::from(be16(&bytes[2..])) != bytes.len() {
                return Err(format!("IPv4 length {} of {}", be16(&bytes[2..]), bytes.len()));
            }
            if fold(sum(&bytes[..20])) != 0xffff {
                return Err("IPv4 header checksum is wrong".into());
            }
            let address = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).map(IpAddr::from);
            Ok(Self {
                from: address(12).map_err(|error| error.to_string())?,
                to: address(16).map_err(|error| error.to_string())?,
                protocol: bytes[9],
                fragment: be16(&bytes[6..]) & 0x3fff != 0,
                len: 20,
            })
        } else {
            if bytes.len() < 40 || bytes[0] >> 4 != 6 {
                return Err("no IPv6 header".into());
            }
            if 40 + usize::from(be16(&bytes[4..])) != bytes.len() {
                return Err(format!("IPv6 length 40+{} of {}", be16(&bytes[4..]), bytes.len()));
            }
            let address = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).map(IpAddr::from);
            Ok(Self {
                from: address(8).map_err(|error| error.to_string())?,
                to: address(24).map_err(|error| error.to_string())?,
                protocol: bytes[6],
                fragment: bytes[6] == 44,
                len: 40,
            })
        }
    }
}

/// The checksum of an emitted frame: complete, or partial for offload.
#[derive(Clone, Copy)]
enum Form {
    Complete,
    Partial,
}

fn ethernet(ether: EtherAddresses, ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET + body.len());
    frame.extend(ether.destination.0);
    frame.extend(ether.source.0);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(body);
    frame
}

fn ip_header(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> (u16, Vec<u8>) {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0];
            header.extend(((20 + len) as u16).to_be_bytes());
            header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let check = !fold(sum(&header));
            header[10..12].copy_from_slice(&check.to_be_bytes());
            (0x0800, header)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend((len as u16).to_be_bytes());
            header.extend([protocol, 64]);
            header.extend(from.octets());
            header.extend(to.octets());
            (0x86dd, header)
        }
        (from, to) => panic!("{from} and {to} are of two families"),
    }
}

fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> u64 {
    let addresses = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => sum(&from.octets()) + sum(&to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => sum(&from.octets()) + sum(&to.octets()),
        (from, to) => panic!("{from} and {to} are of two families"),
    };
    addresses + u64::from(protocol) + len as u64
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |&last| u64::from(last) << 8);
    words.map(|word| u64::from(be16(word))).sum::<u64>() + odd
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

pub(crate) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn mac(bytes: &[u8]) -> Mac {
    let mut mac = [0; 6];
    mac.copy_from_slice(&bytes[..6]);
    Mac(mac)
}
