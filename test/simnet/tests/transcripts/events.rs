//! Tests of socket events that are incomplete, repeated or late.

use super::*;

#[test]
fn error_event_without_an_error_is_ignored() {
    for script in [Script::SINK, Script::source(0)] {
        let mut given = Given::open(script);
        given.pass(millis(1));
        given.take();
        given.forget_counters();
        let error = Readiness {
            error: true,
            ..Readiness::default()
        };
        given.event(flow(0, 0), error);
        given.pass(millis(1));
        given.quiet();
        given.counted(|_| {});
        assert_eq!(given.engine.flows(), 1);
    }
}

/// Tests an event with EPOLLRDHUP only. Linux reports EPOLLIN with it, but the engine does not depend on that.
#[test]
fn end_event_without_readable_ends_the_stream() {
    let mut given = Given::open(Script::source(0));
    given.host.tick(START + millis(1));
    assert!(!given.host.events().is_empty(), "the host's own event, lost");
    let end = Readiness {
        end: true,
        ..Readiness::default()
    };
    given.event(flow(0, 0), end);
    given.pass(Duration::ZERO);
    given.down(down(FIN.and(ACK), 1, 1001));
    given.quiet();
}

/// Tests that two events before the flow is processed add it to the ready list once.
#[test]
fn flow_is_in_the_ready_list_once() {
    let mut given = Given::serving(Script::sending(250_000));
    given.up(Segment {
        window_scale: Some(8),
        ..syn()
    });
    given.down(Segment {
        mss: Some(1460),
        window_scale: Some(8),
        ..down(SYN.and(ACK), 0, 1001)
    });
    given.up(up(ACK, 1001, 1));
    given.host.tick(START + millis(1));
    let ready = Readiness {
        readable: true,
        ..Readiness::default()
    };
    given.event(flow(0, 0), ready);
    given.event(flow(0, 0), ready);
    given.pass(millis(2));
    let bytes = take_bytes(&mut given);
    assert_eq!(bytes, 250_000);
}

/// Tests a listener with more clients than the engine accepts in one turn.
#[test]
fn listener_with_two_events_is_queued_once() {
    let mut given = given(any(), HostPlan::default());
    let at = START + millis(1);
    for port in 0..128 {
        let peer = (CLIENT, 5000 + port).into();
        given.host.connect_in(0, peer, 100 + port, Script::SINK, at);
    }
    given.host.tick(at);
    let listener = FlowId {
        kind: Kind::Listener,
        ..flow(0, 0)
    };
    let ready = Readiness {
        readable: true,
        ..Readiness::default()
    };
    given.event(listener, ready);
    given.event(listener, ready);
    assert_eq!(given.engine.counters().tcp_accepted, 128);
    let calls = given.host.calls();
    given.engine.handle_ready(&mut given.link, &mut given.host, at);
    assert_eq!(given.host.calls() - calls, 1, "accept, which finds no client");
}

/// Tests a panic while the data of one connection is sent because the burst is full, before the SYN after it is
/// processed.
#[test]
fn panic_behind_data_of_a_full_burst_ends_one_flow_at_most() {
    for after in 0..8 {
        let mut given = Given::open(Script::SINK);
        given.host.serve(81, ConnectResult::Now, SILENT);
        let data = (0..256).map(|nth| up(ACK, 1001 + nth, 1).carrying(vec![1]));
        given.host.panic_after(after);
        given.burst_up(data.chain([dial(2, 81)]));
        assert!(given.engine.flows() >= 1, "a panic after {after} calls");
    }
}

#[test]
fn event_of_a_removed_connection_is_ignored() {
    let mut given = Given::open(Script::SINK);
    given.forget_counters();
    for (index, generation) in [(0, 1), (1, 0), (99_999, 0)] {
        given.event(flow(index, generation), TROUBLE);
    }
    given.pass(millis(1));
    given.quiet();
    given.counted(|_| {});
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}
