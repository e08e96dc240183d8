//! Tests of ICMP errors of a router behind the guest that reports segments as too large (RFC 1191, RFC 8201, RFC
//! 5927).

use super::*;

/// Returns the ICMP error Fragmentation Needed about `segment`, from a router between the guest and a host behind it.
fn fragmentation_needed(segment: &Segment, mtu: u16) -> Packet {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (segment.from.ip(), segment.to.ip()) else {
        unreachable!("the server is of IPv4");
    };
    let mut quote = vec![0x45, 0, 5, 220, 0, 0, 0x40, 0, 63, 6, 0, 0];
    quote.extend(from.octets().iter().chain(&to.octets()));
    quote.extend(segment.from.port().to_be_bytes());
    quote.extend(segment.to.port().to_be_bytes());
    quote.extend(segment.seq.to_be_bytes());
    Packet::Icmp(IcmpMessage {
        from: GUEST_V4.into(),
        to: segment.from.ip(),
        kind: 3,
        code: 4,
        rest: [&[0, 0], &mtu.to_be_bytes()[..], &quote].concat(),
    })
}

/// Returns an engine whose server has sent three segments, and the first of them.
fn three_in_flight() -> (Given, Segment) {
    let mut given = Given::open(Script::sending(4380));
    given.pass(millis(1));
    let sent = given.take();
    let [Packet::Tcp(first), ..] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!((sent.len(), first.payload.len()), (3, 1460));
    let first = first.clone();
    given.forget_counters();
    (given, first)
}

/// Acknowledges each segment at once, and returns the payload sizes of the segments.
fn rest(given: &mut Given, mut at: u32) -> Vec<usize> {
    let mut lens = Vec::new();
    while at < 4381 {
        for packet in given.take() {
            let Packet::Tcp(segment) = packet else {
                panic!("{packet:?}");
            };
            assert_eq!(
                segment.payload,
                Given::server_bytes(u64::from(at) - 1, segment.payload.len())
            );
            at += segment.payload.len() as u32;
            lens.push(segment.payload.len());
        }
        given.up(up(ACK, 1001, at));
    }
    lens
}

#[test]
fn segments_that_are_too_large_are_retransmitted_in_smaller_ones() {
    let (mut given, first) = three_in_flight();
    given.packet_up(&fragmentation_needed(&first, 1000));
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.tcp_retransmits += 1;
        counters.tcp_too_big += 1;
    });
    // The errors about the other two segments have no effect.
    given.packet_up(&fragmentation_needed(
        &Segment {
            seq: first.seq + 1460,
            ..first.clone()
        },
        1000,
    ));
    given.counted(|counters| counters.frames_up += 1);
    assert_eq!(rest(&mut given, 1), [960, 960, 960, 960, 540]);
}

/// Tests the minimum of the path MTU, which is Linux's `ip_rt_min_pmtu`, and applies to old routers that report no
/// MTU.
#[test]
fn segment_size_has_a_minimum() {
    for mtu in [0, 68, 551] {
        let (mut given, first) = three_in_flight();
        given.packet_up(&fragmentation_needed(&first, mtu));
        assert_eq!(rest(&mut given, 1), [[512; 8].to_vec(), vec![284]].concat());
    }
}

#[test]
fn error_that_quotes_no_segment_in_flight_is_ignored() {
    let (mut given, first) = three_in_flight();
    let elsewhere = [
        Segment {
            seq: first.seq - 1,
            ..first.clone()
        },
        Segment {
            seq: first.seq + 4380,
            ..first.clone()
        },
        Segment {
            to: (GUEST_V4, 1).into(),
            ..first.clone()
        },
        Segment {
            from: (SERVER_V4, 1).into(),
            ..first.clone()
        },
    ];
    for segment in elsewhere {
        given.packet_up(&fragmentation_needed(&segment, 1000));
        given.counted(|counters| counters.frames_up += 1);
    }
    // An error with a larger MTU is ignored as well.
    given.packet_up(&fragmentation_needed(&first, 1500));
    given.counted(|counters| counters.frames_up += 1);
    given.quiet();
}

/// Tests ICMP errors about datagrams from the engine, which are only counted.
#[test]
fn errors_about_other_packets_are_counted() {
    let (mut given, first) = three_in_flight();
    let Packet::Icmp(mut error) = fragmentation_needed(&first, 1000) else {
        unreachable!("it is made above");
    };
    error.rest[4 + 9] = 17;
    given.packet_up(&Packet::Icmp(error));
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.unknown_protocol += 1;
    });
    given.quiet();
}
