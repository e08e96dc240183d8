use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::frame::{self, Body, ParsedFrame, Transport};
use crate::{checksum, oracle};

const ETHER: Ether = Ether {
    source: Mac([2, 0, 0, 0, 0, 1]),
    destination: Mac([2, 0, 0, 0, 0, 2]),
};

#[test]
fn syn_ack_is_encoded() {
    let segment = TcpFields {
        source_port: 80,
        destination_port: 40_000,
        seq: 0x0102_0304,
        ack: 0x0506_0708,
        flags: Flags::SYN.and(Flags::ACK),
        window: 0xffff,
        syn: Some(SynOptions {
            mss: 1460,
            window_scale: Some(8),
            sack_permitted: true,
        }),
        sack: &[],
    };
    let head = tcp(ETHER, v4(), segment, 0);
    #[rustfmt::skip]
    let expected = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
        // IPv4 header: 20 + 32 bytes, DF, TTL 64, checksum.
        0x45, 0, 0, 52, 0, 0, 0x40, 0, 64, 6, 0x6c, 0xb4, 192, 0, 2, 1, 10, 0, 2, 15,
        // TCP header: eight words; the checksum field contains the sum of 192.0.2.1, 10.0.2.15, 6 and 32.
        0, 80, 0x9c, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x12, 0xff, 0xff, 0xce, 0x36, 0, 0,
        2, 4, 0x05, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2,
    ];
    assert_eq!(head.bytes(), expected);
    assert_eq!(
        head.checksum,
        Checksum::Partial {
            start: 34,
            offset: 16
        }
    );
}

#[test]
fn udp_over_ipv6_is_encoded() {
    let head = udp(ETHER, v6(), 53, 40_000, 100);
    #[rustfmt::skip]
    let expected = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd,
        0x6b, 0x80, 0, 0, 0, 108, 17, 63,
        0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x15,
        // The checksum field contains the folded sum fd00 + 0002 + fd00 + 0015 + 17 + 108.
        0, 53, 0x9c, 0x40, 0, 108, 0xfa, 0x95,
    ];
    assert_eq!(head.bytes(), expected);
    assert_eq!(head.checksum, Checksum::Partial { start: 54, offset: 6 });
}

#[test]
fn identification_is_used_without_df() {
    let header = |dont_fragment| {
        let ip = Ip {
            dont_fragment,
            ident: 0x1234,
            ..v4()
        };
        super::ip(ETHER, ip, protocol::ICMP, 8).bytes()[18..22].to_vec()
    };
    assert_eq!(header(true), [0, 0, 0x40, 0]);
    assert_eq!(header(false), [0x12, 0x34, 0, 0]);
}

#[test]
fn at_most_four_sack_blocks_are_encoded() {
    let blocks: Vec<_> = (0..5).map(|n| (n * 100, n * 100 + 50)).collect();
    for n in 0..=5 {
        let segment = TcpFields {
            sack: &blocks[..n],
            ..ack()
        };
        let head = tcp(ETHER, v4(), segment, 0);
        let Body::Ip(_, Transport::Tcp(seen)) = parsed(head.bytes()).body else {
            panic!("no TCP");
        };
        let seen: Vec<_> = seen.options.sack.into_iter().flatten().collect();
        assert_eq!(seen, blocks[..n.min(4)], "no more than four fit");
    }
}

#[test]
fn syn_has_no_sack_blocks() {
    let syn = Some(SynOptions {
        mss: 1,
        window_scale: None,
        sack_permitted: false,
    });
    let segment = TcpFields {
        syn,
        flags: Flags::SYN,
        sack: &[(1, 2); 4],
        ..ack()
    };
    assert_eq!(tcp(ETHER, v6(), segment, 0).bytes().len(), 14 + 40 + 24);
}

proptest! {
    #[test]
    fn emitted_tcp_parses_back(
        ip in addresses(),
        ports: (u16, u16),
        numbers: (u32, u32, u16),
        flags: u8,
        syn in prop::option::of((any::<u16>(), prop::option::of(0..=14_u8), any::<bool>())),
        sack in vec(any::<(u32, u32)>(), 0..=4),
        data in vec(any::<u8>(), 0..300),
    ) {
        let flags = match syn {
            Some(_) => Flags(flags).and(Flags::SYN),
            None => Flags(flags & !Flags::SYN.0),
        };
        let segment = TcpFields {
            source_port: ports.0,
            destination_port: ports.1,
            seq: numbers.0,
            ack: numbers.1,
            flags,
            window: numbers.2,
            syn: syn.map(|(mss, window_scale, sack_permitted)| SynOptions { mss, window_scale, sack_permitted }),
            sack: if syn.is_some() { &[] } else { &sack },
        };
        let packet = completed(tcp(ETHER, ip, segment, data.len()), &data);
        prop_assert_eq!(oracle::checksum_is_right(&packet), Some(true));
        let Body::Ip(seen_ip, Transport::Tcp(seen)) = parsed(&packet).body else {
            return Err(TestCaseError::fail("no TCP"));
        };
        check_ip(&ip, &seen_ip)?;
        prop_assert_eq!((seen.source_port, seen.destination_port), ports);
        prop_assert_eq!((seen.seq, seen.ack, seen.window), numbers);
        prop_assert_eq!(seen.flags, flags);
        prop_assert_eq!(seen.options.mss, syn.map(|syn| syn.0));
        prop_assert_eq!(seen.options.window_scale, syn.and_then(|syn| syn.1));
        prop_assert_eq!(seen.options.sack_permitted, syn.is_some_and(|syn| syn.2));
        let blocks: Vec<_> = seen.options.sack.into_iter().flatten().collect();
        prop_assert_eq!(&blocks[..], segment.sack);
        prop_assert_eq!(&packet[seen.payload_offset..][..seen.payload_len], &data[..]);
    }

    #[test]
    fn emitted_udp_parses_back(ip in addresses(), ports: (u16, u16), data in vec(any::<u8>(), 0..300)) {
        let packet = completed(udp(ETHER, ip, ports.0, ports.1, data.len()), &data);
        prop_assert_eq!(oracle::checksum_is_right(&packet), Some(true));
        let Body::Ip(seen_ip, Transport::Udp(seen)) = parsed(&packet).body else {
            return Err(TestCaseError::fail("no UDP"));
        };
        check_ip(&ip, &seen_ip)?;
        prop_assert_eq!((seen.source_port, seen.destination_port), ports);
        prop_assert_eq!(&packet[seen.payload_offset..][..seen.payload_len], &data[..]);
    }

    #[test]
    fn emitted_ip_parses_back(ip in addresses(), data in vec(any::<u8>(), 0..300)) {
        let packet = completed(super::ip(ETHER, ip, 132, data.len()), &data);
        let Body::Ip(seen, Transport::Other) = parsed(&packet).body else {
            return Err(TestCaseError::fail("not another protocol"));
        };
        check_ip(&ip, &seen)?;
        prop_assert_eq!(seen.protocol, 132);
        prop_assert_eq!(&packet[seen.payload_offset..][..seen.payload_len], &data[..]);
    }

    #[test]
    fn emitted_fragments_parse_back(
        ip in addresses(),
        id: u32,
        place in (0..0x2000_u32, any::<bool>()).prop_filter("a fragment", |(units, more)| *units > 0 || *more),
        data in vec(any::<u8>(), 0..300),
    ) {
        let id = if ip.source.is_ipv4() { id & 0xffff } else { id };
        let place = Fragment { id, offset: place.0 * 8, more: place.1 };
        let packet = completed(fragment(ETHER, ip, protocol::UDP, place, data.len()), &data);
        let Body::Ip(seen, Transport::Fragment) = parsed(&packet).body else {
            return Err(TestCaseError::fail("no fragment"));
        };
        check_ip(&Ip { dont_fragment: false, ..ip }, &seen)?;
        prop_assert_eq!(seen.fragment, Some(place));
        prop_assert_eq!(seen.protocol, protocol::UDP);
        prop_assert_eq!(&packet[seen.payload_offset..][..seen.payload_len], &data[..]);
    }
}

#[test]
fn largest_super_frames_are_encoded() {
    let data = vec![0xab; 65_535 - 20 - 20];
    let packet = completed(tcp(ETHER, v4(), ack(), data.len()), &data);
    assert_eq!(packet.len(), 14 + 65_535);
    assert_eq!(oracle::checksum_is_right(&packet), Some(true));
    let data = vec![0xab; 65_535 - 8];
    let packet = completed(udp(ETHER, v6(), 1, 2, data.len()), &data);
    assert_eq!(oracle::checksum_is_right(&packet), Some(true));
}

/// Returns the frame of `head` and `data` with its checksum completed.
fn completed(head: Head, data: &[u8]) -> Vec<u8> {
    let mut bytes = head.bytes().to_vec();
    // Two slices of payload, the first of an odd length.
    let (first, second) = data.split_at(data.len().min(7));
    checksum::complete(&mut bytes, head.checksum, [first, second]).unwrap();
    [&bytes, data].concat()
}

/// Parses the frame with this crate and with etherparse, and checks that both results are equal.
fn parsed(bytes: &[u8]) -> ParsedFrame {
    let frame = frame::parse(&bytes[..bytes.len().min(frame::HEAD)], bytes.len()).unwrap();
    assert_eq!(Some(frame), oracle::parse(bytes));
    assert_eq!(
        (frame.source, frame.destination),
        (ETHER.source, ETHER.destination)
    );
    frame
}

fn check_ip(sent: &Ip, seen: &frame::Ip) -> Result<(), TestCaseError> {
    prop_assert_eq!((sent.source, sent.destination), (seen.source, seen.destination));
    prop_assert_eq!(
        (sent.hop_limit, sent.traffic_class),
        (seen.hop_limit, seen.traffic_class)
    );
    prop_assert!(sent.source.is_ipv6() || sent.dont_fragment == seen.dont_fragment);
    Ok(())
}

fn addresses() -> impl Strategy<Value = Ip> {
    let pair = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
    ];
    (pair, any::<(u8, u8, bool, u16)>()).prop_map(|((source, destination), rest)| Ip {
        source,
        destination,
        hop_limit: rest.0,
        traffic_class: rest.1,
        dont_fragment: rest.2,
        ident: rest.3,
    })
}

fn v4() -> Ip {
    Ip {
        source: IpAddr::from([192, 0, 2, 1]),
        destination: IpAddr::from([10, 0, 2, 15]),
        hop_limit: 64,
        traffic_class: 0,
        dont_fragment: true,
        ident: 7,
    }
}

fn v6() -> Ip {
    Ip {
        source: "fd00::2".parse().unwrap(),
        destination: "fd00::15".parse().unwrap(),
        hop_limit: 63,
        traffic_class: 0xb8,
        dont_fragment: true,
        ident: 0,
    }
}

fn ack() -> TcpFields<'static> {
    TcpFields {
        source_port: 1,
        destination_port: 2,
        seq: 3,
        ack: 4,
        flags: Flags::ACK,
        window: 5,
        syn: None,
        sack: &[],
    }
}
