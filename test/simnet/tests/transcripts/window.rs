//! Tests of closed and shrinking receive windows of the guest (RFC 9293 section 3.8.6).

use super::*;

#[test]
fn closed_window_is_probed_and_reopens() {
    let mut given = Given::serving(Script::source(1000));
    given.up(syn());
    given.down(syn_ack());
    given.up(Segment {
        window: 0,
        ..up(ACK, 1001, 1)
    });
    given.pass(millis(1));
    given.quiet();
    given.pass(Duration::from_secs(5));
    let probes = given.take();
    assert!((2..=20).contains(&probes.len()), "{probes:?}");
    for probe in probes {
        let Packet::Tcp(probe) = probe else {
            panic!("{probe:?}")
        };
        assert!(probe.payload.len() <= 1, "{probe:?}");
    }
    given.up(Segment {
        window: 5000,
        ..up(ACK, 1001, 1)
    });
    let payload = Given::server_bytes(0, 1000);
    given.down(down(ACK.and(FIN), 1, 1001).carrying(payload));
    given.quiet();
}

/// Tests a window that shrinks to zero over data in flight, which the engine must probe (RFC 9293 section 3.8.6).
#[test]
fn window_that_closes_over_data_in_flight_is_probed() {
    let mut given = Given::open(Script::sending(1000));
    given.pass(millis(1));
    assert_eq!(given.take().len(), 1);
    let shut = Segment {
        window: 0,
        payload: Given::guest_bytes(1, 1),
        ..up(ACK, 1002, 1)
    };
    given.up(up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 1)));
    given.up(shut);
    given.take();
    given.pass(Duration::from_secs(10));
    let probes = given.take();
    assert!((2..=20).contains(&probes.len()), "{probes:?}");
    given.up(Segment {
        window: 5000,
        ..up(ACK, 1003, 1)
    });
    given.pass(Duration::from_secs(60));
    let payload = Given::server_bytes(0, 1000);
    given.down(down(ACK, 1, 1003).carrying(payload));
}

#[test]
fn connection_ends_if_probes_of_a_closed_window_are_not_answered() {
    let mut given = Given::open(Script::source(100));
    for at in 0..2 {
        given.up(Segment {
            window: if at == 0 { 1000 } else { 0 },
            payload: Given::guest_bytes(at, 1),
            ..up(ACK, 1001 + at as u32, 1)
        });
    }
    given.take();
    given.pass(Duration::from_secs(100));
    assert_eq!(given.engine.flows(), 1);
    given.pass(Duration::from_secs(3000));
    // The probe has an old sequence number, so that the guest answers it.
    let probe = down(ACK, 0, 1003);
    for _ in 0..12 {
        given.down(probe.clone());
    }
    given.down(down(RST.and(ACK), 1, 1003));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
}

/// Tests that a window may stay closed for any time, and that data sent when it opens has its full number of
/// retransmissions (RFC 9293 section 3.8.6.1).
#[test]
fn answered_window_probes_do_not_count_as_timeouts() {
    let mut given = Given::serving(Script::sending(1000));
    given.up(syn());
    given.down(syn_ack());
    let shut = Segment {
        window: 0,
        ..up(ACK, 1001, 1)
    };
    given.up(shut.clone());
    let mut probes = 0;
    for _ in 0..400 {
        given.pass(Duration::from_secs(1));
        probes += given.take().len();
        given.up(shut.clone());
    }
    assert!(probes > 12, "{probes}");
    given.forget_counters();
    given.up(up(ACK, 1001, 1));
    let data = down(ACK, 1, 1001).carrying(Given::server_bytes(0, 1000));
    given.down(data.clone());
    given.pass(millis(300));
    given.down(data);
    given.pass(Duration::from_secs(100));
    assert_eq!(given.engine.flows(), 1);
}

/// Tests a guest that closes its window over data in flight: Linux without memory advertises a window of zero, and
/// rejects segments beyond it.
#[test]
fn acknowledgements_are_within_a_shrunk_window() {
    let mut given = Given::open(Script::sending(5000));
    given.pass(millis(1));
    let Packet::Tcp(first) = given.take().swap_remove(0) else {
        panic!("no segment");
    };
    assert!(!first.payload.is_empty());
    let shut = |segment| Segment { window: 0, ..segment };
    given.up(shut(up(ACK, 1001, 1)));
    given.take();
    given.up(shut(up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 10))));
    let answer = given.take_one();
    assert_eq!((answer.flags, answer.seq), (ACK, first.seq));
}
