//! Tests of rules that are replaced, and of connections that the user ends, while connections are pending, established or ended.

use pontoon_engine::egress::RefusedFlows;

use super::*;

/// Replaces the rules by one that denies all destinations.
fn deny_all(given: &mut Given, refused: RefusedFlows) {
    let (rules, now) = (["deny *".parse().expect("a rule")], given.now());
    given
        .engine
        .replace_rules(&rules, refused, &mut given.link, &mut given.host, now);
    given.pass(Duration::ZERO);
}

/// Ends the connection in the first slot; returns the number of connections that were ended.
fn end(given: &mut Given) -> u32 {
    let (id, now) = (flow(0, 0), given.now());
    let page = given.engine.flows_from(0, now);
    let id = page.flows.first().map_or(id, |flow| flow.id);
    let ended = given.engine.end_flow(id, &mut given.link, &mut given.host, now);
    given.pass(Duration::ZERO);
    ended
}

/// Returns a connection whose connect succeeds 500 ms after the guest's SYN.
fn pending() -> Given {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    given
        .host
        .serve(PORT, ConnectResult::After(millis(500)), Script::sending(100));
    given.up(syn());
    given.quiet();
    given
}

#[test]
fn pending_connect_is_kept_or_reset_when_the_rules_change() {
    let mut given = pending();
    deny_all(&mut given, RefusedFlows::Keep);
    given.quiet();
    given.pass(Duration::from_secs(1));
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given.pass(millis(5));
    assert_eq!(take_bytes(&mut given), 100);
    // A new connection to the same server is refused.
    is_refused(&mut given, &dial(4001, PORT));

    let mut given = pending();
    deny_all(&mut given, RefusedFlows::Keep);
    deny_all(&mut given, RefusedFlows::Reset);
    assert_eq!(given.take_one().flags, RST.and(ACK));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn kept_connect_is_refused_if_the_host_gains_the_address() {
    let mut given = pending();
    deny_all(&mut given, RefusedFlows::Keep);
    given.host.gain_address(SERVER_V4.into());
    given.pass(Duration::from_secs(1));
    assert_eq!(given.take_one().flags, RST.and(ACK));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn established_connection_carries_data_after_rules_that_keep_it() {
    let mut given = Given::open(Script::SINK);
    deny_all(&mut given, RefusedFlows::Keep);
    given.quiet();
    let payload = Given::guest_bytes(0, 10);
    given.up(up(ACK, 1001, 1).carrying(payload));
    given.pass(millis(50));
    let acknowledged = take_last(&mut given);
    assert_eq!((acknowledged.flags, acknowledged.ack), (ACK, 1011));
    deny_all(&mut given, RefusedFlows::Reset);
    assert_eq!(given.take_one().flags, RST.and(ACK));
}

#[test]
fn ended_connection_is_reset_on_both_sides() {
    let mut given = Given::open(Script::SINK);
    given.forget_counters();
    assert_eq!(end(&mut given), 1);
    let reset = given.take_one();
    assert_eq!((reset.flags, reset.ack), (RST.and(ACK), 1001));
    given.counted(|counters| counters.frames_down += 1);
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.pass(millis(1));
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
    assert_eq!(end(&mut given), 0);
}

#[test]
fn pending_connect_is_ended() {
    let mut given = pending();
    assert_eq!(end(&mut given), 1);
    let reset = given.take_one();
    assert_eq!((reset.flags, reset.ack), (RST.and(ACK), 1001));
    given.pass(Duration::from_secs(1));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn connection_in_time_wait_is_removed() {
    let mut given = Given::open(Script::source(0));
    given.pass(millis(1));
    given.up(up(FIN.and(ACK), 1001, 2));
    given.take();
    assert_eq!((given.engine.flows(), end(&mut given)), (1, 1));
    given.quiet();
    assert_eq!(given.engine.flows(), 0);
    given.pass(Duration::from_secs(120));
    given.quiet();
}

#[test]
fn connection_of_a_client_is_ended_by_its_id_only() {
    let mut given = Given::new(any(), PLAIN, HostPlan::default());
    let peer = SocketAddr::from((CLIENT, 5000));
    given
        .host
        .connect_in(0, peer, 9, Script::sending(100), START + millis(2));
    given.pass(millis(2));
    serves(&mut given, peer);
    let (everything, now) = ("*".parse().unwrap(), given.now());
    let (link, host) = (&mut given.link, &mut given.host);
    assert_eq!(given.engine.end_flows_to(&everything, link, host, now), 0);
    assert_eq!(end(&mut given), 1);
    assert_eq!(given.take_one().flags, RST.and(ACK));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}
