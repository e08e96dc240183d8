use pontoon_wire::vnet::Checksum;
use pontoon_wire::{Mac, checksum, protocol};
use proptest::prelude::*;

use super::*;

const ETHER: Ether = Ether {
    source: Mac([2, 0, 0, 0, 0, 15]),
    destination: Mac([2, 0, 0, 0, 0, 2]),
};
const T0: Instant = Instant(1_000_000_000_000);

/// Reassembly under test, with its counters and the time.
#[derive(Default)]
struct Bench {
    reassembly: Reassembly,
    counters: Counters,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self {
            now: T0,
            ..Self::default()
        }
    }

    fn add(&mut self, packet: &Ip, piece: &Piece) -> Option<Whole> {
        let (ip, mut bytes) = piece.frame(packet);
        let len = bytes.len();
        let head: Vec<_> = bytes[..len.min(HEAD)].to_vec();
        let frame = Frame {
            offload: Offload {
                checksum: piece.checksum,
                ..Offload::NONE
            },
            head: &head,
            parts: &[VolatileSlice::from(&mut bytes[..])],
            len,
        };
        self.reassembly
            .add(ETHER, &ip, &frame, &mut self.counters, self.now)
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.reassembly.handle_timeout(&mut self.counters, self.now);
    }

    /// Checks the counters of fragments received, datagrams reassembled and fragments dropped, and that no other
    /// counter has changed.
    #[track_caller]
    fn expect(&self, fragments_up: u64, reassembled: u64, fragments_dropped: u64) {
        let expected = Counters {
            fragments_up,
            reassembled,
            fragments_dropped,
            ..Counters::default()
        };
        assert_eq!(self.counters, expected);
    }
}

/// An IP fragment, as a builder.
#[derive(Clone, Debug)]
struct Piece {
    id: u32,
    offset: usize,
    more: bool,
    data: Vec<u8>,
    checksum: Checksum,
}

impl Piece {
    /// Returns the fragment's parsed IP header and its frame.
    fn frame(&self, packet: &Ip) -> (Ip, Vec<u8>) {
        let place = Fragment {
            id: self.id,
            offset: u32::try_from(self.offset).unwrap(),
            more: self.more,
        };
        let header = emit::Ip {
            source: packet.source,
            destination: packet.destination,
            hop_limit: 64,
            traffic_class: 0xb8,
            dont_fragment: false,
            ident: 0,
        };
        let head = emit::fragment(ETHER, header, packet.protocol, place, self.data.len());
        let bytes = [head.bytes(), &self.data].concat();
        let parsed = frame::parse(&bytes[..bytes.len().min(HEAD)], bytes.len()).unwrap();
        let Body::Ip(ip, Transport::Fragment) = parsed.body else {
            panic!("no fragment");
        };
        (ip, bytes)
    }
}

#[test]
fn fragments_in_order_and_reversed_are_reassembled() {
    for packet in [v4(), v6()] {
        let (datagram, pieces) = datagram(&packet, 4_000, 1_448);
        assert_eq!(pieces.len(), 3);
        let mut bench = Bench::new();
        assert!(bench.add(&packet, &pieces[0]).is_none());
        assert!(bench.add(&packet, &pieces[1]).is_none());
        check(bench.add(&packet, &pieces[2]), &packet, &datagram);
        bench.expect(3, 1, 0);
        assert!(bench.add(&packet, &pieces[2]).is_none());
        assert!(bench.add(&packet, &pieces[1]).is_none());
        check(bench.add(&packet, &pieces[0]), &packet, &datagram);
        bench.expect(6, 2, 0);
        assert_eq!(bench.reassembly.next_timeout(), None);
        assert_eq!(bench.reassembly.datagrams.capacity(), 0, "no memory while idle");
    }
}

#[test]
fn largest_datagrams_are_reassembled() {
    for (packet, data) in [(v4(), 65_507), (v6(), 65_527)] {
        let (datagram, pieces) = datagram(&packet, data, 1_448);
        let mut bench = Bench::new();
        let (last, first) = pieces.split_last().unwrap();
        for piece in first {
            assert!(bench.add(&packet, piece).is_none());
        }
        let whole = bench.add(&packet, last);
        assert!(whole.as_ref().unwrap().bytes.capacity() <= ROOM + LARGEST_V6);
        check(whole, &packet, &datagram);
    }
}

#[test]
fn datagram_longer_than_the_maximum_is_refused() {
    for (packet, end) in [(v4(), LARGEST_V4), (v6(), LARGEST_V6)] {
        let offset = end / 8 * 8;
        let mut bench = Bench::new();
        assert!(bench.add(&packet, &piece(1, 0, true, 8)).is_none());
        assert!(
            bench
                .add(&packet, &piece(1, offset, false, end - offset + 1))
                .is_none()
        );
        bench.expect(2, 0, 2);
        assert!(bench.add(&packet, &piece(1, 8, true, 8)).is_none());
        bench.expect(3, 0, 3);
    }
}

#[test]
fn two_interleaved_datagrams_are_reassembled() {
    let packet = v4();
    let mut bench = Bench::new();
    assert!(bench.add(&packet, &piece(1, 0, true, 16)).is_none());
    assert!(bench.add(&packet, &piece(2, 16, false, 16)).is_none());
    let other = Ip {
        destination: IpAddr::from([192, 0, 2, 99]),
        ..packet
    };
    assert!(bench.add(&other, &piece(1, 16, false, 16)).is_none());
    let other = Ip {
        protocol: protocol::ICMP,
        ..packet
    };
    assert!(bench.add(&other, &piece(1, 16, false, 16)).is_none());
    assert!(bench.add(&packet, &piece(1, 16, false, 16)).is_some());
    assert!(bench.add(&packet, &piece(2, 0, true, 16)).is_some());
    bench.expect(6, 2, 0);
}

#[test]
fn protocol_of_an_ipv6_datagram_is_that_of_its_first_fragment() {
    let packet = v6();
    let mut bench = Bench::new();
    let other = Ip {
        protocol: 132,
        ..packet
    };
    let (_, pieces) = datagram(&packet, 24, 16);
    assert!(bench.add(&other, &pieces[1]).is_none());
    let mut whole = bench.add(&packet, &pieces[0]).unwrap();
    let protocol = whole.open(|parsed, _| match parsed.body {
        Body::Ip(ip, Transport::Udp(_)) => ip.protocol,
        other => panic!("{other:?}"),
    });
    assert_eq!(protocol, Ok(protocol::UDP));
}

#[test]
fn exact_duplicate_is_ignored() {
    let packet = v4();
    let (datagram, pieces) = datagram(&packet, 3_000, 1_480);
    let mut bench = Bench::new();
    for piece in [&pieces[0], &pieces[0], &pieces[2], &pieces[2]] {
        assert!(bench.add(&packet, piece).is_none());
    }
    check(bench.add(&packet, &pieces[1]), &packet, &datagram);
    bench.expect(5, 1, 0);
}

#[test]
fn overlapping_fragments_drop_the_datagram() {
    for packet in [v4(), v6()] {
        for overlapping in [(0, 8), (0, 40), (8, 8), (16, 8), (24, 8), (16, 24)] {
            let mut bench = Bench::new();
            assert!(bench.add(&packet, &piece(1, 8, true, 24)).is_none());
            let (offset, len) = overlapping;
            let overlaps = piece(1, offset, true, len);
            assert!(bench.add(&packet, &overlaps).is_none());
            if offset + len <= 8 {
                bench.expect(2, 0, 0);
                continue;
            }
            bench.expect(2, 0, 2);
            // The remaining fragments, and then all fragments again, do not complete a datagram.
            assert!(bench.add(&packet, &piece(1, 0, true, 8)).is_none());
            assert!(bench.add(&packet, &piece(1, 8, false, 24)).is_none());
            bench.expect(4, 0, 4);
            // Another datagram is reassembled.
            assert!(bench.add(&packet, &piece(2, 0, true, 8)).is_none());
            assert!(bench.add(&packet, &piece(2, 8, false, 8)).is_some());
            // A datagram with the same id is reassembled after the timeout.
            bench.pass(60);
            assert!(bench.add(&packet, &piece(1, 0, true, 8)).is_none());
            assert!(bench.add(&packet, &piece(1, 8, false, 8)).is_some());
            bench.expect(8, 2, 4);
        }
    }
}

#[test]
fn contradictory_ends_drop_the_datagram() {
    let last = piece(1, 16, false, 16);
    for second in [
        piece(1, 32, true, 8),
        piece(1, 32, false, 8),
        piece(1, 24, true, 8),
        piece(1, 8, false, 8),
        piece(1, 16, true, 16),
    ] {
        let mut bench = Bench::new();
        assert!(bench.add(&v4(), &last).is_none());
        assert!(bench.add(&v4(), &second).is_none());
        bench.expect(2, 0, 2);
    }
    let mut bench = Bench::new();
    assert!(bench.add(&v4(), &piece(1, 64, true, 8)).is_none());
    assert!(bench.add(&v4(), &last).is_none());
    bench.expect(2, 0, 2);
}

#[test]
fn invalid_fragment_is_dropped_alone() {
    let packet = v4();
    let mut bench = Bench::new();
    assert!(bench.add(&packet, &piece(1, 0, true, 8)).is_none());
    assert!(bench.add(&packet, &piece(1, 8, true, 12)).is_none());
    assert!(bench.add(&packet, &piece(1, 8, true, 0)).is_none());
    bench.expect(3, 0, 2);
    assert!(bench.add(&packet, &piece(1, 8, false, 5)).is_some());
    bench.expect(4, 1, 2);
}

#[test]
fn tiny_fragments_are_reassembled_up_to_a_limit() {
    let packet = v6();
    let (datagram, pieces) = datagram(&packet, 8 * PIECES - 8, 8);
    assert_eq!(pieces.len(), PIECES);
    let mut bench = Bench::new();
    for piece in &pieces[1..] {
        assert!(bench.add(&packet, piece).is_none());
    }
    check(bench.add(&packet, &pieces[0]), &packet, &datagram);

    let mut bench = Bench::new();
    for n in 0..=PIECES {
        assert!(bench.add(&packet, &piece(1, 16 * n, true, 8)).is_none());
    }
    let all = PIECES as u64 + 1;
    bench.expect(all, 0, all);
}

#[test]
fn oldest_datagram_is_evicted_beyond_the_limit() {
    let packet = v4();
    let mut bench = Bench::new();
    for id in 0..=64 {
        assert!(bench.add(&packet, &piece(id, 0, true, 8)).is_none());
    }
    bench.expect(65, 0, 1);
    assert_eq!(bench.reassembly.datagrams.len(), 64);
    assert!(
        bench.add(&packet, &piece(1, 8, false, 8)).is_some(),
        "the second is still there"
    );
    assert!(
        bench.add(&packet, &piece(0, 8, false, 8)).is_none(),
        "the first is not"
    );
    bench.expect(67, 1, 1);
}

#[test]
fn memory_of_fragments_is_limited() {
    let mut bench = Bench::new();
    for id in 0..1_000 {
        let _ = bench.add(&v6(), &piece(id, 65_528, false, 7));
        let _ = bench.add(&v6(), &piece(id, 0, true, 8));
    }
    let held: usize = bench
        .reassembly
        .datagrams
        .iter()
        .map(|datagram| match &datagram.state {
            AssemblyState::Gathering(pieces) => pieces.bytes.capacity(),
            AssemblyState::Refused => 0,
        })
        .sum();
    assert!(held <= 64 * (ROOM + 65_535), "{held}");
}

#[test]
fn incomplete_datagram_expires() {
    let mut bench = Bench::new();
    assert!(bench.add(&v6(), &piece(1, 0, true, 8)).is_none());
    assert!(bench.add(&v4(), &piece(1, 0, true, 8)).is_none());
    assert!(bench.add(&v4(), &piece(1, 16, true, 8)).is_none());
    assert_eq!(
        bench.reassembly.next_timeout(),
        Some(T0 + Duration::from_secs(30))
    );
    bench.pass(29);
    bench.expect(3, 0, 0);
    bench.pass(1);
    bench.expect(3, 0, 2);
    assert_eq!(
        bench.reassembly.next_timeout(),
        Some(T0 + Duration::from_secs(60))
    );
    // A later fragment does not extend the timeout.
    assert!(bench.add(&v6(), &piece(1, 8, true, 8)).is_none());
    bench.pass(30);
    bench.expect(4, 0, 4);
    assert_eq!(bench.reassembly.next_timeout(), None);
    assert_eq!(bench.reassembly.datagrams.capacity(), 0);
}

#[test]
fn nested_fragment_is_refused() {
    let packet = Ip {
        protocol: DESTINATION_OPTIONS,
        ..v6()
    };
    let mut bench = Bench::new();
    assert!(bench.add(&packet, &piece(1, 16, false, 32)).is_none());
    let mut outer = piece(1, 0, true, 16);
    // Destination options of 8 bytes, then a fragment header at offset 8.
    outer.data = vec![44, 0, 1, 4, 0, 0, 0, 0, protocol::UDP, 0, 0, 8, 0, 0, 0, 9];
    let mut whole = bench.add(&packet, &outer).unwrap();
    assert_eq!(whole.open(|_, _| ()), Err(FrameError::IpHeader));
}

#[test]
fn fragments_of_two_datagrams_with_one_id_fail_the_checksum() {
    for packet in [v4(), v6()] {
        let (_, pieces) = datagram(&packet, 3_000, 1_448);
        let mut others = pieces.clone();
        // A datagram of the same length: a fast sender reuses all ids before the timeout of a lost fragment.
        others[1].data[7] ^= 1;
        let mut bench = Bench::new();
        assert!(bench.add(&packet, &pieces[0]).is_none());
        assert!(bench.add(&packet, &others[1]).is_none());
        let mut whole = bench.add(&packet, &pieces[2]).unwrap();
        assert_eq!(whole.open(|_, _| ()), Err(FrameError::Transport(protocol::UDP)));
    }
}

#[test]
fn udp_without_a_checksum_is_accepted_in_ipv4_only() {
    let without = |packet: &Ip| {
        let (_, mut pieces) = datagram(packet, 40, 16);
        pieces[0].data[6..8].fill(0);
        open(packet, &pieces)
    };
    assert_eq!(without(&v4()), Ok(()));
    assert_eq!(without(&v6()), Err(FrameError::Transport(protocol::UDP)));
}

#[test]
fn bytes_after_the_udp_length_are_not_in_the_checksum() {
    for packet in [v4(), v6()] {
        let (_, mut pieces) = datagram(&packet, 40, 16);
        pieces[2].data.extend(*b"padding");
        assert_eq!(open(&packet, &pieces), Ok(()));
    }
}

#[test]
fn tcp_and_icmp_checksums_are_verified() {
    for (packet, number, place) in [
        (v4(), protocol::TCP, 16),
        (v6(), protocol::TCP, 16),
        (v4(), protocol::ICMP, 2),
        (v6(), protocol::ICMPV6, 2),
    ] {
        let packet = Ip {
            protocol: number,
            ..packet
        };
        let mut bytes: Vec<u8> = (0..45).collect();
        // TCP header of 20 bytes, without options.
        bytes[12] = 0x50;
        bytes[place..place + 2].fill(0);
        let sum = match number {
            protocol::ICMP => Sum::new(),
            _ => Sum::pseudo(packet.source, packet.destination, number, bytes.len()),
        };
        let checksum = sum.add(&bytes).finish();
        bytes[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(open(&packet, &cut(&bytes, 16)), Ok(()), "{number}");
        bytes[30] ^= 4;
        let refused = open(&packet, &cut(&bytes, 16));
        assert_eq!(refused, Err(FrameError::Transport(number)));
    }
}

#[test]
fn other_protocols_are_not_verified() {
    let packet = Ip {
        protocol: 132,
        ..v6()
    };
    assert_eq!(open(&packet, &cut(&[9; 40], 16)), Ok(()));
}

#[test]
fn partial_checksum_is_not_verified() {
    let packet = v4();
    let (_, mut pieces) = datagram(&packet, 40, 16);
    pieces[0].data[6..8].fill(7);
    pieces[1].checksum = Checksum::Partial { start: 34, offset: 6 };
    assert_eq!(open(&packet, &pieces), Ok(()));
}

proptest! {
    #[test]
    fn any_order_of_fragments_reassembles_the_datagram(
        v6_family: bool,
        len in 1..5_000_usize,
        units in 1..60_usize,
        order in Just((0..PIECES).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let packet = if v6_family { v6() } else { v4() };
        let (datagram, pieces) = datagram(&packet, len.min(units * 8 * PIECES - 8), units * 8);
        prop_assume!(pieces.len() > 1);
        let n = pieces.len();
        let mut bench = Bench::new();
        let mut order = order.into_iter().filter(|index| *index < n);
        let last = order.next_back().expect("more than one");
        for index in order {
            prop_assert!(bench.add(&packet, &pieces[index]).is_none());
        }
        check(bench.add(&packet, &pieces[last]), &packet, &datagram);
        bench.expect(n as u64, 1, 0);
    }

    #[test]
    fn memory_count_is_exact_for_arbitrary_fragments(
        pieces in prop::collection::vec((0..3_u32, 0..12_usize, any::<bool>(), 0..40_usize), 0..200),
        v6_family: bool,
    ) {
        let packet = if v6_family { v6() } else { v4() };
        let mut bench = Bench::new();
        for (id, unit, more, len) in &pieces {
            // A fragment header with offset 0 and no more fragments belongs to an atomic fragment.
            let place = (*unit, *more);
            if place != (0, false) {
                let _ = bench.add(&packet, &piece(*id, unit * 8, *more, *len));
            }
        }
        let held: u64 = bench.reassembly.datagrams.iter().map(PartialDatagram::held).sum();
        prop_assert!(bench.counters.fragments_dropped + held <= bench.counters.fragments_up);
        bench.pass(60);
        prop_assert_eq!(bench.reassembly.next_timeout(), None);
    }
}

/// Returns a UDP packet with `len` bytes of data, and its fragments of up to `size` bytes.
fn datagram(packet: &Ip, len: usize, size: usize) -> (Vec<u8>, Vec<Piece>) {
    let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
    let header = emit::Ip {
        source: packet.source,
        destination: packet.destination,
        hop_limit: 64,
        traffic_class: 0,
        dont_fragment: false,
        ident: 0,
    };
    let head = emit::udp(ETHER, header, 4444, 5555, len);
    let mut bytes = head.bytes().to_vec();
    checksum::complete(&mut bytes, head.checksum, [&data[..]]).unwrap();
    let upper = [&bytes[bytes.len() - 8..], &data].concat();
    (data, cut(&upper, size))
}

/// Splits the bytes of an upper-layer packet into fragments.
fn cut(upper: &[u8], size: usize) -> Vec<Piece> {
    let count = upper.len().div_ceil(size);
    let pieces = upper.chunks(size).enumerate().map(|(n, data)| Piece {
        id: 7,
        offset: n * size,
        more: n + 1 < count,
        data: data.to_vec(),
        checksum: Checksum::Complete,
    });
    pieces.collect()
}

/// Reassembles a datagram and parses it.
#[track_caller]
fn open(packet: &Ip, pieces: &[Piece]) -> Result<(), FrameError> {
    let mut bench = Bench::new();
    let (last, first) = pieces.split_last().unwrap();
    for piece in first {
        assert!(bench.add(packet, piece).is_none());
    }
    bench.add(packet, last).expect("complete").open(|_, _| ())
}

fn piece(id: u32, offset: usize, more: bool, len: usize) -> Piece {
    Piece {
        id,
        offset,
        more,
        data: vec![0x5a; len],
        checksum: Checksum::Complete,
    }
}

/// Checks that `whole` is the datagram.
#[track_caller]
fn check(whole: Option<Whole>, packet: &Ip, datagram: &[u8]) {
    let mut whole = whole.expect("complete");
    whole
        .open(|parsed, frame| {
            let Body::Ip(ip, Transport::Udp(udp)) = parsed.body else {
                panic!("no UDP");
            };
            assert_eq!(
                (parsed.source, parsed.destination),
                (ETHER.source, ETHER.destination)
            );
            assert_eq!((ip.source, ip.destination), (packet.source, packet.destination));
            assert_eq!((ip.hop_limit, ip.traffic_class), (64, 0xb8));
            assert_eq!((ip.fragment, ip.dont_fragment), (None, false));
            assert_eq!((udp.source_port, udp.destination_port), (4444, 5555));
            let mut data = vec![0; udp.payload_len];
            assert_eq!(frame.copy(udp.payload_offset, &mut data), datagram.len());
            assert_eq!(data, datagram);
        })
        .unwrap();
}

fn v4() -> Ip {
    Ip {
        source: IpAddr::from([10, 0, 2, 15]),
        destination: IpAddr::from([192, 0, 2, 1]),
        hop_limit: 64,
        traffic_class: 0,
        dont_fragment: false,
        protocol: protocol::UDP,
        fragment: None,
        payload_offset: 0,
        payload_len: 0,
    }
}

fn v6() -> Ip {
    Ip {
        source: "fd00::15".parse().unwrap(),
        destination: "2001:db8::1".parse().unwrap(),
        ..v4()
    }
}

/// Protocol number of IPv6 destination options.
const DESTINATION_OPTIONS: u8 = 60;
