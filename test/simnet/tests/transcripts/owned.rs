//! Tests of addresses that are added to the host's interfaces while connections to them are pending or established.

use super::*;

const HOST: IpAddr = IpAddr::V4(SERVER_V4);

/// Returns a connection to [`SERVER`] whose connect succeeds 500 ms after the guest's SYN.
fn pending(config: Config) -> Given {
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    given
        .host
        .serve(PORT, ConnectResult::After(millis(500)), Script::sending(100));
    given.up(syn());
    given.quiet();
    given.forget_counters();
    given
}

/// Checks that the engine has reset the guest, aborted the host connection, and counted the refusal.
#[track_caller]
fn is_refused_now(given: &mut Given) {
    is_refused_counting(given, |_| {});
}

#[track_caller]
fn is_refused_counting(given: &mut Given, also: impl FnOnce(&mut Counters)) {
    let reset = given.take_one();
    assert_eq!((reset.flags, reset.ack), (RST.and(ACK), 1001));
    given.quiet();
    given.counted(|counters| {
        also(counters);
        counters.frames_down += 1;
        counters.policy_refused += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn pending_connect_is_reset_when_the_host_gains_the_address() {
    let mut given = pending(config(1500));
    given.set_owned(&[HOST]);
    is_refused_now(&mut given);
    given.pass(Duration::from_secs(1));
    given.quiet();
}

#[test]
fn established_connection_is_reset_when_the_host_gains_the_address() {
    let mut given = Given::open(Script::SINK);
    given.set_owned(&[HOST]);
    is_refused_now(&mut given);
    given.pass(millis(1));
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
}

#[test]
fn other_address_of_the_host_resets_no_connection() {
    let mut given = Given::open(Script::SINK);
    given.set_owned(&[Ipv4Addr::new(203, 0, 113, 8).into()]);
    given.quiet();
    given.counted(|_| {});
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn permitted_connections_to_the_host_stay() {
    let mut given = Given::new(
        Config {
            host_addresses: true,
            ..config(1500)
        },
        PLAIN,
        HostPlan::default(),
    );
    given.host.serve(PORT, ConnectResult::Now, Script::SINK);
    given.host.gain_address(HOST);
    is_answered(&mut given, &syn());
    given.set_owned(&[HOST]);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

/// Tests a connect to an address that the host has got before the engine receives the new list of addresses.
#[test]
fn connect_that_reaches_the_host_is_reset_before_the_address_list_changes() {
    let mut given = pending(config(1500));
    given.host.gain_address(HOST);
    given.pass(millis(600));
    is_refused_now(&mut given);
}

#[test]
fn immediate_connect_that_reaches_the_host_is_reset() {
    let mut given = Given::server();
    given.host.gain_address(HOST);
    given.up(syn());
    is_refused_counting(&mut given, |counters| {
        counters.frames_up += 1;
        counters.tcp_opened += 1;
    });
}

/// Tests that a connection to the gateway is not refused: it stands for the host's loopback, whose sockets have equal
/// addresses at both ends.
#[test]
fn redirected_connection_may_reach_the_host() {
    let gateway: IpAddr = Ipv4Addr::new(10, 0, 2, 2).into();
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut given = Given::new(
        Config {
            host_loopback: vec![gateway],
            ..config(1500)
        },
        PLAIN,
        HostPlan::default(),
    );
    given.host.serve(PORT, ConnectResult::Now, Script::SINK);
    given.host.gain_address(loopback);
    is_answered(&mut given, &syn_between(GUEST, (gateway, PORT).into()));
    given.set_owned(&[loopback]);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

/// Tests that a resolver at the host's own address is permitted, as the operator has configured it.
#[test]
fn resolver_may_be_the_host() {
    let mut given = Given::new(
        Config {
            resolvers: vec![(HOST, 53).into()],
            ..config(1500)
        },
        PLAIN,
        HostPlan::default(),
    );
    given.host.serve(53, ConnectResult::Now, Script::SINK);
    given.host.gain_address(HOST);
    let forwarder = (Ipv4Addr::new(10, 0, 2, 3), 53).into();
    is_answered(&mut given, &syn_between(GUEST, forwarder));
    given.set_owned(&[HOST]);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

/// Tests that a client whose address the host gets stays connected: its port was published, and the guest cannot
/// choose the destination of its data.
#[test]
fn client_whose_address_the_host_gains_stays() {
    let mut given = given(any(), HostPlan::default());
    let peer = (CLIENT, 5000).into();
    given
        .host
        .connect_in(0, peer, 9, Script::source(100), START + millis(2));
    given.pass(millis(2));
    given.set_owned(&[CLIENT.into()]);
    serves(&mut given, peer);
}
