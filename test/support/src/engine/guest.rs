//! Frames of a guest that a script controls: valid or invalid ones, and replies to the segments that the engine has
//! sent.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::VecDeque;

use pontoon_names::client_hello::LIMIT;
use pontoon_simnet::frames::{Datagram, ETHERNET, IcmpMessage, Packet, Segment};
use pontoon_simnet::settings::{GUEST_V4, GUEST_V6, SERVER_V4, SERVER_V6, addressing};
use pontoon_wire::frame::Flags;

use crate::client_hello::{Hello, records};
use crate::script::Script;

/// State of the scripted guest: the engine's most recent segments, from which it builds replies.
#[derive(Default)]
pub(crate) struct EngineGuest {
    /// The most recent segments from the engine, at most [`MEMORY`].
    received: VecDeque<Segment>,
}

/// Number of received segments that are kept.
const MEMORY: usize = 8;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
const DNS_V6: Ipv6Addr = Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 3);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const AGENTS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Length of the guest's queries without trailing bytes.
pub(crate) const QUERY_LEN: usize = QUERY.len();

/// A DNS query: id, flags, counts, name `a`, type A, class IN.
const QUERY: [u8; 19] = [1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];

impl EngineGuest {
    pub(crate) fn receive(&mut self, packet: Packet) {
        if let Packet::Tcp(segment) = packet {
            self.received.push_front(segment);
            self.received.truncate(MEMORY);
        }
    }

    /// Returns the next frame from the guest.
    pub(crate) fn next_frame(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let packet = match script.below(12) {
            0 => return bytes(script, 255),
            1 | 2 => Packet::Tcp(opening(script)),
            3..=6 => match self.received.get(script.below(MEMORY)) {
                Some(received) => Packet::Tcp(reply(received, script)),
                None => Packet::Tcp(opening(script)),
            },
            7 => Packet::Udp(query(script)),
            8 => Packet::Udp(lease(script)),
            9 => Packet::Icmp(message(script)),
            10 => Packet::Other(0x0806, arp(script)),
            _ => Packet::Udp(datagram(script)),
        };
        let mut frame = packet.emit(addressing().ether());
        if script.byte() & 7 == 7 {
            let at = script.below(frame.len().min(128));
            frame[at] ^= script.byte();
        }
        if script.byte() & 15 == 15 && !script.0.is_empty() {
            fragment(&mut frame, script);
        }
        frame
    }
}

fn bytes(script: &mut Script<'_>, most: usize) -> Vec<u8> {
    let len = script.below(most + 1);
    (0..len).map(|_| script.byte()).collect()
}

/// Returns source and destination of a packet: few ports, so that flows recur, and addresses of every kind.
fn ends(script: &mut Script<'_>) -> (SocketAddr, SocketAddr) {
    let (from, to): (IpAddr, IpAddr) = match script.below(10) {
        0..=3 => (GUEST_V4.into(), SERVER_V4.into()),
        4..=6 => (GUEST_V6.into(), SERVER_V6.into()),
        7 => (GUEST_V4.into(), GATEWAY.into()),
        8 => (GUEST_V4.into(), Ipv4Addr::from(script.u32()).into()),
        _ => (Ipv4Addr::from(script.u32()).into(), SERVER_V4.into()),
    };
    let ports = script.byte();
    let (from_port, to_port) = (5000 + u16::from(ports & 7), 80 + u16::from(ports >> 6));
    ((from, from_port).into(), (to, to_port).into())
}

fn opening(script: &mut Script<'_>) -> Segment {
    let (from, to) = ends(script);
    let options = script.byte();
    Segment {
        mss: (options & 1 == 1).then(|| script.u16()),
        window_scale: (options & 2 == 2).then(|| script.byte() & 15),
        sack_permitted: options & 4 == 4,
        payload: vec![1; usize::from(options >> 6) * 8],
        window: script.u16(),
        ..Segment::between(from, to).with(Flags::SYN, script.u32(), 0)
    }
}

/// Returns a reply to a segment of the engine, whose sequence numbers may be slightly wrong.
fn reply(received: &Segment, script: &mut Script<'_>) -> Segment {
    let how = script.byte();
    let flags = match how & 15 {
        0..=9 => Flags::ACK,
        10 => Flags::ACK.and(Flags::FIN),
        11 => Flags::RST,
        12 => Flags::ACK.and(Flags::SYN),
        13 => Flags::SYN,
        _ => Flags(script.byte()),
    };
    let off = |script: &mut Script<'_>| match how >> 6 {
        0 | 1 => 0,
        2 => u32::from(script.byte()),
        _ => script.u32(),
    };
    let (seq, ack) = (
        received.ack.wrapping_add(off(script)),
        received.end().wrapping_sub(off(script)),
    );
    let len = if how & 0x30 == 0 { 0 } else { script.below(3000) };
    let sack = match how & 0x20 {
        0 => Vec::new(),
        _ => vec![(
            ack.wrapping_add(script.u16().into()),
            ack.wrapping_add(script.u32()),
        )],
    };
    Segment {
        window: script.u16(),
        urgent: script.u16() & 7,
        sack,
        ..Segment::between(received.to, received.from).with(flags, seq, ack)
    }
    .carrying(data(len))
}

/// Returns the data of a segment: most often `len` bytes without meaning, otherwise a ClientHello or a part of it.
fn data(len: usize) -> Vec<u8> {
    let hello = |name: &str| records(&Hello::new(name).message(), &[LIMIT]);
    match len % 16 {
        5 => hello("a"),
        6 => hello("b"),
        7 => hello("a")[..40].to_vec(),
        8 => hello("a")[40..].to_vec(),
        9 => [&hello("b")[..], &vec![2; len]].concat(),
        _ => vec![2; len],
    }
}

fn datagram(script: &mut Script<'_>) -> Datagram {
    let (from, to) = ends(script);
    let len = script.below(1500);
    Datagram {
        from,
        to,
        payload: vec![3; len],
    }
}

fn query(script: &mut Script<'_>) -> Datagram {
    let mut payload = QUERY.to_vec();
    payload.extend(bytes(script, 16));
    let at = script.below(payload.len());
    payload[at] ^= script.byte() & 3;
    let port = 5000 + u16::from(script.byte() & 7);
    match script.byte() & 1 {
        0 => Datagram {
            from: (GUEST_V4, port).into(),
            to: (DNS, 53).into(),
            payload,
        },
        _ => Datagram {
            from: (GUEST_V6, port).into(),
            to: (DNS_V6, 53).into(),
            payload,
        },
    }
}

/// Returns a DHCPv4 or DHCPv6 message: a fixed beginning, and options from the script.
fn lease(script: &mut Script<'_>) -> Datagram {
    if script.byte() & 1 == 0 {
        let mut payload = vec![0; 236];
        payload[..4].copy_from_slice(&[1, 1, 6, 0]);
        payload[28..34].copy_from_slice(&addressing().mac.0);
        payload.extend([99, 130, 83, 99, 53, 1, 1 + script.byte() % 8]);
        payload.extend(bytes(script, 64));
        return Datagram {
            from: (Ipv4Addr::UNSPECIFIED, 68).into(),
            to: (Ipv4Addr::BROADCAST, 67).into(),
            payload,
        };
    }
    let mut payload = vec![script.byte() % 14, 1, 2, 3, 0, 1, 0, 4, 9, 9, 9, 9];
    payload.extend(bytes(script, 64));
    Datagram {
        from: (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9), 546).into(),
        to: (AGENTS, 547).into(),
        payload,
    }
}

fn message(script: &mut Script<'_>) -> IcmpMessage {
    let (kind, from, to): (u8, IpAddr, IpAddr) = match script.below(8) {
        0 | 1 => (8, GUEST_V4.into(), SERVER_V4.into()),
        2 => (8, GUEST_V4.into(), GATEWAY.into()),
        3 => (128, GUEST_V6.into(), SERVER_V6.into()),
        4 => (135, GUEST_V6.into(), ROUTER.into()),
        5 => (133, Ipv6Addr::UNSPECIFIED.into(), ALL_NODES.into()),
        6 => (script.byte(), GUEST_V6.into(), ALL_NODES.into()),
        _ => (script.byte(), GUEST_V4.into(), SERVER_V4.into()),
    };
    IcmpMessage {
        from,
        to,
        kind,
        code: script.byte() & 1,
        rest: bytes(script, 80),
    }
}

/// Returns an ARP request or neighbour solicitation for the gateway, with one byte changed.
fn arp(script: &mut Script<'_>) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(addressing().mac.0);
    arp.extend(GUEST_V4.octets());
    arp.extend([0; 6]);
    arp.extend(GATEWAY.octets());
    let at = script.below(arp.len());
    arp[at] ^= script.byte();
    arp
}

/// Changes an IPv4 packet into a fragment with any offset, and corrects the header checksum.
fn fragment(frame: &mut [u8], script: &mut Script<'_>) {
    let Some(header) = frame
        .get_mut(ETHERNET..ETHERNET + 20)
        .filter(|header| header[0] == 0x45)
    else {
        return;
    };
    header[6..8].copy_from_slice(&(script.u16() & 0x201f).to_be_bytes());
    header[10..12].fill(0);
    let sum: u32 = header
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
