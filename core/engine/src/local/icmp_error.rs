//! Sends ICMP and ICMPv6 errors to the guest (RFC 792, RFC 1812 section 4.3, RFC 4443).

use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use pontoon_wire::frame::{Body, Transport};
use pontoon_wire::{emit, frame, protocol};

use super::reply::Reply;
use crate::ctx::Net;
use crate::udp_emit::{self, Emitted};
use crate::{Frame, Transmit, policy};

/// The reason why a packet of the guest was dropped, as an ICMP error reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no route to the destination network.
    NetUnreachable,
    /// The destination host is unreachable.
    HostUnreachable,
    /// The destination does not support the packet's upper-layer protocol.
    ProtocolUnreachable,
    /// The destination port is closed.
    PortUnreachable,
    /// The egress policy refuses the destination ("administratively prohibited").
    Prohibited,
    /// The packet exceeds the path MTU: "fragmentation needed" (IPv4) or "packet too big" (IPv6).
    TooBig {
        /// Path MTU: maximum length of an IP packet in bytes.
        mtu: u32,
    },
    /// The TTL or hop limit is used up ("time exceeded").
    TimeExceeded,
    /// An ICMP error that a router or remote host has reported, in the family of the guest's packet.
    Reported {
        /// ICMP or ICMPv6 type of the reported error.
        kind: u8,
        /// ICMP or ICMPv6 code of the reported error.
        code: u8,
        /// Next-hop MTU in bytes, if the error type has one.
        mtu: Option<u32>,
    },
}

/// Header fields of a packet from the guest that caused an ICMP error and is no longer available itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvokingPacket {
    /// Upper-layer protocol: UDP, TCP, ICMP or ICMPv6.
    pub protocol: u8,
    /// Source: the guest's address and port. For an echo request, the id takes the port's place.
    pub source: SocketAddr,
    /// Destination as the guest has sent it. For an echo request, the sequence number takes the port's place.
    pub destination: SocketAddr,
    /// Number of data bytes behind the upper-layer header.
    pub payload_len: usize,
}

/// Sends the guest an ICMP error about the packet in `frame`, whose headers are `parsed`.
///
/// `speaker` is the source address of the error: the gateway, or a host or router; if it is of another family than the
/// packet, the gateway's address is used. No error is sent about packets that must not be answered (RFC 1122 section
/// 3.2.2, RFC 4443 section 2.4 (e)): ICMP errors, fragments other than the first, multicasts, and packets whose source
/// is not a single host.
pub fn refuse<T: Transmit>(
    net: &mut Net,
    link: &mut T,
    speaker: IpAddr,
    reason: Reason,
    frame: &Frame<'_>,
    parsed: &frame::ParsedFrame,
) {
    let Body::Ip(ip, transport) = &parsed.body else {
        return;
    };
    if !may_be_answered(ip, transport, reason) {
        return;
    }
    let end = (ip.payload_offset + ip.payload_len).min(frame.len);
    let mut quote = [0; QUOTE_V6];
    let room = quote_room(ip.source).min(end - ETHERNET);
    let len = frame.copy(ETHERNET, &mut quote[..room]);
    send(net, link, speaker, ip.source, reason, &quote[..len]);
}

/// Sends an ICMP error like [`refuse`], about a packet of which only the fields in `sent` and perhaps the first bytes
/// of its data are known. The quoted headers are reconstructed, with enough fields for the guest's kernel to find the
/// socket that sent the packet.
pub fn refuse_sent<T: Transmit>(
    net: &mut Net,
    link: &mut T,
    speaker: IpAddr,
    reason: Reason,
    sent: InvokingPacket,
    payload: &[u8],
) {
    refuse_upper(net, link, speaker, reason, sent, upper_header(sent), payload);
}

/// Reports the path MTU to `destination` to the guest's kernel, without an error for any of the guest's sockets: the
/// quoted packet is an echo reply, which no socket has sent. Linux uses only its addresses (`icmp_err`, `icmpv6_err`).
pub(crate) fn advise_mtu<T: Transmit>(
    net: &mut Net,
    link: &mut T,
    guest: IpAddr,
    destination: IpAddr,
    mtu: Option<u32>,
) {
    let (Some(gateway), Some(mtu)) = (net.config.plan.gateway(destination), mtu) else {
        return;
    };
    let (protocol, echo_reply) = match guest {
        IpAddr::V4(_) => (protocol::ICMP, 0),
        IpAddr::V6(_) => (protocol::ICMPV6, 129),
    };
    let sent = InvokingPacket {
        protocol,
        source: SocketAddr::new(guest, 0),
        destination: SocketAddr::new(destination, 0),
        payload_len: 0,
    };
    let upper = [echo_reply, 0, 0, 0, 0, 0, 0, 0].into();
    refuse_upper(net, link, gateway, Reason::TooBig { mtu }, sent, upper, &[]);
}

/// Sends an ICMP error like [`refuse_sent`], with the quoted upper-layer header `upper`.
fn refuse_upper<T: Transmit>(
    net: &mut Net,
    link: &mut T,
    speaker: IpAddr,
    reason: Reason,
    sent: InvokingPacket,
    upper: ArrayVec<u8, 8>,
    payload: &[u8],
) {
    let ip = emit::Ip {
        source: sent.source.ip(),
        destination: sent.destination.ip(),
        hop_limit: 64,
        traffic_class: 0,
        dont_fragment: true,
        ident: 0,
    };
    let longest = udp_emit::longest(ip.source) - upper.len();
    if sent.source.is_ipv4() != sent.destination.is_ipv4() || sent.payload_len > longest {
        return;
    }
    let head = emit::ip(net.ether(), ip, sent.protocol, upper.len() + sent.payload_len);
    let mut quote = ArrayVec::<u8, QUOTE_V6>::new();
    quote.extend(head.bytes()[ETHERNET..].iter().chain(&upper).copied());
    let room = quote_room(ip.source) - quote.len();
    quote.extend(payload.iter().take(room.min(sent.payload_len)).copied());
    send(net, link, speaker, ip.source, reason, &quote);
}

/// Returns the first bytes of the quoted upper-layer header, which identify the flow. Checksums are omitted (RFC 792
/// does not guarantee them), and a TCP sequence number is not known.
fn upper_header(sent: InvokingPacket) -> ArrayVec<u8, 8> {
    let [a, b] = sent.source.port().to_be_bytes();
    let [c, d] = sent.destination.port().to_be_bytes();
    match sent.protocol {
        protocol::ICMP => [8, 0, 0, 0, a, b, c, d],
        protocol::ICMPV6 => [128, 0, 0, 0, a, b, c, d],
        protocol::UDP => {
            let [e, f] = u16::try_from(8 + sent.payload_len).unwrap_or(0).to_be_bytes();
            [a, b, c, d, e, f, 0, 0]
        }
        _ => [a, b, c, d, 0, 0, 0, 0],
    }
    .into()
}

fn may_be_answered(ip: &frame::Ip, transport: &Transport, reason: Reason) -> bool {
    let is_error = match transport {
        Transport::Icmp(icmp) if ip.source.is_ipv6() => icmp.kind < 128 || icmp.kind == REDIRECT_V6,
        Transport::Icmp(icmp) => matches!(icmp.kind, 3..=5 | 11 | 12),
        Transport::Tcp(_) | Transport::Udp(_) | Transport::Fragment | Transport::Other => false,
    };
    let later_fragment = ip.fragment.is_some_and(|fragment| fragment.offset > 0);
    let group = match ip.destination {
        IpAddr::V4(to) => to.is_multicast() || to.is_broadcast(),
        // Path MTU discovery includes multicast (RFC 4443 section 2.4 (e.3)).
        IpAddr::V6(to) => to.is_multicast() && !matches!(reason, Reason::TooBig { .. }),
    };
    !(is_error || later_fragment || group) && policy::may_send(ip.source)
}

/// Sends the guest an ICMP error that quotes the first bytes of a packet, from the IP header on.
pub(crate) fn send<T: Transmit>(
    net: &mut Net,
    link: &mut T,
    speaker: IpAddr,
    guest: IpAddr,
    reason: Reason,
    quote: &[u8],
) {
    let Some(source) = (match speaker.is_ipv4() == guest.is_ipv4() {
        true => Some(speaker),
        false => net.config.plan.gateway(guest),
    }) else {
        return;
    };
    if !net.admits_answer() {
        return;
    }
    let (kind, code, rest) = match guest {
        IpAddr::V4(_) => v4(reason),
        IpAddr::V6(_) => v6(reason),
    };
    let mut message = ArrayVec::<u8, { 8 + QUOTE_V6 }>::new();
    message.extend([kind, code, 0, 0]);
    message.extend(rest.to_be_bytes());
    message.extend(quote.iter().copied());
    let reply = Reply {
        to: net.guest_mac,
        source,
        destination: guest,
        hop_limit: 64,
    };
    match reply.icmp(net, link, &mut message) {
        Emitted::Accepted => net.counters.icmp_errors_down += 1,
        Emitted::Refused => {}
    }
}

/// Returns type, code and the four bytes behind the checksum of an ICMP error (RFC 792, RFC 1191, RFC 1812).
fn v4(reason: Reason) -> (u8, u8, u32) {
    match reason {
        Reason::NetUnreachable => (3, 0, 0),
        Reason::HostUnreachable => (3, 1, 0),
        Reason::ProtocolUnreachable => (3, 2, 0),
        Reason::PortUnreachable => (3, 3, 0),
        Reason::Prohibited => (3, 13, 0),
        Reason::TooBig { mtu } => (3, 4, mtu.min(0xffff)),
        Reason::TimeExceeded => (11, 0, 0),
        Reason::Reported { kind, code, mtu } => (kind, code, mtu.unwrap_or(0).min(0xffff)),
    }
}

/// Returns type, code and the four bytes behind the checksum of an ICMPv6 error (RFC 4443).
fn v6(reason: Reason) -> (u8, u8, u32) {
    match reason {
        Reason::NetUnreachable => (1, 0, 0),
        Reason::HostUnreachable => (1, 3, 0),
        // Parameter problem, unrecognized next header; the pointer 6 is the offset of the field Next Header in the IPv6
        // header.
        Reason::ProtocolUnreachable => (4, 1, 6),
        Reason::PortUnreachable => (1, 4, 0),
        Reason::Prohibited => (1, 1, 0),
        Reason::TooBig { mtu } => (2, 0, mtu),
        Reason::TimeExceeded => (3, 0, 0),
        Reason::Reported { kind, code, mtu } => (kind, code, mtu.unwrap_or(0)),
    }
}

const fn quote_room(family: IpAddr) -> usize {
    match family {
        IpAddr::V4(_) => QUOTE_V4,
        IpAddr::V6(_) => QUOTE_V6,
    }
}

pub(crate) const ETHERNET: usize = 14;
/// Maximum number of bytes that an ICMP error quotes: the error fits into 576 bytes (RFC 1812 section 4.3.2.3).
const QUOTE_V4: usize = 576 - 20 - 8;
/// Maximum number of bytes that an ICMPv6 error quotes: the error fits into the minimum IPv6 MTU (RFC 4443 section 2.4
/// (c)).
const QUOTE_V6: usize = 1_280 - 40 - 8;
const REDIRECT_V6: u8 = 137;
