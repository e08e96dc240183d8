//! Describes a frame to the guest in one line of text, for transcripts.

use core::net::{IpAddr, SocketAddr};

use pontoon_wire::frame::{self, Body, Flags, Transport};
use pontoon_wire::vnet::{Offload, Segmentation};

/// Returns a one-line description of a frame to the guest.
pub(super) fn describe(offload: Offload, bytes: &[u8]) -> String {
    let parsed = frame::parse(&bytes[..bytes.len().min(frame::HEAD)], bytes.len()).unwrap();
    let Body::Ip(ip, transport) = parsed.body else {
        panic!("not IP: {parsed:?}");
    };
    match transport {
        Transport::Udp(udp) => {
            let from = SocketAddr::new(ip.source, udp.source_port);
            let to = SocketAddr::new(ip.destination, udp.destination_port);
            let len = udp.payload_len;
            let form = match offload.segmentation {
                Segmentation::Udp { len: each } => format!("{len} by {each}"),
                Segmentation::Whole => format!("{len}"),
                Segmentation::Tcp4 { .. } | Segmentation::Tcp6 { .. } => panic!("{offload:?}"),
            };
            format!("udp {from} > {to} hop {} {form}", ip.hop_limit)
        }
        Transport::Icmp(icmp) if is_echo(icmp.kind) => format!(
            "echo {} > {} id {} seq {} hop {} {}",
            ip.source, ip.destination, icmp.ident, icmp.seq, ip.hop_limit, icmp.payload_len
        ),
        Transport::Icmp(icmp) => {
            let rest = u32::from(icmp.ident) << 16 | u32::from(icmp.seq);
            let quote = &bytes[icmp.payload_offset..];
            format!(
                "icmp {} > {} {}/{} {rest} about {}",
                ip.source,
                ip.destination,
                icmp.kind,
                icmp.code,
                describe_quote(quote)
            )
        }
        Transport::Fragment => {
            let place = ip.fragment.unwrap();
            let more = if place.more { "+" } else { "" };
            format!("fragment {}..{}{more}", place.offset, ip.payload_len)
        }
        Transport::Tcp(tcp) => {
            let from = SocketAddr::new(ip.source, tcp.source_port);
            let to = SocketAddr::new(ip.destination, tcp.destination_port);
            let reset = if tcp.flags.has(Flags::RST) { " reset" } else { "" };
            format!("tcp {from} > {to}{reset}")
        }
        Transport::Other => panic!("unexpected {transport:?}"),
    }
}

fn is_echo(kind: u8) -> bool {
    matches!(kind, 0 | 8 | 128 | 129)
}

/// Returns a one-line description of an ICMP error's quote, from its addresses and first upper-layer fields; it may be
/// truncated.
fn describe_quote(quote: &[u8]) -> String {
    let (source, destination, upper): (IpAddr, IpAddr, _) = match quote[0] >> 4 {
        4 => (
            <[u8; 4]>::try_from(&quote[12..16]).unwrap().into(),
            <[u8; 4]>::try_from(&quote[16..20]).unwrap().into(),
            (quote[9], &quote[20..]),
        ),
        _ => (
            <[u8; 16]>::try_from(&quote[8..24]).unwrap().into(),
            <[u8; 16]>::try_from(&quote[24..40]).unwrap().into(),
            (quote[6], &quote[40..]),
        ),
    };
    let word = |at: usize| u16::from_be_bytes([upper.1[at], upper.1[at + 1]]);
    match upper.0 {
        17 => format!(
            "{} > {}",
            SocketAddr::new(source, word(0)),
            SocketAddr::new(destination, word(2))
        ),
        _ => format!("{source} > {destination} id {} seq {}", word(4), word(6)),
    }
}
