//! Parses frames with etherparse, an independent parser, so that tests can compare its result with that of this crate.

use core::net::IpAddr;

use etherparse::{
    IpPayloadSlice, Ipv6ExtensionSlice, LinkSlice, NetSlice, SlicedPacket, TcpOptionElement, TcpSlice,
    TransportSlice,
};

use crate::Mac;
use crate::frame::{Body, Flags, Fragment, Icmp, Ip, ParsedFrame, Tcp, TcpOptions, Transport, Udp};

/// Parses a frame with etherparse; returns `None` if the frame is malformed.
pub(crate) fn parse(bytes: &[u8]) -> Option<ParsedFrame> {
    let packet = SlicedPacket::from_ethernet(bytes).ok()?;
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else {
        return None;
    };
    let body = match packet.net.as_ref()? {
        NetSlice::Arp(_) => Body::Arp,
        net => {
            let ip = ip(bytes, net)?;
            Body::Ip(ip, transport(bytes, &packet, &ip))
        }
    };
    Some(ParsedFrame {
        source: Mac(ethernet.source()),
        destination: Mac(ethernet.destination()),
        body,
    })
}

/// Returns true if etherparse computes the transport checksum that the complete packet contains; `None` if the packet
/// has none.
pub(crate) fn checksum_is_right(bytes: &[u8]) -> Option<bool> {
    let packet = SlicedPacket::from_ethernet(bytes).ok()?;
    let (found, right) = match (packet.transport?, packet.net?) {
        (TransportSlice::Tcp(tcp), NetSlice::Ipv4(ip)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            (tcp.checksum(), tcp.calc_checksum_ipv4(from, to).ok()?)
        }
        (TransportSlice::Tcp(tcp), NetSlice::Ipv6(ip)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            (tcp.checksum(), tcp.calc_checksum_ipv6(from, to).ok()?)
        }
        (TransportSlice::Udp(udp), NetSlice::Ipv4(ip)) => {
            let header = udp.to_header();
            let right = header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload());
            (udp.checksum(), right.ok()?)
        }
        (TransportSlice::Udp(udp), NetSlice::Ipv6(ip)) => {
            let header = udp.to_header();
            let right = header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload());
            (udp.checksum(), right.ok()?)
        }
        _ => return None,
    };
    // 0xffff and 0 are equal in ones' complement.
    Some(found == right || (found == 0xffff && right == 0))
}

fn ip(frame: &[u8], net: &NetSlice<'_>) -> Option<Ip> {
    match net {
        NetSlice::Ipv4(packet) => {
            let header = packet.header();
            let fragment = Fragment {
                id: header.identification().into(),
                offset: header.fragments_offset().byte_offset().into(),
                more: header.more_fragments(),
            };
            let found = Ip {
                source: IpAddr::V4(header.source_addr()),
                destination: IpAddr::V4(header.destination_addr()),
                hop_limit: header.ttl(),
                traffic_class: header.dcp().value() << 2 | header.ecn().value(),
                dont_fragment: header.dont_fragment(),
                protocol: packet.payload().ip_number.0,
                fragment: packet.payload().fragmented.then_some(fragment),
                payload_offset: 0,
                payload_len: 0,
            };
            Some(with_payload(found, frame, packet.payload()))
        }
        NetSlice::Ipv6(packet) => {
            let header = packet.header();
            let fragment = packet.extensions().clone().into_iter().find_map(|e| match e {
                Ipv6ExtensionSlice::Fragment(f) if f.is_fragmenting_payload() => Some(Fragment {
                    id: f.identification(),
                    offset: f.fragment_offset().byte_offset().into(),
                    more: f.more_fragments(),
                }),
                _ => None,
            });
            let found = Ip {
                source: IpAddr::V6(header.source_addr()),
                destination: IpAddr::V6(header.destination_addr()),
                hop_limit: header.hop_limit(),
                traffic_class: header.traffic_class(),
                dont_fragment: true,
                protocol: packet.payload().ip_number.0,
                fragment,
                payload_offset: 0,
                payload_len: 0,
            };
            Some(with_payload(found, frame, packet.payload()))
        }
        NetSlice::Arp(_) => None,
    }
}

fn with_payload(ip: Ip, frame: &[u8], payload: &IpPayloadSlice<'_>) -> Ip {
    Ip {
        payload_offset: place(frame, payload.payload),
        payload_len: payload.payload.len(),
        ..ip
    }
}

fn transport(frame: &[u8], packet: &SlicedPacket<'_>, ip: &Ip) -> Transport {
    if ip.fragment.is_some() {
        return Transport::Fragment;
    }
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => Transport::Tcp(Tcp {
            source_port: tcp.source_port(),
            destination_port: tcp.destination_port(),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            flags: flags(tcp),
            window: tcp.window_size(),
            options: options(tcp),
            payload_offset: place(frame, tcp.payload()),
            payload_len: tcp.payload().len(),
        }),
        Some(TransportSlice::Udp(udp)) => Transport::Udp(Udp {
            source_port: udp.source_port(),
            destination_port: udp.destination_port(),
            payload_offset: place(frame, udp.payload()),
            payload_len: udp.payload().len(),
        }),
        Some(TransportSlice::Icmpv4(icmp)) if ip.source.is_ipv4() => {
            Transport::Icmp(echo(frame, icmp.slice()))
        }
        Some(TransportSlice::Icmpv6(icmp)) if ip.source.is_ipv6() => {
            Transport::Icmp(echo(frame, icmp.slice()))
        }
        Some(TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_) | TransportSlice::Igmp(_)) | None => {
            Transport::Other
        }
    }
}

fn echo(frame: &[u8], message: &[u8]) -> Icmp {
    Icmp {
        kind: message[0],
        code: message[1],
        ident: u16::from_be_bytes([message[4], message[5]]),
        seq: u16::from_be_bytes([message[6], message[7]]),
        payload_offset: place(frame, message) + 8,
        payload_len: message.len() - 8,
    }
}

fn flags(tcp: &TcpSlice<'_>) -> Flags {
    let bits = [
        tcp.fin(),
        tcp.syn(),
        tcp.rst(),
        tcp.psh(),
        tcp.ack(),
        tcp.urg(),
        tcp.ece(),
        tcp.cwr(),
    ];
    Flags(
        bits.iter()
            .rev()
            .fold(0, |flags, bit| flags << 1 | u8::from(*bit)),
    )
}

fn options(tcp: &TcpSlice<'_>) -> TcpOptions {
    let mut options = TcpOptions::default();
    for option in tcp.options_iterator().map_while(Result::ok) {
        match option {
            TcpOptionElement::MaximumSegmentSize(mss) if tcp.syn() => options.mss = Some(mss),
            TcpOptionElement::WindowScale(shift) if tcp.syn() => options.window_scale = Some(shift.min(14)),
            TcpOptionElement::SelectiveAcknowledgementPermitted if tcp.syn() => {
                options.sack_permitted = true;
            }
            TcpOptionElement::SelectiveAcknowledgement(first, more) => {
                options.sack = [Some(first), more[0], more[1], more[2]];
            }
            TcpOptionElement::MaximumSegmentSize(_)
            | TcpOptionElement::WindowScale(_)
            | TcpOptionElement::SelectiveAcknowledgementPermitted
            | TcpOptionElement::Timestamp(..)
            | TcpOptionElement::Noop => {}
        }
    }
    options
}

fn place(frame: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - frame.as_ptr() as usize
}
