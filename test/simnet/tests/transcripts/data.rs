//! Tests of data from the guest, received in and out of order.

use pontoon_simnet::settings::addressing;
use pontoon_wire::emit;
use pontoon_wire::frame::Fragment;
use pontoon_wire::vnet::Offload;

use super::*;

#[test]
fn data_is_delivered_in_order_and_acknowledged() {
    let mut given = Given::open(Script::SINK);
    let payload = Given::guest_bytes(0, 100);
    given.up(up(ACK, 1001, 1).carrying(payload));
    given.down(down(ACK, 1, 1101));
    given.quiet();
    given.counted(one_each);
}

#[test]
fn data_out_of_order_is_stored_and_reported_by_sack() {
    let mut given = Given::open(Script::SINK);
    let data = |at: u64| up(ACK, 1001 + at as u32, 1).carrying(Given::guest_bytes(at, 100));
    given.up(data(200));
    given.down(Segment {
        sack: vec![(1201, 1301)],
        ..down(ACK, 1, 1001)
    });
    given.up(data(0));
    given.down(Segment {
        sack: vec![(1201, 1301)],
        ..down(ACK, 1, 1101)
    });
    given.up(data(100));
    given.down(down(ACK, 1, 1301));
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 3;
        counters.frames_down += 3;
        counters.tcp_out_of_order += 1;
    });
}

#[test]
fn urgent_data_is_delivered_in_line() {
    let mut given = Given::open(Script::SINK);
    let payload = Given::guest_bytes(0, 10);
    given.up(Segment {
        urgent: 5,
        payload,
        ..up(ACK.and(URG), 1001, 1)
    });
    given.down(down(ACK, 1, 1011));
    given.quiet();
}

#[test]
fn keepalive_probe_is_answered_and_enables_keepalive_on_the_host() {
    for payload in [vec![], vec![0x5a]] {
        let mut given = Given::open(Script::SINK);
        given.up(up(ACK, 1000, 1).carrying(payload));
        given.down(down(ACK, 1, 1001));
        given.quiet();
        assert!(given.host.reports().all(|report| report.keepalive));
    }
}

#[test]
fn segment_without_ack_is_ignored() {
    let mut given = Given::open(Script::SINK);
    ignores(&mut given, up(PSH, 1001, 0));
    ignores(&mut given, up(FIN, 1001, 0));
}

#[test]
fn burst_of_more_parts_than_one_send_accepts_is_delivered() {
    let mut given = Given::open(Script::SINK);
    given.burst_up((0..700).map(|at| up(ACK, 1001 + at as u32, 1).carrying(Given::guest_bytes(at, 1))));
    let last = take_last(&mut given);
    assert_eq!(last.ack, 1701);
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 700;
        counters.frames_down += 3;
    });
}

/// Tests a burst whose data does not fit one send. The engine detects the host's reset during that send, so the
/// segment that did not fit belongs to no connection.
#[test]
fn connection_ends_within_a_burst() {
    let patience = Duration::from_secs(2);
    let mut given = Given::open(Script {
        patience,
        ..Script::SINK
    });
    given.forget_counters();
    given.host.tick(START + 2 * patience);
    assert!(!given.host.events().is_empty(), "the host's own event, lost");
    given.burst_up((0..300).map(|at| up(ACK, 1001 + at as u32, 1).carrying(Given::guest_bytes(at, 1))));
    let resets = given.take();
    assert_eq!(resets.len(), 1 + 44, "{resets:?}");
    given.counted(|counters| {
        counters.frames_up += 300;
        counters.frames_down += 45;
        counters.tcp_reset_by_host += 1;
        counters.tcp_unknown += 44;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

/// Tests fragments of a datagram within a burst of TCP data. The reassembled datagram is processed at its last
/// fragment, after the data of the burst before it.
#[test]
fn fragments_are_reassembled_within_a_burst() {
    let mut given = Given::open(Script::SINK);
    let data = |at: u64| given.frame(up(ACK, 1001 + at as u32, 1).carrying(Given::guest_bytes(at, 10)));
    let [first, second] = fragments(&[0x5a; 32]);
    let burst = vec![data(0), first, second, data(10)];
    given.frames_up(Offload::NONE, burst);
    assert_eq!(take_last(&mut given).ack, 1021);
    given.counted(|counters| {
        counters.frames_up += 4;
        counters.frames_down += 1;
        counters.fragments_up += 2;
        counters.reassembled += 1;
        counters.udp_up += 1;
    });
    let sent_again = up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 20));
    given.up(sent_again);
    assert_eq!(take_last(&mut given).ack, 1021);
}

/// Returns the frames of a datagram from the guest in two IPv4 fragments.
fn fragments(data: &[u8]) -> [Vec<u8>; 2] {
    let whole = Packet::Udp(Datagram {
        from: GUEST,
        to: SERVER,
        payload: data.to_vec(),
    });
    let ether = addressing().ether();
    let frame = whole.emit(ether);
    let packet = &frame[frame.len() - data.len() - 8..];
    let ip = emit::Ip {
        source: GUEST.ip(),
        destination: SERVER.ip(),
        hop_limit: 64,
        traffic_class: 0,
        dont_fragment: false,
        ident: 0,
    };
    let ether = emit::Ether {
        source: ether.source,
        destination: ether.destination,
    };
    let piece = |offset: u32, more, bytes: &[u8]| {
        let place = Fragment { id: 7, offset, more };
        let head = emit::fragment(ether, ip, 17, place, bytes.len());
        [head.bytes(), bytes].concat()
    };
    let (first, second) = packet.split_at(16);
    [piece(0, true, first), piece(16, false, second)]
}

/// Tests that a slot freed by a reset is used by the next connection in the same burst.
#[test]
fn slot_is_reused_within_a_burst() {
    let mut given = Given::open(Script::SINK);
    let data = up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 10));
    let again = Segment {
        from: (GUEST_V4, 40_001).into(),
        to: (SERVER_V4, PORT + 1).into(),
        ..syn()
    };
    given.host.serve(PORT + 1, ConnectResult::Now, Script::SINK);
    given.burst_up([data, up(RST, 1011, 0), again.clone()]);
    let answer = given.take_one();
    assert_eq!((answer.flags, answer.to), (SYN.and(ACK), again.from));
    given.counted(|counters| {
        counters.frames_up += 3;
        counters.frames_down += 1;
        counters.tcp_reset_by_guest += 1;
        counters.tcp_opened += 1;
    });
}

#[test]
fn fin_beyond_the_window_is_ignored_and_a_second_fin_has_no_effect() {
    let mut given = Given::open(Script::SINK);
    // The window that a new connection advertises is less than 64 KiB.
    let beyond =
        |at: u32, len| up(FIN.and(ACK), 1001 + at, 1).carrying(Given::guest_bytes(u64::from(at), len));
    let mut edge = 1001;
    for at in (0..60_000).step_by(1400) {
        given.up(beyond(at, 1400));
        let answer = take_last(&mut given);
        assert!(answer.ack <= 1001 + at + 1401);
        edge = answer.ack;
        if edge == 1001 + at + 1401 {
            break;
        }
    }
    assert_eq!(edge, 2402, "the first FIN is in the window, and the end");
    given.pass(millis(1));
    given.take();
    given.up(up(FIN.and(ACK), 2401, 1));
    given.take();
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Closed));
}

#[test]
fn fin_beyond_the_window_is_not_acknowledged() {
    let mut given = Given::open(Script::SINK);
    // The window is not advanced until half of it is used, so its right edge is that of the SYN-ACK, 32 KiB.
    given.up(up(FIN.and(ACK), 33_001, 1).carrying(Given::guest_bytes(32_000, 1400)));
    let answer = given.take_one();
    assert_eq!(answer.ack, 1001);
    let mut at = 0;
    while at < 33_400 {
        let len = 1400.min(33_400 - at);
        given.up(up(ACK, 1001 + at as u32, 1).carrying(Given::guest_bytes(at as u64, len)));
        at += len;
    }
    let last = take_last(&mut given);
    assert_eq!(last.ack, 1001 + 33_400, "all data, no FIN");
}

/// Tests that a failed send resets the host's connection: after a FIN the peer would regard incomplete data as
/// complete.
#[test]
fn failed_send_resets_both_connections() {
    let mut given = Given::open(Script::SINK);
    given.host.fail_send(Failure::Prohibited);
    given.up(up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 100)));
    given.down(down(RST.and(ACK), 1, 1101));
    given.quiet();
    given.pass(millis(1));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
}
