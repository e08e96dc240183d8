//! Answers echo requests to the engine's own addresses: those of the gateway and the DNS forwarder.

use core::net::IpAddr;

use pontoon_wire::{frame, protocol};

use super::reply::Reply;
use crate::ctx::Net;
use crate::{Frame, Transmit};

pub(super) fn is_request(ip: &frame::Ip, icmp: &frame::Icmp) -> bool {
    match ip.source {
        IpAddr::V4(_) => (ip.protocol, icmp.kind, icmp.code) == (protocol::ICMP, 8, 0),
        IpAddr::V6(_) => (ip.protocol, icmp.kind, icmp.code) == (protocol::ICMPV6, 128, 0),
    }
}

/// Returns true if `to` is the address of the gateway or of the DNS forwarder.
pub(super) fn answers(net: &Net, to: IpAddr) -> bool {
    net.config.plan.is_engine(to)
}

/// Sends the guest's echo request back as an echo reply (RFC 792, RFC 4443 section 4.2).
pub(super) fn handle<T: Transmit>(
    frame: &Frame<'_>,
    ip: &frame::Ip,
    icmp: &frame::Icmp,
    net: &mut Net,
    link: &mut T,
) {
    // Copied, because the guest may modify its memory while the checksum is computed.
    let mut message = [0; LONGEST];
    let message = &mut message[..(HEADER + icmp.payload_len).min(LONGEST)];
    if frame.copy(icmp.payload_offset, &mut message[HEADER..]) != icmp.payload_len {
        net.counters.malformed += 1;
        return;
    }
    message[0] = match ip.source {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 129,
    };
    message[4..6].copy_from_slice(&icmp.ident.to_be_bytes());
    message[6..8].copy_from_slice(&icmp.seq.to_be_bytes());
    let reply = Reply {
        to: net.guest_mac,
        source: ip.destination,
        destination: ip.source,
        hop_limit: 64,
    };
    reply.icmp(net, link, message);
}

const HEADER: usize = 8;
/// Maximum length of an ICMP message in bytes: the payload of an IPv6 packet, which may be longer than that of IPv4.
const LONGEST: usize = 65_535;
