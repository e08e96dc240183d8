//! Sends UDP datagrams to the guest, in IP fragments if they exceed the link's MTU.

use core::net::{IpAddr, SocketAddr};

use pontoon_wire::checksum::Sum;
use pontoon_wire::vnet::{Offload, Segmentation};
use pontoon_wire::{emit, frame, protocol};
use rand_chacha::rand_core::RngCore;

use crate::Transmit;
use crate::ctx::Net;
use crate::host::DatagramMeta;
use crate::link::TransmitError;

/// The result of passing a packet for the guest to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emitted {
    /// The link has accepted the packet, with all fragments.
    Accepted,
    /// The link has refused the packet or a fragment.
    Refused,
}

/// Sends one UDP datagram to the guest, and counts it: as `udp_down` and `frames_down` if the link has accepted all of
/// it, otherwise as `link_refused`.
///
/// A datagram that exceeds the link's MTU is sent in fragments. In IPv6 the source fragments, which is the engine (RFC
/// 8200 section 4.5). An IPv4 datagram of that size arrived in fragments and was reassembled by the host, so it is
/// fragmented again, with DF clear.
///
/// Both addresses must be of the same family; otherwise, or if the datagram exceeds the maximum of its family, it is
/// counted as refused.
pub fn datagram<T: Transmit>(
    net: &mut Net,
    link: &mut T,
    from: SocketAddr,
    to: SocketAddr,
    meta: DatagramMeta,
    payload: &[u8],
) {
    let len = UDP_HEADER + payload.len();
    if from.is_ipv4() != to.is_ipv4() || len > longest(from.ip()) {
        net.counters.link_refused += 1;
        return;
    }
    let emitted = if ip_header(from.ip()) + len <= link.limits().mtu {
        let head = head(net, from, to, meta, payload.len());
        let offload = Offload {
            checksum: head.checksum,
            segmentation: Segmentation::Whole,
        };
        let sent = link.send(offload, head.bytes(), payload);
        count(net, head.bytes().len() + payload.len(), sent)
    } else {
        let header = complete_header(from, to, payload);
        let ip = ip(net, from.ip(), to.ip(), meta);
        in_fragments(net, link, ip, protocol::UDP, &header, payload)
    };
    net.counters.udp_down += u64::from(emitted == Emitted::Accepted);
}

/// Returns the headers of a frame with `len` bytes of UDP payload, of one datagram or several.
pub(crate) fn head(
    net: &mut Net,
    from: SocketAddr,
    to: SocketAddr,
    meta: DatagramMeta,
    len: usize,
) -> emit::Head {
    let ip = ip(net, from.ip(), to.ip(), meta);
    emit::udp(net.ether(), ip, from.port(), to.port(), len)
}

/// Returns the IP header fields for a packet that the host has received with `meta`.
pub(crate) fn ip(net: &mut Net, source: IpAddr, destination: IpAddr, meta: DatagramMeta) -> emit::Ip {
    #[expect(clippy::cast_possible_truncation, reason = "any 16 bits will do")]
    let ident = match meta.dont_fragment {
        // RFC 6864 section 4.1: with DF, the identification has no meaning.
        true => 0,
        false => net.random.next_u32() as u16,
    };
    emit::Ip {
        source,
        destination,
        hop_limit: meta.hop_limit.max(1),
        traffic_class: meta.traffic_class,
        dont_fragment: meta.dont_fragment,
        ident,
    }
}

/// Sends the IP packet whose content is `upper` (at most [`UPPER`] bytes of upper-layer header, checksum and all) and
/// `payload` in fragments that fit the link's MTU, and counts them.
pub(crate) fn in_fragments<T: Transmit>(
    net: &mut Net,
    link: &mut T,
    ip: emit::Ip,
    protocol: u8,
    upper: &[u8],
    payload: &[u8],
) -> Emitted {
    let id = net.random.next_u32();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "IPv4 has 16 bits of the random id"
    )]
    let ip = emit::Ip {
        dont_fragment: false,
        ident: id as u16,
        ..ip
    };
    let room = link.limits().mtu.saturating_sub(fragment_headers(ip.source));
    // Fragment offsets are in units of eight bytes; the first fragment contains at least the upper-layer header.
    let step = (room & !7).max(UPPER);
    let ether = net.ether();

    let mut at = 0;
    let mut rest = payload;
    let mut upper = upper;
    loop {
        let (piece, later) = rest.split_at(rest.len().min(step - upper.len()));
        let len = upper.len() + piece.len();
        let place = frame::Fragment {
            id,
            offset: at,
            more: !later.is_empty(),
        };
        let head = emit::fragment(ether, ip, protocol, place, len);
        let mut block = arrayvec::ArrayVec::<u8, 160>::new();
        block.extend(head.bytes().iter().chain(upper).copied());
        // If one fragment is lost, the others are useless.
        let emitted = count(
            net,
            block.len() + piece.len(),
            link.send(Offload::NONE, &block, piece),
        );
        if emitted == Emitted::Refused || later.is_empty() {
            return emitted;
        }
        at += u32::try_from(len).expect("a packet has at most 65,535 bytes");
        rest = later;
        upper = &[];
    }
}

/// Returns a UDP header with a complete checksum, because no link can complete a checksum across fragments.
fn complete_header(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> [u8; UDP_HEADER] {
    let len = u16::try_from(UDP_HEADER + payload.len()).expect("checked against the family's longest");
    let mut header = [0; UDP_HEADER];
    header[0..2].copy_from_slice(&from.port().to_be_bytes());
    header[2..4].copy_from_slice(&to.port().to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    let sum = Sum::pseudo(from.ip(), to.ip(), protocol::UDP, len.into())
        .add(&header)
        .add(payload)
        .finish();
    // A checksum of 0 would mean that there is none (RFC 768).
    let sum = if sum == 0 { 0xffff } else { sum };
    header[6..8].copy_from_slice(&sum.to_be_bytes());
    header
}

/// Counts a frame of `len` bytes that was passed to the link, also against `--max-bandwidth`.
pub(crate) fn count(net: &mut Net, len: usize, sent: Result<(), TransmitError>) -> Emitted {
    match sent {
        Ok(()) => {
            net.counters.frames_down += 1;
            net.throttle.sent_down(len);
            Emitted::Accepted
        }
        Err(TransmitError::Full | TransmitError::Rejected) => {
            net.counters.link_refused += 1;
            Emitted::Refused
        }
    }
}

/// Returns the maximum payload of an IP packet in bytes: IPv4's field Total Length includes the header, IPv6's field
/// Payload Length does not.
pub(crate) const fn longest(family: IpAddr) -> usize {
    match family {
        IpAddr::V4(_) => 65_535 - 20,
        IpAddr::V6(_) => 65_535,
    }
}

pub(crate) const fn ip_header(family: IpAddr) -> usize {
    match family {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    }
}

const fn fragment_headers(family: IpAddr) -> usize {
    match family {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40 + 8,
    }
}

const UDP_HEADER: usize = 8;

/// Maximum length of the upper-layer header that callers of [`in_fragments`] pass: that of UDP and of an ICMP echo
/// message. A multiple of eight.
const UPPER: usize = 8;

#[cfg(test)]
mod tests;
