//! Tests of the handshake of connections that the guest opens, and of invalid segments during it.

use super::*;

/// Returns a connection whose SYN-ACK the engine has sent.
fn syn_received() -> Given {
    let mut given = Given::server();
    given.up(syn());
    given.down(syn_ack());
    given.forget_counters();
    given
}

#[test]
fn syn_is_answered_when_the_connect_has_succeeded() {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    given
        .host
        .serve(PORT, ConnectResult::After(millis(50)), Script::SINK);
    given.up(syn());
    given.pass(millis(49));
    given.quiet();
    // A retransmitted SYN must not open a second connection.
    given.up(syn());
    given.pass(millis(2));
    given.down(syn_ack());
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn lost_syn_ack_is_retransmitted_by_timer_and_by_a_second_syn() {
    let mut given = Given::server();
    let syn_ack = syn_ack();
    given.up(syn());
    given.down(syn_ack.clone());
    given.up(syn());
    given.down(syn_ack.clone());
    given.quiet();
    given.pass(Duration::from_secs(2));
    given.down(syn_ack);
}

#[test]
fn handshake_completes_with_data_and_fin() {
    let mut given = syn_received();
    given.up(up(FIN.and(ACK), 1001, 1).carrying(Given::guest_bytes(0, 10)));
    given.down(down(ACK, 1, 1012));
    given.quiet();
}

/// Tests a guest without window scaling: the acknowledgement that completes the handshake does not change the window,
/// and the server's data must be sent nevertheless.
#[test]
fn data_of_the_server_follows_the_handshake_at_once() {
    let mut given = Given::serving(Script::sending(100));
    given.up(syn());
    given.down(syn_ack());
    given.pass(millis(10));
    given.quiet();
    let window = syn().window;
    given.up(Segment {
        window,
        ..up(ACK, 1001, 1)
    });
    assert_eq!(take_bytes(&mut given), 100);
}

#[test]
fn only_exact_reset_ends_a_pending_connect() {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    given
        .host
        .serve(80, ConnectResult::After(millis(50)), Script::SINK);
    let syn = dial(1, 80);
    given.up(syn.clone());
    let other = Segment::between(syn.from, syn.to);
    for (flags, seq) in [(ACK, 1001), (RST, 1000), (RST, 1002), (FIN.and(ACK), 1001)] {
        given.up(other.clone().with(flags, seq, 0));
    }
    given.quiet();
    // An event without any flag set.
    given.event(flow(0, 0), Readiness::default());
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    given.counted(|counters| {
        counters.frames_up += 5;
        counters.tcp_opened += 1;
    });
    given.up(other.with(RST, 1001, 0));
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.tcp_reset_by_guest += 1;
    });
    given.pass(millis(100));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn unusual_segments_in_syn_received_are_ignored_or_challenged() {
    let mut given = syn_received();
    ignores(&mut given, up(PSH, 1001, 0));
    ignores(&mut given, up(ACK, 900_000, 1));
    ignores(&mut given, up(RST, 900_000, 0));
    ignores(&mut given, up(RST, 1000, 0));
    for ack in [0, 2] {
        given.up(up(ACK, 1001, ack));
        given.down(down(RST, ack, 0));
        given.quiet();
        given.counted(one_each);
    }
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    ends(&mut given, up(RST, 1001, 0));
}

/// Tests SYN and RST in SYN-RECEIVED whose sequence number is not exact (RFC 5961 sections 3.2 and 4.2).
#[test]
fn forged_segments_in_syn_received_are_challenged() {
    for intruder in [up(RST, 1002, 0), up(SYN, 1001, 0), up(SYN.and(ACK), 1001, 1)] {
        challenges(&mut syn_received(), intruder);
    }
    let mut given = syn_received();
    ignores(&mut given, up(ACK, 1001, 1));
    challenges(&mut given, up(SYN.and(ACK), 1001, 1));
}
