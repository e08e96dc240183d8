//! Tests of clients on the host that are joined with a socket in the guest's network namespace.

use pontoon_engine::config::PublishedPath;

use super::*;

/// Address of a client on the host.
const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Stream of the client, and port of its address.
const STREAM: u16 = 7;

fn local() -> SocketAddr {
    (LOCAL, 5000).into()
}

/// Returns an engine to which a client on the host has connected, while a program in the guest listens at port 80.
fn joined(config: Config, plan: HostPlan, client: Script, guest: Script) -> Given {
    let mut given = Given::new(config, PLAIN, plan);
    given.host.serve_inside(80, STREAM, ConnectResult::Now, guest);
    given.host.connect_in(0, local(), STREAM, client, START);
    given.pass(millis(1));
    given
}

#[track_caller]
fn has_ended(given: &mut Given, client: ConnectionEnd, guest: ConnectionEnd) {
    assert_eq!(given.host.outcomes()[&STREAM], Some(client));
    assert_eq!(given.host.outcomes_inside()[&STREAM], Some(guest));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.quiet();
}

#[test]
fn data_of_both_directions_passes_no_link() {
    let (client, guest) = (Script::source(1_000_000), Script::source(300_000));
    let mut given = joined(any(), HostPlan::default(), client, guest);
    given.pass(seconds(5));
    has_ended(&mut given, ConnectionEnd::Closed, ConnectionEnd::Closed);
    given.counted(|counters| {
        counters.tcp_accepted += 1;
        counters.tcp_joined += 1;
    });
}

#[test]
fn each_direction_ends_by_itself() {
    // The client ends its direction at once, and the guest sends afterwards.
    let guest = Script {
        end: FinalAction::AfterPeer,
        ..Script::sending(100_000)
    };
    let mut given = joined(any(), HostPlan::default(), Script::source(0), guest);
    given.pass(seconds(5));
    has_ended(&mut given, ConnectionEnd::Closed, ConnectionEnd::Closed);
}

#[test]
fn refused_and_partial_sends_lose_nothing() {
    let plan = HostPlan {
        short_writes: 500,
        blocks: 300,
        send_buffer: 5_000,
        receive_buffer: 7_000,
        ..HostPlan::default()
    };
    let (client, guest) = (Script::source(200_000), Script::source(200_000));
    let mut given = joined(any(), plan, client, guest);
    given.pass(seconds(60));
    has_ended(&mut given, ConnectionEnd::Closed, ConnectionEnd::Closed);
}

#[test]
fn reset_of_either_side_resets_the_other() {
    let reset = Script {
        end: FinalAction::Reset(5_000),
        ..Script::sending(10_000)
    };
    let mut given = joined(any(), HostPlan::default(), reset.clone(), SILENT);
    given.pass(seconds(1));
    has_ended(&mut given, ConnectionEnd::Aborted, ConnectionEnd::Reset);
    given.counted(|counters| {
        counters.tcp_accepted += 1;
        counters.tcp_joined += 1;
        counters.tcp_reset_by_host += 1;
    });
    let mut given = joined(any(), HostPlan::default(), SILENT, reset);
    given.pass(seconds(1));
    has_ended(&mut given, ConnectionEnd::Reset, ConnectionEnd::Aborted);
    given.counted(|counters| {
        counters.tcp_accepted += 1;
        counters.tcp_joined += 1;
        counters.tcp_reset_by_guest += 1;
    });
}

/// Checks that the client of an engine with this configuration becomes a SYN on the link.
#[track_caller]
fn is_on_the_link(given: &mut Given) {
    let syn = given.take_one();
    assert_eq!((syn.flags, syn.to), (SYN, (GUEST_V4, 80).into()));
    assert_eq!(given.engine.flows(), 1);
    assert_eq!(given.engine.counters().tcp_joined, 0);
}

#[test]
fn client_uses_the_link_if_the_guest_refuses_the_connection() {
    for answer in [
        ConnectResult::Fail(Failure::Refused),
        ConnectResult::FailAfter(millis(10), Failure::Refused),
        ConnectResult::Never,
    ] {
        let mut given = Given::new(any(), PLAIN, HostPlan::default());
        given.host.serve_inside(80, STREAM, answer, Script::SINK);
        given.host.connect_in(0, local(), STREAM, Script::SINK, START);
        given.pass(millis(1));
        if answer == ConnectResult::Never {
            assert_eq!(given.engine.flows(), 1);
            given.quiet();
            given.pass(seconds(3));
        }
        given.pass(millis(20));
        is_on_the_link(&mut given);
        assert_eq!(given.host.open(), 1);
    }
}

#[test]
fn only_local_clients_of_the_own_address_are_joined() {
    let client = |given: &mut Given, peer: Ipv4Addr| {
        given
            .host
            .serve_inside(80, STREAM, ConnectResult::Now, Script::SINK);
        given
            .host
            .connect_in(0, (peer, 5000).into(), STREAM, Script::SINK, START);
        given.pass(millis(1));
    };
    let mut given = Given::new(any(), PLAIN, HostPlan::default());
    client(&mut given, CLIENT);
    is_on_the_link(&mut given);
    let mut config = any();
    config.published[0].path = PublishedPath::Link;
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    client(&mut given, LOCAL);
    is_on_the_link(&mut given);
    let mut config = any();
    config.published[0].target = Some(Ipv4Addr::new(10, 88, 0, 5).into());
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    client(&mut given, LOCAL);
    assert_eq!(given.take_one().to.ip(), IpAddr::from([10, 88, 0, 5]));
}

#[test]
fn joined_connection_counts_twice_against_max_flows() {
    let config = Config {
        max_flows: 8,
        ..any()
    };
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    for number in 0..6_u16 {
        given
            .host
            .serve_inside(80, STREAM + number, ConnectResult::Now, SILENT);
        let peer = (LOCAL, 5000 + number).into();
        given
            .host
            .connect_in(0, peer, STREAM + number, SILENT, START + millis(number.into()));
        given.pass(millis(2));
    }
    let counters = given.engine.counters();
    // Two joined clients use half of the slots. Two more over the link use up the share of the port.
    assert_eq!((counters.tcp_joined, counters.tcp_accepted), (2, 4));
    assert_eq!(given.host.open(), 6);
    assert_eq!(counters.tcp_share_refused, 2);
}

#[test]
fn old_connection_has_keepalive_on_both_sides() {
    let mut given = joined(any(), HostPlan::default(), SILENT, SILENT);
    given.pass(seconds(500));
    assert!(given.host.reports().all(|report| !report.keepalive));
    given.pass(seconds(200));
    assert!(given.host.reports().all(|report| report.keepalive));
    assert_eq!(given.engine.flows(), 1);
}

#[test]
fn connection_is_listed_and_ended_by_its_id() {
    let mut given = joined(any(), HostPlan::default(), SILENT, SILENT);
    let mut flows = Vec::new();
    let mut next = Some(0);
    while let Some(at) = next {
        let page = given.engine.flows_from(at, START);
        flows.extend(page.flows);
        next = page.next;
    }
    let [flow] = &flows[..] else {
        panic!("{flows:?}");
    };
    assert_eq!((flow.remote, flow.guest), (Some(local()), (GUEST_V4, 80).into()));
    assert!(flow.came_in && flow.id.kind == Kind::Joined);
    let id = flow.id;
    let now = given.now();
    for count in [1, 0] {
        let ended = given.engine.end_flow(id, &mut given.link, &mut given.host, now);
        assert_eq!(ended, count);
    }
    given.pass(millis(5));
    has_ended(&mut given, ConnectionEnd::Reset, ConnectionEnd::Reset);
}

/// Returns an engine with a joined connection whose guest has sent and closed, while the client is silent.
fn half_closed(config: Config) -> Given {
    let mut given = joined(config, HostPlan::default(), SILENT, Script::source(3));
    given.pass(millis(10));
    assert_eq!(given.engine.flows(), 1);
    given
}

#[test]
fn guest_of_a_half_closed_connection_is_probed() {
    let mut given = half_closed(any());
    given.pass(seconds(64));
    assert!(given.host.reports().all(|report| !report.keepalive));
    given.pass(seconds(2));
    assert!(given.host.reports().all(|report| report.keepalive));
    let times: Vec<_> = given
        .host
        .reports()
        .filter_map(|report| report.keepalive_times)
        .collect();
    let [times] = times[..] else {
        panic!("{times:?}");
    };
    assert_eq!(
        (times.idle, times.interval, times.probes),
        (seconds(65), seconds(5), 9)
    );
}

#[test]
fn half_closed_connection_yields_to_a_new_flow() {
    for (waited, is_evicted) in [(seconds(4), false), (seconds(6), true)] {
        // The joined connection uses two slots.
        let config = Config {
            max_flows: 4,
            ..any()
        };
        let mut given = half_closed(config);
        given.pass(waited);
        for port in 1..=3 {
            given.host.serve(PORT, ConnectResult::Never, Script::SINK);
            given.up(syn_between((GUEST_V4, port).into(), (SERVER_V4, PORT).into()));
            if port == 3 && !is_evicted {
                assert!(given.take_one().flags.has(RST));
            }
            given.quiet();
        }
        assert_eq!(
            given.engine.counters().tcp_half_closed_evicted,
            u64::from(is_evicted)
        );
        assert_eq!(given.engine.flows(), 3);
    }
}
