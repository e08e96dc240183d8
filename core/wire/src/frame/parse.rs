//! Parses the headers of a frame in one pass.

use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{
    Body, Flags, Fragment, FrameError, Icmp, Ip, MAX_WINDOW_SCALE, ParsedFrame, Tcp, TcpOptions, Transport,
    Udp,
};
use crate::checksum::Sum;
use crate::layout::{self, ether_type, extension};
use crate::{Mac, protocol};

/// Parses the headers of a frame of `len` bytes. `head` contains the whole frame, or its first [`super::HEAD`] bytes.
///
/// Bytes after the IP packet's end (Ethernet padding) are ignored. Transport checksums are not verified: they may be
/// partial, and the data is not available here. A UDP super-frame (virtio's UDP segmentation) is parsed as one datagram
/// with all its data as payload: Linux writes the length of the whole super-frame into the UDP length field
/// (`udp_send_skb` and `udp_gro_complete`, 6.2 and later), as into that of the IP header.
///
/// # Errors
/// The frame is malformed. The offsets and lengths of an accepted frame lie within the frame, so callers need not check
/// them.
pub fn parse(head: &[u8], len: usize) -> Result<ParsedFrame, FrameError> {
    let head = FrameHead::new(head, len);
    let ethernet: &layout::EthernetHeader = head.read(0)?;
    let body = match ethernet.ether_type.get() {
        ether_type::IPV4 => ipv4(head)?,
        ether_type::IPV6 => ipv6(head)?,
        ether_type::ARP => Body::Arp,
        other => return Err(FrameError::EtherType(other)),
    };
    Ok(ParsedFrame {
        source: Mac(ethernet.source),
        destination: Mac(ethernet.destination),
        body,
    })
}

/// The first bytes of a frame or packet with a total length of `len`.
#[derive(Clone, Copy)]
struct FrameHead<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> FrameHead<'a> {
    fn new(bytes: &'a [u8], len: usize) -> Self {
        Self {
            bytes: &bytes[..bytes.len().min(len)],
            len,
        }
    }

    /// Returns the same bytes limited to `end`, because the headers of an IP packet must lie within the packet.
    fn until(self, end: usize) -> Result<Self, FrameError> {
        if end > self.len {
            return Err(FrameError::Truncated(self.len));
        }
        Ok(Self::new(self.bytes, end))
    }

    /// Returns `len` bytes from `offset` on, or an error if they are beyond the end of the headers or of the packet.
    fn slice(self, offset: usize, len: usize) -> Result<&'a [u8], FrameError> {
        self.bytes
            .get(offset..offset + len)
            .ok_or(if offset + len > self.len {
                FrameError::Truncated(self.len)
            } else {
                FrameError::TooManyHeaders
            })
    }

    /// Returns the header of type `T` at `offset`.
    #[inline]
    fn read<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        self,
        offset: usize,
    ) -> Result<&'a T, FrameError> {
        let bytes = self.slice(offset, size_of::<T>())?;
        T::ref_from_bytes(bytes).map_err(|_| FrameError::Truncated(self.len))
    }
}

fn ipv4(head: FrameHead<'_>) -> Result<Body, FrameError> {
    let header: &layout::Ipv4Header = head.read(ETHERNET)?;
    let header_len = usize::from(header.version_length & 0x0f) * 4;
    let total_len = usize::from(header.total_length.get());
    // A total length of 0, which Linux uses internally for BIG TCP, is refused, too.
    if header.version_length >> 4 != 4
        || header_len < size_of::<layout::Ipv4Header>()
        || total_len < header_len
    {
        return Err(FrameError::IpHeader);
    }
    let head = head.until(ETHERNET + total_len)?;
    if Sum::new().add(head.slice(ETHERNET, header_len)?).finish() != 0 {
        return Err(FrameError::IpHeader);
    }
    let flags_offset = header.flags_offset.get();
    let fragment = Fragment {
        id: header.ident.get().into(),
        offset: u32::from(flags_offset & layout::Ipv4Header::OFFSET) * 8,
        more: flags_offset & layout::Ipv4Header::MF != 0,
    };
    let ip = Ip {
        source: Ipv4Addr::from(header.source).into(),
        destination: Ipv4Addr::from(header.destination).into(),
        hop_limit: header.ttl,
        traffic_class: header.traffic_class,
        dont_fragment: flags_offset & layout::Ipv4Header::DF != 0,
        protocol: header.protocol,
        fragment: (fragment.offset > 0 || fragment.more).then_some(fragment),
        payload_offset: ETHERNET + header_len,
        payload_len: total_len - header_len,
    };
    Ok(Body::Ip(ip, transport(head, &ip, protocol::ICMP)?))
}

fn ipv6(head: FrameHead<'_>) -> Result<Body, FrameError> {
    let header: &layout::Ipv6Header = head.read(ETHERNET)?;
    let word = header.version_class_label.get();
    if word >> 28 != 6 {
        return Err(FrameError::IpHeader);
    }
    let first = ETHERNET + size_of::<layout::Ipv6Header>();
    // A payload length of 0 (a jumbogram, RFC 2675) leaves no room for headers, so the packet is refused if there is a
    // next header.
    let end = first + usize::from(header.payload_length.get());
    let head = head.until(end)?;
    let chain = walk(head, header.next_header, first)?;
    let ip = Ip {
        source: Ipv6Addr::from(header.source).into(),
        destination: Ipv6Addr::from(header.destination).into(),
        hop_limit: header.hop_limit,
        traffic_class: (word >> 20).to_be_bytes()[3],
        dont_fragment: true,
        protocol: chain.protocol,
        fragment: chain.fragment,
        payload_offset: chain.end,
        payload_len: end - chain.end,
    };
    Ok(Body::Ip(ip, transport(head, &ip, protocol::ICMPV6)?))
}

/// The end of a chain of IPv6 extension headers: the upper-layer protocol, its offset, and the fragment header if there
/// is one.
struct ExtensionChain {
    protocol: u8,
    fragment: Option<Fragment>,
    end: usize,
}

/// Parses the IPv6 extension headers (RFC 8200 section 4) from `offset` on; `next` is the type of the first one.
///
/// Parsing ends at a fragment header, because the rest is a fragment of a packet. The exception is an atomic fragment,
/// which contains the whole packet (RFC 6946).
fn walk(head: FrameHead<'_>, next: u8, offset: usize) -> Result<ExtensionChain, FrameError> {
    let first = offset;
    let mut chain = ExtensionChain {
        protocol: next,
        fragment: None,
        end: offset,
    };
    let mut atomic = false;
    loop {
        let header_len = match chain.protocol {
            // A hop-by-hop options header is allowed only as the first extension header (RFC 8200 section 4.1).
            extension::HOP_BY_HOP if chain.end != first => return Err(FrameError::IpHeader),
            extension::HOP_BY_HOP | extension::DESTINATION_OPTIONS => {
                let header: &layout::ExtensionHeader = head.read(chain.end)?;
                chain.protocol = header.next_header;
                (usize::from(header.length) + 1) * 8
            }
            extension::ROUTING => {
                let header: &layout::ExtensionHeader = head.read(chain.end)?;
                // With segments left, the final destination would differ from the one in the IP header, which the
                // policy checks.
                if header.segments_left != 0 {
                    return Err(FrameError::IpHeader);
                }
                chain.protocol = header.next_header;
                (usize::from(header.length) + 1) * 8
            }
            extension::AUTHENTICATION => {
                let header: &layout::ExtensionHeader = head.read(chain.end)?;
                // The fixed part alone has three 32-bit words (RFC 4302 section 2.2).
                if header.length == 0 {
                    return Err(FrameError::IpHeader);
                }
                chain.protocol = header.next_header;
                (usize::from(header.length) + 2) * 4
            }
            extension::FRAGMENT => {
                let header: &layout::FragmentHeader = head.read(chain.end)?;
                // A fragment of a fragment is refused, because no host sends one.
                if atomic || header.next_header == extension::FRAGMENT {
                    return Err(FrameError::IpHeader);
                }
                let offset_more = header.offset_more.get();
                let fragment = Fragment {
                    id: header.id.get(),
                    offset: u32::from(offset_more & layout::FragmentHeader::OFFSET),
                    more: offset_more & layout::FragmentHeader::MORE != 0,
                };
                chain.protocol = header.next_header;
                if fragment.offset > 0 || fragment.more {
                    chain.fragment = Some(fragment);
                    chain.end += size_of::<layout::FragmentHeader>();
                    return Ok(chain);
                }
                atomic = true;
                size_of::<layout::FragmentHeader>()
            }
            _ => return Ok(chain),
        };
        head.slice(chain.end, header_len)?;
        chain.end += header_len;
    }
}

fn transport(head: FrameHead<'_>, ip: &Ip, icmp_protocol: u8) -> Result<Transport, FrameError> {
    if ip.fragment.is_some() {
        return Ok(Transport::Fragment);
    }
    Ok(match ip.protocol {
        protocol::TCP => Transport::Tcp(tcp(head, ip)?),
        protocol::UDP => Transport::Udp(udp(head, ip)?),
        protocol if protocol == icmp_protocol => Transport::Icmp(icmp(head, ip)?),
        _ => Transport::Other,
    })
}

fn tcp(head: FrameHead<'_>, ip: &Ip) -> Result<Tcp, FrameError> {
    let header: &layout::TcpHeader = head.read(ip.payload_offset)?;
    let header_len = usize::from(header.data_offset >> 4) * 4;
    let fixed_len = size_of::<layout::TcpHeader>();
    if header_len < fixed_len || header_len > ip.payload_len {
        return Err(FrameError::Transport(protocol::TCP));
    }
    let list = head.slice(ip.payload_offset + fixed_len, header_len - fixed_len)?;
    let flags = Flags(header.flags);
    Ok(Tcp {
        source_port: header.source_port.get(),
        destination_port: header.destination_port.get(),
        seq: header.seq.get(),
        ack: header.ack.get(),
        flags,
        window: header.window.get(),
        options: options(list, flags),
        payload_offset: ip.payload_offset + header_len,
        payload_len: ip.payload_len - header_len,
    })
}

/// Parses a list of TCP options (RFC 9293 section 3.1). An option of unexpected length is treated as an unknown option.
fn options(mut list: &[u8], flags: Flags) -> TcpOptions {
    let mut options = TcpOptions::default();
    let syn = flags.has(Flags::SYN);
    loop {
        let (kind, rest) = match *list {
            [] | [0, ..] => return options,
            [1, ref after @ ..] => {
                list = after;
                continue;
            }
            [kind, ref rest @ ..] => (kind, rest),
        };
        let Some((value, after)) = rest
            .first()
            .and_then(|len| usize::from(*len).checked_sub(2))
            .and_then(|len| rest[1..].split_at_checked(len))
        else {
            return options;
        };
        match (kind, value) {
            (2, &[high, low]) if syn => options.mss = Some(u16::from_be_bytes([high, low])),
            (3, &[shift]) if syn => options.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (4, []) if syn => options.sack_permitted = true,
            (5, blocks) if blocks.len() % 8 == 0 => {
                let (blocks, _) = blocks.as_chunks::<8>();
                options.sack = [None; 4];
                for (edges, block) in options.sack.iter_mut().zip(blocks) {
                    let [a, b, c, d, e, f, g, h] = *block;
                    *edges = Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
                }
            }
            _ => {}
        }
        list = after;
    }
}

fn udp(head: FrameHead<'_>, ip: &Ip) -> Result<Udp, FrameError> {
    let header: &layout::UdpHeader = head.read(ip.payload_offset)?;
    let header_len = size_of::<layout::UdpHeader>();
    let len = usize::from(header.length.get());
    // A length of 0 would mean a jumbogram (RFC 2675 section 4), which a frame of at most 65,535 bytes cannot contain.
    // A length below that of the IP payload is valid; the remaining bytes are not data (RFC 768).
    if len < header_len || len > ip.payload_len {
        return Err(FrameError::Transport(protocol::UDP));
    }
    Ok(Udp {
        source_port: header.source_port.get(),
        destination_port: header.destination_port.get(),
        payload_offset: ip.payload_offset + header_len,
        payload_len: len - header_len,
    })
}

fn icmp(head: FrameHead<'_>, ip: &Ip) -> Result<Icmp, FrameError> {
    let header: &layout::IcmpHeader = head.read(ip.payload_offset)?;
    let header_len = size_of::<layout::IcmpHeader>();
    Ok(Icmp {
        kind: header.kind,
        code: header.code,
        ident: header.ident.get(),
        seq: header.seq.get(),
        payload_offset: ip.payload_offset + header_len,
        payload_len: ip.payload_len - header_len,
    })
}

/// Length of an Ethernet header in bytes, which is also the offset of the IP packet in the frame.
const ETHERNET: usize = size_of::<layout::EthernetHeader>();
