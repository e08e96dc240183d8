//! Tests of the end of connections: FIN from either side, TIME-WAIT, RST.

use core::num::NonZeroUsize;

use super::*;

/// Returns a connection in TIME-WAIT: the engine's FIN came first. The next sequence numbers are 1002 (guest) and 2
/// (engine).
fn time_wait() -> Given {
    let mut given = Given::open(Script::source(0));
    given.pass(millis(1));
    given.up(up(FIN.and(ACK), 1001, 2));
    assert_eq!(
        given.take().len(),
        2,
        "the engine's FIN and its last acknowledgement"
    );
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    given.forget_counters();
    given
}

#[test]
fn guest_closes_first_with_data_and_fin_in_one_segment() {
    let mut given = Given::open(Script::SINK);
    let payload = Given::guest_bytes(0, 10);
    given.up(up(ACK.and(FIN), 1001, 1).carrying(payload));
    given.down(down(ACK, 1, 1012));
    given.quiet();
    given.pass(millis(1));
    given.down(down(ACK.and(FIN), 1, 1012));
    given.quiet();
    given.up(up(ACK, 1012, 2));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Closed));
}

#[test]
fn host_closes_first_and_time_wait_acknowledges_again() {
    let mut given = Given::open(Script::source(100));
    given.pass(millis(1));
    let payload = Given::server_bytes(0, 100);
    given.down(down(ACK.and(FIN), 1, 1001).carrying(payload));
    given.quiet();
    given.up(up(ACK, 1001, 102));
    given.quiet();
    let fin = up(ACK.and(FIN), 1001, 102);
    given.up(fin.clone());
    given.down(down(ACK, 102, 1002));
    given.quiet();
    assert_eq!(
        (given.engine.flows(), given.host.open()),
        (1, 0),
        "TIME_WAIT without a socket"
    );
    // The guest has not received the engine's acknowledgement.
    given.up(fin);
    given.down(down(ACK, 102, 1002));
    given.quiet();
    given.pass(Duration::from_secs(120));
    given.quiet();
    assert_eq!(given.engine.flows(), 0);
}

/// Returns a connection to a server with this script, on a host of which a peek returns at most 30 bytes.
fn with_short_peeks(script: Script) -> Given {
    let host = HostPlan {
        peek_limit: NonZeroUsize::new(30),
        ..HostPlan::default()
    };
    let mut given = Given::new(config(1500), PLAIN, host);
    given.host.serve(PORT, ConnectResult::Now, script);
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given
}

#[test]
fn data_and_fin_behind_a_short_peek_are_sent() {
    let mut given = with_short_peeks(Script::source(100));
    given.pass(millis(1));
    for (at, len) in [(0, 30), (30, 30), (60, 30), (90, 10)] {
        given.down(down(ACK, at + 1, 1001).carrying(Given::server_bytes(at.into(), len)));
    }
    given.down(down(ACK.and(FIN), 101, 1001));
    given.quiet();
    given.up(up(ACK, 1001, 102));
    given.up(up(ACK.and(FIN), 1001, 102));
    given.down(down(ACK, 102, 1002));
    given.quiet();
}

#[test]
fn data_behind_a_short_peek_is_sent_without_an_event() {
    let mut given = with_short_peeks(Script {
        send: 100,
        ..Script::SINK
    });
    given.pass(millis(1));
    assert_eq!(take_bytes(&mut given), 100);
    given.up(up(ACK, 1001, 101));
    given.quiet();
}

#[test]
fn lost_fin_is_retransmitted() {
    let mut given = Given::open(Script::source(0));
    given.pass(millis(1));
    let fin = down(ACK.and(FIN), 1, 1001);
    given.down(fin.clone());
    given.quiet();
    given.pass(Duration::from_secs(2));
    given.down(fin);
}

/// Tests that an acknowledged FIN is not sent again because of later events, which report a stream as readable after
/// its end.
#[test]
fn acknowledged_fin_is_not_retransmitted() {
    let mut given = Given::open(Script::source(100));
    given.pass(millis(1));
    given.up(up(ACK, 1001, 102));
    given.take();
    let over = Readiness {
        error: false,
        ..TROUBLE
    };
    given.event(flow(0, 0), over);
    given.pass(Duration::from_secs(300));
    given.quiet();
    assert_eq!(given.engine.flows(), 1);
}

#[test]
fn unusual_segments_in_time_wait_are_acknowledged() {
    let mut given = time_wait();
    ignores(&mut given, up(ACK, 1002, 2));
    ignores(&mut given, up(RST, 1001, 0));
    ignores(&mut given, up(RST, 1003, 0));
    let data = up(ACK, 1001, 2).carrying(vec![0]);
    // An old SYN, a SYN-ACK, old data and an old FIN are all acknowledged once more.
    for late in [
        up(SYN, 1002, 0),
        up(SYN.and(ACK), 5000, 2),
        data,
        up(FIN.and(ACK), 1001, 2),
    ] {
        given.up(late);
        given.down(down(ACK, 2, 1002));
        given.quiet();
        given.counted(one_each);
    }
    ends(&mut given, up(RST, 1002, 0));
}

/// Tests that a new SYN ends TIME-WAIT. The host refuses the second connection, by which the test detects that it was
/// opened.
#[test]
fn syn_with_higher_sequence_number_ends_time_wait() {
    let mut given = time_wait();
    given.up(up(SYN, 1003, 0));
    let answer = given.take_one();
    assert_eq!((answer.flags, answer.ack), (RST.and(ACK), 1004));
    given.counted(|counters| {
        one_each(counters);
        counters.tcp_opened += 1;
        counters.tcp_connect_failed += 1;
    });
    assert_eq!(given.engine.flows(), 0);
}

#[test]
fn reset_of_the_host_after_its_fin_resets_the_guest() {
    let mut given = Given::open(Script {
        patience: Duration::from_secs(2),
        ..Script::source(100)
    });
    given.pass(Duration::from_secs(1));
    given.up(up(ACK, 1001, 102));
    given.take();
    given.forget_counters();
    given.pass(Duration::from_secs(2));
    given.down(down(RST.and(ACK), 102, 1001));
    given.quiet();
    given.counted(|counters| {
        counters.frames_down += 1;
        counters.tcp_reset_by_host += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

/// Tests that a FIN of the host is not forwarded if a reset follows before the engine has read it.
#[test]
fn reset_of_the_host_before_its_fin_is_read_resets_the_guest() {
    let patience = Duration::from_secs(2);
    let mut given = Given::serving(Script {
        patience,
        ..Script::source(100)
    });
    given.up(syn());
    given.down(syn_ack());
    for after in [patience / 2, 2 * patience] {
        given.host.tick(START + after);
    }
    given.up(up(ACK, 1001, 1));
    given.pass(Duration::ZERO);
    let flags: Vec<_> = given
        .take()
        .into_iter()
        .map(|packet| match packet {
            Packet::Tcp(segment) => (segment.flags, segment.payload.len()),
            other => panic!("{other:?} is no segment"),
        })
        .collect();
    assert_eq!(flags, [(PSH.and(ACK), 100), (RST.and(ACK), 0)]);
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

/// Returns a connection that the host has closed and will reset within two seconds, while the link has no room for
/// five seconds. The next sequence numbers are 1001 (guest) and 102 (engine).
fn about_to_reset(host: HostPlan) -> Given {
    let mut given = Given::new(any(), PLAIN, host);
    let closes_and_resets = Script {
        patience: Duration::from_secs(2),
        ..Script::source(100)
    };
    given.host.serve(PORT, ConnectResult::Now, closes_and_resets);
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given.pass(Duration::from_secs(1));
    given.up(up(ACK, 1001, 102));
    given.take();
    given.forget_counters();
    given.link.fill(Duration::from_secs(5));
    given
}

/// Tests that the reset is sent after the link was full: a guest that only receives would otherwise not notice the
/// end.
#[test]
fn reset_is_sent_when_the_link_has_room() {
    let mut given = about_to_reset(HostPlan::default());
    given.pass(Duration::from_secs(4));
    given.quiet();
    given.counted(|counters| {
        counters.link_refused += 1;
        counters.tcp_reset_by_host += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    // A segment that arrives before the reset was sent is answered by a reset.
    for meanwhile in [
        up(ACK, 1001, 102).carrying(Given::guest_bytes(0, 10)),
        up(RST, 1001, 0),
        Segment { seq: 5000, ..syn() },
    ] {
        ignores(&mut given, meanwhile);
    }
    given.event(flow(0, 0), TROUBLE);
    given.pass(millis(999));
    given.quiet();
    given.counted(|_| {});
    given.pass(millis(1));
    given.down(down(RST.and(ACK), 102, 1001));
    given.counted(|counters| counters.frames_down += 1);
    assert_eq!((given.engine.flows(), given.engine.pool_in_use()), (0, 0));
    given.pass(Duration::from_secs(600));
    given.quiet();
    given.counted(|_| {});
}

#[test]
fn reset_refused_twice_is_sent_when_the_link_has_room() {
    let mut given = about_to_reset(HostPlan::default());
    given.pass(Duration::from_secs(4));
    let now = START + Duration::from_secs(5);
    given
        .engine
        .handle_link_ready(&mut given.link, &mut given.host, now);
    given.quiet();
    given.counted(|counters| {
        counters.link_refused += 2;
        counters.tcp_reset_by_host += 1;
    });
    assert_eq!(given.engine.parked(), 1);
    given.pass(Duration::from_secs(1));
    given.down(down(RST.and(ACK), 102, 1001));
    given.quiet();
    assert_eq!((given.engine.flows(), given.engine.parked()), (0, 0));
}

/// Tests that a connection whose reset waits for the link has released its descriptor, with which a client can be
/// accepted.
#[test]
fn connection_with_a_pending_reset_frees_its_descriptor_for_a_listener() {
    let scarce = HostPlan {
        descriptors: 1,
        ..HostPlan::default()
    };
    let mut given = about_to_reset(scarce);
    let at = START + Duration::from_secs(1);
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, at);
    given.pass(Duration::from_secs(4));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (2, 1));
    given.pass(Duration::from_secs(1));
    given.down(down(RST.and(ACK), 102, 1001));
    assert_eq!(given.take_one().from, (CLIENT, 5000).into());
}

#[test]
fn forget_guest_closes_all_connections() {
    let mut given = Given::open(Script::SINK);
    // One more connection, and the endpoint of a datagram.
    given.host.serve(81, ConnectResult::Now, Script::SINK);
    given.up(dial(41_000, 81));
    given.packet_up(&Packet::Udp(Datagram {
        from: (GUEST_V4, 5000).into(),
        to: (SERVER_V4, 7).into(),
        payload: vec![7; 40],
    }));
    given.take();
    assert_eq!((given.engine.flows(), given.host.open()), (3, 3));
    given.forget_guest();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.pass(Duration::from_secs(120));
    given.quiet();
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));

    // The next guest opens new connections.
    given.up(up(ACK, 1001, 1));
    assert!(given.take_one().flags.has(RST));
    given.host.serve(82, ConnectResult::Now, Script::SINK);
    given.up(dial(41_000, 82));
    let answer = given.take_one();
    assert!(answer.flags.has(SYN.and(ACK)), "{answer:?}");
}

/// Tests a reset with the sequence number of the guest's FIN, which macOS sends if data arrives for a closed socket
/// (Linux accepts it in `tcp_reset_check`).
#[test]
fn reset_with_the_sequence_number_of_the_fin_is_accepted() {
    let mut given = Given::open(Script::sending(100));
    given.up(up(FIN.and(ACK), 1001, 1));
    given.take();
    given.forget_counters();
    given.up(up(RST, 1001, 0));
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.tcp_reset_by_guest += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}
