//! Builds frames from parts for the parser's tests, and proptest strategies for valid frames.

use etherparse::{EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6Header, TcpHeader};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::protocol;

/// Generates a valid frame of any supported kind.
pub(super) fn valid() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (any::<Ipv4Fields>(), upper(protocol::ICMP)).prop_map(|(fields, (protocol, upper))| {
            ipv4_with(fields, protocol, &upper)
        }),
        4 => (any::<Ipv6Fields>(), chain(), upper(protocol::ICMPV6)).prop_map(
            |(fields, chain, (protocol, upper))| ipv6_with(fields, &chain, protocol, &upper)
        ),
        1 => Just(ethernet(0x0806, &ARP_REQUEST)),
    ]
}

pub(super) type Ipv4Fields = (u8, u16, u16, u8, [u8; 4], [u8; 4], [u8; 12]);
pub(super) type Ipv6Fields = (u8, u8, [u8; 16], [u8; 16]);

/// An IPv6 extension header. Numbers are lengths in the unit of that header's length field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extension {
    HopByHop(u8),
    Routing(u8),
    Destination(u8),
    Authentication(u8),
    Fragment { id: u32, offset: u16, more: bool },
}

impl Extension {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::HopByHop(_) => 0,
            Self::Routing(_) => 43,
            Self::Fragment { .. } => 44,
            Self::Authentication(_) => AUTHENTICATION,
            Self::Destination(_) => 60,
        }
    }

    pub(super) fn bytes(self, next: u8) -> Vec<u8> {
        let sized = |length: u8, len: usize| {
            let mut bytes = vec![0; len];
            bytes[..2].copy_from_slice(&[next, length]);
            bytes
        };
        match self {
            Self::HopByHop(n) | Self::Routing(n) | Self::Destination(n) => sized(n, 8 * (usize::from(n) + 1)),
            Self::Authentication(n) => sized(n, 4 * (usize::from(n) + 2)),
            Self::Fragment { id, offset, more } => {
                let mut bytes = vec![next, 0];
                bytes.extend((offset | u16::from(more)).to_be_bytes());
                bytes.extend(id.to_be_bytes());
                bytes
            }
        }
    }
}

/// Generates chains of IPv6 extension headers of at most about 130 bytes; a fragment header of a real fragment is the
/// last one.
pub(super) fn chain() -> impl Strategy<Value = Vec<Extension>> {
    let middle = prop_oneof![
        (0..3_u8).prop_map(Extension::Routing),
        (0..3_u8).prop_map(Extension::Destination),
        (1..5_u8).prop_map(Extension::Authentication),
    ];
    let fragment =
        (any::<u32>(), 0..0x2000_u16, any::<bool>()).prop_map(|(id, units, more)| Extension::Fragment {
            id,
            offset: units * 8,
            more,
        });
    let first = prop::option::of((0..3_u8).prop_map(Extension::HopByHop));
    (first, vec(middle, 0..4), prop::option::of(fragment))
        .prop_map(|(first, middle, fragment)| first.into_iter().chain(middle).chain(fragment).collect())
}

/// Generates an upper-layer packet with its protocol number.
pub(super) fn upper(icmp: u8) -> impl Strategy<Value = (u8, Vec<u8>)> {
    let data = || vec(any::<u8>(), 0..400);
    prop_oneof![
        (any::<([u8; 20], u8)>(), tcp_options(), data()).prop_map(|((fixed, flags), options, data)| {
            let mut segment = tcp(&options);
            segment[..12].copy_from_slice(&fixed[..12]);
            segment[13] = flags;
            segment[14..20].copy_from_slice(&fixed[14..]);
            segment.extend(data);
            (protocol::TCP, segment)
        }),
        data().prop_map(|data| (protocol::UDP, udp(&data))),
        // Echo requests only, because etherparse requires exact lengths for some other ICMP types.
        (any::<[u8; 6]>(), data()).prop_map(move |(rest, data)| {
            let kind = if icmp == protocol::ICMP { 8 } else { 128 };
            (icmp, [&[kind, 0][..], &rest, &data].concat())
        }),
        vec(any::<u8>(), 1..400).prop_map(|data| (OTHER, data)),
    ]
}

pub(super) fn tcp_options() -> impl Strategy<Value = Vec<u8>> {
    let option = prop_oneof![
        Just(vec![1]),
        any::<u16>().prop_map(|mss| [&[2, 4][..], &mss.to_be_bytes()].concat()),
        any::<u8>().prop_map(|shift| vec![3, 3, shift]),
        Just(vec![4, 2]),
        any::<[u8; 8]>().prop_map(|clocks| [&[8, 10][..], &clocks].concat()),
        (1..=4_u8, any::<[u8; 32]>()).prop_map(|(n, edges)| [
            &[5, 2 + 8 * n][..],
            &edges[..8 * usize::from(n)]
        ]
        .concat()),
    ];
    vec(option, 0..5).prop_map(|list| {
        let mut bytes = Vec::new();
        for option in list {
            if bytes.len() + option.len() <= 40 {
                bytes.extend(option);
            }
        }
        bytes
    })
}

pub(super) fn ethernet(ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let header = Ethernet2Header {
        source: [2, 0, 0, 0, 0, 1],
        destination: [2, 0, 0, 0, 0, 2],
        ether_type: EtherType(ether_type),
    };
    [&header.to_bytes(), packet].concat()
}

pub(super) fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let plain = (0, 1, 0, 64, [10, 0, 2, 15], [192, 0, 2, 1], [0; 12]);
    ipv4_with(plain, protocol, payload)
}

pub(super) fn ipv4_with(fields: Ipv4Fields, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (class, ident, flags_offset, ttl, source, destination, options) = fields;
    let mut header = Ipv4Header::new(
        u16::try_from(payload.len()).unwrap(),
        ttl,
        IpNumber(protocol),
        source,
        destination,
    )
    .unwrap();
    // Up to three words of IPv4 options; the first byte selects the number.
    let words = usize::from(options[0] % 4);
    header.options = options[..4 * words].try_into().unwrap();
    header.set_payload_len(payload.len()).unwrap();
    let mut packet = header.to_bytes().to_vec();
    packet[1] = class;
    packet[4..6].copy_from_slice(&ident.to_be_bytes());
    packet[6..8].copy_from_slice(&flags_offset.to_be_bytes());
    packet.extend(payload);
    let mut frame = ethernet(0x0800, &packet);
    set_ipv4_checksum(&mut frame);
    frame
}

/// Writes the checksum of the frame's IPv4 header, computed independently of this crate, if the header is complete.
pub(super) fn set_ipv4_checksum(frame: &mut [u8]) {
    if frame.len() < 34 || frame[12..14] != [8, 0] {
        return;
    }
    let end = 14 + 4 * usize::from(frame[14] & 15);
    if end > frame.len() {
        return;
    }
    frame[24..26].fill(0);
    let words = frame[14..end].chunks_exact(2);
    let sum: u32 = words.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = 0xffff - u16::try_from(sum % 0xffff).unwrap();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

pub(super) fn ipv6(chain: &[Extension], protocol: u8, payload: &[u8]) -> Vec<u8> {
    ipv6_with((0, 64, [0xfd; 16], [0x20; 16]), chain, protocol, payload)
}

pub(super) fn ipv6_with(fields: Ipv6Fields, chain: &[Extension], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (traffic_class, hop_limit, source, destination) = fields;
    let mut extensions = Vec::new();
    let mut first = protocol;
    for extension in chain.iter().rev() {
        extensions.splice(0..0, extension.bytes(first));
        first = extension.number();
    }
    let header = Ipv6Header {
        traffic_class,
        payload_length: u16::try_from(extensions.len() + payload.len()).unwrap(),
        next_header: IpNumber(first),
        hop_limit,
        source,
        destination,
        ..Ipv6Header::default()
    };
    ethernet(0x86dd, &[&header.to_bytes(), &extensions[..], payload].concat())
}

pub(super) fn udp(data: &[u8]) -> Vec<u8> {
    let header = etherparse::UdpHeader {
        source_port: 4444,
        destination_port: 5555,
        length: u16::try_from(8 + data.len()).unwrap(),
        checksum: 0,
    };
    [&header.to_bytes(), data].concat()
}

pub(super) fn tcp(options: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(4444, 5555, 1, 1000);
    header.set_options_raw(options).unwrap();
    header.to_bytes().to_vec()
}

/// Protocol number of the authentication header of IPv4 and IPv6.
pub(super) const AUTHENTICATION: u8 = 51;
/// Protocol number of SCTP, which the engine does not support.
pub(super) const OTHER: u8 = 132;
pub(super) const ARP_REQUEST: [u8; 28] = [
    0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2,
];
