//! Tests of idle connections: keepalive probes, and the end and the eviction of half-closed connections.

use pontoon_simnet::app::TransferPace;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Returns a connection whose guest has sent its FIN, while the peer's direction is open. The next sequence numbers
/// are 1002 (guest) and 1 (engine).
fn half_closed(script: Script) -> Given {
    let mut given = Given::open(script);
    given.up(up(FIN.and(ACK), 1001, 1));
    given.down(down(ACK, 1, 1002));
    given.quiet();
    given.forget_counters();
    given
}

/// Checks that the engine sends a keepalive probe.
#[track_caller]
fn probes(given: &mut Given, ack: u32) {
    given.down(down(ACK, 0, ack));
    given.quiet();
    given.counted(|counters| {
        counters.frames_down += 1;
        counters.tcp_keepalives += 1;
    });
}

#[track_caller]
fn nothing_in(given: &mut Given, time: Duration) {
    given.pass(time);
    given.quiet();
    given.counted(|_| {});
}

#[test]
fn idle_guest_is_probed_after_two_hours() {
    let mut given = Given::open(SILENT);
    for _ in 0..3 {
        nothing_in(&mut given, 2 * HOUR - millis(10));
        given.pass(millis(20));
        probes(&mut given, 1001);
        ignores(&mut given, up(ACK, 1001, 1));
    }
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn unanswered_probes_end_the_connection_on_both_sides() {
    let mut given = Given::open(SILENT);
    given.pass(2 * HOUR + millis(10));
    probes(&mut given, 1001);
    for _ in 1..9 {
        nothing_in(&mut given, seconds(75) - millis(10));
        given.pass(millis(10));
        probes(&mut given, 1001);
    }
    given.pass(seconds(76));
    given.down(down(RST.and(ACK), 1, 1001));
    given.counted(|counters| {
        counters.frames_down += 1;
        counters.tcp_guest_silent += 1;
        counters.tcp_reset_by_host += 1;
    });
    given.pass(millis(1));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
}

/// Tests that a connection in CLOSE-WAIT stays as long as the guest answers probes: the state has no timer of its own
/// (RFC 9293 section 3.3.2).
#[test]
fn close_wait_lasts_while_probes_are_answered() {
    let mut given = Given::open(Script {
        patience: SILENT.patience,
        ..Script::source(0)
    });
    given.pass(millis(1));
    given.down(down(ACK.and(FIN), 1, 1001));
    given.up(up(ACK, 1001, 2));
    given.forget_counters();
    nothing_in(&mut given, 2 * HOUR - seconds(1));
    given.pass(seconds(2));
    given.down(down(ACK, 1, 1001));
    given.up(up(ACK, 1001, 2));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    given.pass(2 * HOUR + 10 * seconds(75));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn idle_connection_sets_no_earlier_timer() {
    let mut given = Given::open(SILENT);
    given.pass(seconds(1));
    let next = given.engine.next_timeout().unwrap();
    assert!(next >= START + (2 * HOUR - seconds(1)), "{next:?}");
}

/// Tests that a half-closed connection ends when the guest answers a probe by a reset. Linux does so 60 s after its
/// socket was closed (`tcp_fin_timeout`).
#[test]
fn half_closed_connection_ends_if_a_probe_is_answered_by_a_reset() {
    let mut given = half_closed(SILENT);
    nothing_in(&mut given, seconds(64));
    given.pass(seconds(2));
    probes(&mut given, 1002);
    given.up(up(RST, 1002, 0));
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.tcp_reset_by_guest += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.pass(seconds(1));
    assert_eq!(given.host.outcomes()[&PORT], None, "the peer is not reset");
}

/// Tests a guest that answers probes, such as a program that has sent its request, shut down its direction, and waits
/// for the response.
#[test]
fn half_closed_connection_stays_while_probes_are_answered() {
    let mut given = half_closed(SILENT);
    for _ in 0..5 {
        given.pass(seconds(66));
        probes(&mut given, 1002);
        ignores(&mut given, up(ACK, 1002, 1));
    }
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn half_closed_connection_ends_if_probes_are_not_answered() {
    let mut given = half_closed(SILENT);
    given.pass(seconds(65 + 9 * 5 + 1));
    let sent = given.take();
    assert_eq!(sent.len(), 10, "{sent:?}");
    assert!(matches!(sent.last(), Some(Packet::Tcp(last)) if last.flags.has(RST)));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn acknowledged_data_keeps_a_half_closed_connection() {
    let mut given = half_closed(Script {
        send: 8,
        write: TransferPace {
            chunk: 1,
            every: seconds(50),
        },
        ..SILENT
    });
    given.pass(millis(1));
    assert_eq!(given.take().len(), 1);
    given.up(up(ACK, 1002, 2));
    given.forget_counters();
    for at in 1..8 {
        given.pass(seconds(50));
        for packet in given.take() {
            assert!(matches!(packet, Packet::Tcp(data) if data.payload.len() == 1));
        }
        given.up(up(ACK, 1002, 2 + at));
    }
    given.counted(|counters| {
        let now = 7;
        counters.frames_up += now;
        counters.frames_down += now;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

/// Tests that a half-closed connection whose peer does not read the guest's data ends, as the guest may have closed
/// its socket.
#[test]
fn undelivered_fin_does_not_keep_the_connection() {
    let mut given = Given::new(
        config(1500),
        PLAIN,
        HostPlan {
            send_buffer: 0,
            ..HostPlan::default()
        },
    );
    given.host.serve(PORT, ConnectResult::Now, SILENT);
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given.up(up(FIN.and(ACK), 1001, 1).carrying(Given::guest_bytes(0, 100)));
    given.pass(seconds(65 + 9 * 5 + 1));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

/// Returns an engine whose `room` flow slots are all occupied by half-closed connections.
fn full(room: u16) -> Given {
    full_under(room, any())
}

fn full_under(room: u16, config: Config) -> Given {
    let mut given = Given::new(
        Config {
            max_flows: room.into(),
            ..config
        },
        PLAIN,
        HostPlan::default(),
    );
    for port in 1..=2 * room {
        given.host.serve(port, ConnectResult::Now, SILENT);
    }
    for port in 1..=room {
        half_close(&mut given, port);
        given.pass(millis(10));
    }
    given.forget_counters();
    given
}

fn half_close(given: &mut Given, port: u16) {
    let between = || Segment::between((GUEST_V4, port).into(), (SERVER_V4, port).into());
    given.up(dial(port, port));
    let answer = given.take_one();
    given.packet_up(&Packet::Tcp(between().with(
        FIN.and(ACK),
        1001,
        answer.seq.wrapping_add(1),
    )));
    assert!(given.take_one().flags.has(ACK));
}

#[test]
fn idlest_half_closed_connection_is_evicted() {
    let mut given = full(3);
    is_refused(&mut given, &dial(4, 4));
    given.pass(seconds(6));
    given.forget_counters();
    given.up(dial(4, 4));
    let [Packet::Tcp(reset), Packet::Tcp(answer)] = &given.take()[..] else {
        panic!("a reset and an answer");
    };
    assert!(reset.flags.has(RST) && reset.from.port() == 1, "{reset:?}");
    assert!(
        answer.flags.has(SYN.and(ACK)) && answer.from.port() == 4,
        "{answer:?}"
    );
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 2;
        counters.tcp_opened += 1;
        counters.tcp_half_closed_evicted += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (3, 3));
}

#[test]
fn half_closed_connection_in_use_is_not_evicted() {
    let mut given = full(1);
    given.pass(seconds(6));
    let between = Segment::between((GUEST_V4, 1).into(), (SERVER_V4, 1).into());
    let ack = 1 + given_iss(&mut given);
    given.packet_up(&Packet::Tcp(between.with(ACK, 1002, ack)));
    is_refused(&mut given, &dial(2, 2));
    given.pass(seconds(6));
    given.up(dial(2, 2));
    assert_eq!(given.take().len(), 2);
}

/// Returns the engine's initial sequence number on the only connection, from its probe.
fn given_iss(given: &mut Given) -> u32 {
    given.pass(seconds(60));
    given.take_one().seq
}

#[test]
fn client_of_a_published_port_evicts_a_half_closed_connection() {
    let mut given = full(2);
    let at = START + seconds(6);
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, at);
    given.pass(seconds(7));
    let [Packet::Tcp(reset), Packet::Tcp(syn), ..] = &given.take()[..] else {
        panic!("a reset and a SYN, which is repeated");
    };
    assert!(reset.flags.has(RST) && syn.flags.has(SYN));
}

#[test]
fn half_closed_connection_is_not_evicted_while_the_link_is_full() {
    let mut given = full(3);
    given.pass(seconds(6));
    given.forget_counters();
    given.link.fill(seconds(1));
    for port in [4, 5] {
        given.up(dial(port, port));
        given.quiet();
    }
    given.counted(|counters| {
        counters.frames_up += 2;
        counters.tcp_opened += 2;
        counters.link_refused += 2;
        counters.flows_refused += 2;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (3, 3));
    given.pass(seconds(2));
    given.quiet();
    given.up(dial(6, 6));
    assert_eq!(given.take().len(), 2, "a reset and an answer");
    assert_eq!((given.engine.flows(), given.host.open()), (3, 3));
}

/// Tests that a client is refused while the link is full. The evicted connection would keep its slot until the link
/// accepts its reset, so there would be more flows than permitted.
#[test]
fn client_is_refused_while_the_link_is_full() {
    let mut given = full(2);
    given.pass(seconds(6));
    given.forget_counters();
    given.link.fill(seconds(5));
    let at = START + seconds(7);
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, at);
    given.pass(seconds(2));
    given.quiet();
    given.counted(|counters| {
        counters.link_refused += 1;
        counters.flows_refused += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (2, 2));
}

#[test]
fn half_closed_connection_is_not_evicted_for_a_flow_beyond_the_rate() {
    let config = Config {
        max_flow_rate: Some(2),
        ..any()
    };
    let mut given = full_under(2, config);
    given.pass(seconds(6));
    given.up(dial(3, 3));
    assert_eq!(given.take().len(), 2, "a reset and an answer");
    given.up(Segment {
        flags: RST,
        seq: 1001,
        ..dial(3, 3)
    });
    is_answered(&mut given, &dial(4, 4));
    given.forget_counters();
    is_refused(&mut given, &dial(5, 5));
    given.counted(|counters| {
        one_each(counters);
        counters.flows_refused += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (2, 2));
}

/// Tests the order of eviction. The kernel resets the peer if a socket is closed with unread data, so connections
/// without unread data are evicted first.
#[test]
fn half_closed_connection_without_unread_data_is_evicted_first() {
    let mut given = Given::new(
        Config {
            max_flows: 2,
            ..config(1500)
        },
        PLAIN,
        HostPlan::default(),
    );
    let late = Script {
        send: 2,
        write: TransferPace {
            chunk: 1,
            every: seconds(10),
        },
        ..SILENT
    };
    for (port, script) in [(1, late), (2, SILENT), (3, SILENT)] {
        given.host.serve(port, ConnectResult::Now, script);
    }
    let between = |port| Segment::between((GUEST_V4, port).into(), (SERVER_V4, port).into());
    for port in [1, 2] {
        given.up(dial(port, port));
        let answer = given.take_one();
        let ack = answer.seq.wrapping_add(1);
        given.packet_up(&Packet::Tcp(between(port).with(FIN.and(ACK), 1001, ack)));
        given.pass(millis(1));
        given.take();
        given.packet_up(&Packet::Tcp(between(port).with(
            ACK,
            1002,
            ack.wrapping_add(u32::from(port == 1)),
        )));
    }
    given.pass(seconds(9));
    given.quiet();
    given.pass(seconds(2));
    assert!(
        !given.take().is_empty(),
        "data that the guest does not acknowledge"
    );
    given.up(dial(3, 3));
    let [Packet::Tcp(reset), Packet::Tcp(answer)] = &given.take()[..] else {
        panic!("a reset and an answer");
    };
    assert!(reset.flags.has(RST) && reset.from.port() == 2, "{reset:?}");
    assert!(answer.flags.has(SYN.and(ACK)), "{answer:?}");
}

/// Returns an established connection that occupies the only flow slot, and a second server.
fn with_the_only_place_taken() -> Given {
    let mut given = Given::new(
        Config {
            max_flows: 1,
            ..config(1500)
        },
        PLAIN,
        HostPlan::default(),
    );
    given.host.serve(PORT, ConnectResult::Now, SILENT);
    given.host.serve(81, ConnectResult::Now, SILENT);
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given
}

/// Tests that connections of a guest that has vanished are probed before two hours have passed if there is no free
/// slot.
#[test]
fn silent_guests_are_probed_early_at_the_flow_limit() {
    let mut given = with_the_only_place_taken();
    given.pass(seconds(61));
    given.quiet();
    is_refused(&mut given, &dial(2, 81));
    given.forget_counters();
    given.pass(millis(10));
    probes(&mut given, 1001);
    // The guest answers, so the next probe is due in two hours again.
    given.up(up(ACK, 1001, 1));
    given.forget_counters();
    nothing_in(&mut given, HOUR);
    // Each refused flow examines a few slots.
    for port in 1..=4 {
        is_refused(&mut given, &dial(port, 81));
    }
    given.pass(seconds(9 * 5 + 1));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.take();
    is_answered(&mut given, &dial(2, 81));
}

/// Tests that overdue probes are sent one by one, five seconds apart.
#[test]
fn probes_at_the_flow_limit_are_five_seconds_apart() {
    let mut given = with_the_only_place_taken();
    given.pass(HOUR);
    given.quiet();
    is_refused(&mut given, &dial(2, 81));
    given.forget_counters();
    given.pass(millis(100));
    probes(&mut given, 1001);
    given.up(up(ACK, 1001, 1));
    given.pass(seconds(50));
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}
