//! Tests of guest forwards at a loopback address of the guest, whose connections use no link.

use pontoon_engine::config::PublishedPath;
use pontoon_engine::decider::{Answer, DEADLINE, Denial, Direction, TokenState, Verdict};
use pontoon_engine::policy::{GuestForward, GuestForwards};
use pontoon_simnet::decider::ScriptedDecider;

use super::decider::token;
use super::flow_events::{Recorder, recorded};
use super::*;

/// Address of programs of the guest, and of the forward.
const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Port of the host to which port 5000 of the guest's loopback address leads; also the stream of its connections.
const TARGET: u16 = 84;

fn forward() -> GuestForward {
    GuestForward {
        protocol: Protocol::Tcp,
        from: (LOCAL, 5000).into(),
        to: (LOCAL, TARGET).into(),
        count: 1,
    }
}

fn forwarding() -> Config {
    let listener = Published {
        target: Some(LOCAL.into()),
        path: PublishedPath::FromGuest,
        ..Published::new(Protocol::Tcp, (LOCAL, 5000).into(), TARGET)
    };
    Config {
        published: vec![listener],
        forwards: vec![forward()],
        ..config(1500)
    }
}

fn connect(given: &mut Given, client: Script) {
    let at = given.now();
    given
        .host
        .connect_inside(0, (LOCAL, 4000).into(), TARGET, client, at);
    given.pass(millis(1));
}

/// Returns an engine with a connection from `client` in the guest to `server` on the host, if nothing refuses it.
fn connected(client: Script, server: Script) -> (Given, Recorder) {
    let (mut given, recorder) = recorded(Given::new(forwarding(), PLAIN, HostPlan::default()));
    given.host.serve(TARGET, ConnectResult::Now, server);
    connect(&mut given, client);
    (given, recorder)
}

#[track_caller]
fn has_ended(given: &mut Given, client: ConnectionEnd, server: Option<ConnectionEnd>) {
    assert_eq!(given.host.outcomes_inside()[&TARGET], Some(client));
    let of_server = given.host.outcomes().get(&TARGET).copied().flatten();
    assert_eq!(of_server, server);
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.quiet();
}

#[test]
fn data_of_both_directions_passes_no_link() {
    let (mut given, recorder) = connected(Script::source(300_000), Script::source(1_000_000));
    given.pass(seconds(5));
    has_ended(&mut given, ConnectionEnd::Closed, Some(ConnectionEnd::Closed));
    given.counted(|counters| {
        counters.tcp_opened += 1;
        counters.tcp_joined += 1;
    });
    let lines = recorder.take();
    assert_eq!(lines[0], "opened to 127.0.0.1:84");
    assert!(lines[1].ends_with("300000 up, 1000000 down"), "{lines:?}");
    assert_eq!(lines.len(), 2);
}

#[test]
fn reset_of_either_side_resets_the_other() {
    let reset = Script {
        end: FinalAction::Reset(5_000),
        ..Script::sending(10_000)
    };
    let (mut given, _) = connected(reset.clone(), SILENT);
    given.pass(seconds(1));
    has_ended(&mut given, ConnectionEnd::Aborted, Some(ConnectionEnd::Reset));
    assert_eq!(given.engine.counters().tcp_reset_by_guest, 1);
    let (mut given, _) = connected(SILENT, reset);
    given.pass(seconds(1));
    has_ended(&mut given, ConnectionEnd::Reset, Some(ConnectionEnd::Aborted));
    assert_eq!(given.engine.counters().tcp_reset_by_host, 1);
}

#[test]
fn client_is_reset_if_the_host_refuses_the_connection() {
    for answer in [
        ConnectResult::Fail(Failure::Refused),
        ConnectResult::FailAfter(millis(10), Failure::Refused),
        ConnectResult::Never,
    ] {
        let (mut given, recorder) = recorded(Given::new(forwarding(), PLAIN, HostPlan::default()));
        given.host.serve(TARGET, answer, Script::SINK);
        connect(&mut given, SILENT);
        given.pass(seconds(4));
        assert_eq!(
            given.host.outcomes_inside()[&TARGET],
            Some(ConnectionEnd::Reset),
            "{answer:?}"
        );
        assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
        given.quiet();
        given.counted(|counters| {
            counters.tcp_opened += 1;
            counters.tcp_connect_failed += 1;
        });
        let lines = recorder.take();
        assert!(
            lines.len() == 2 && lines[1].starts_with("closed connect-failed"),
            "{lines:?}"
        );
    }
}

fn set_rules(given: &mut Given, rule: &str) {
    let (rules, now) = ([rule.parse().expect("a valid rule")], given.now());
    given
        .engine
        .set_rules(&rules, &mut given.link, &mut given.host, now);
}

#[test]
fn egress_rules_apply_to_the_address_in_the_guest_and_to_the_target() {
    for rule in ["deny 127.0.0.1:5000/tcp", "deny 127.0.0.0/8"] {
        let (mut given, _) = connected(SILENT, SILENT);
        assert_eq!(given.engine.flows(), 1);
        set_rules(&mut given, rule);
        given.pass(millis(5));
        has_ended(&mut given, ConnectionEnd::Reset, Some(ConnectionEnd::Reset));
        connect(&mut given, SILENT);
        given.pass(millis(5));
        assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
        assert_eq!(given.engine.counters().policy_refused, 2, "{rule}");
        given.quiet();
    }
}

#[test]
fn removed_forward_resets_its_connections() {
    let (mut given, _) = connected(SILENT, SILENT);
    let now = given.now();
    let remove = |forwards: &mut GuestForwards| forwards.remove(&forward());
    given
        .engine
        .change_forwards(remove, &mut given.link, &mut given.host, now);
    given.pass(millis(5));
    has_ended(&mut given, ConnectionEnd::Reset, Some(ConnectionEnd::Reset));
    connect(&mut given, SILENT);
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn decider_decides_about_the_target() {
    for late in [false, true] {
        for (verdict, open) in [
            (Verdict::Allow, 2),
            (Verdict::Redirect((LOCAL, 85).into()), 2),
            (Verdict::Deny(Denial::Reset), 0),
        ] {
            let mut given = given(forwarding(), HostPlan::default());
            given.host.serve(TARGET, ConnectResult::Now, SILENT);
            given.host.serve(85, ConnectResult::Now, SILENT);
            let answer = if late { Answer::Later } else { Answer::Now(verdict) };
            let decider = ScriptedDecider::new(answer);
            given.engine.set_decider(Box::new(decider.clone()), DEADLINE);
            connect(&mut given, SILENT);
            if late {
                assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
                assert_eq!(given.verdict(token(&decider), verdict), TokenState::Known);
            } else {
                let request = &decider.take()[0];
                let destination = (LOCAL, 5000).into();
                assert_eq!(request.direction, Direction::Out { destination });
                assert_eq!(request.guest, (LOCAL, 4000).into());
                assert_eq!(request.remote, (LOCAL, TARGET).into());
            }
            given.pass(millis(5));
            assert_eq!(given.host.open(), open, "{verdict:?}, late: {late}");
            let opened = given.host.outcomes().keys().copied().collect::<Vec<u16>>();
            let expected = match verdict {
                Verdict::Allow => vec![TARGET],
                Verdict::Redirect(_) => vec![85],
                _ => Vec::new(),
            };
            assert_eq!(opened, expected, "{verdict:?}, late: {late}");
            given.quiet();
        }
    }
}

#[test]
fn connections_beyond_half_of_max_flows_are_reset() {
    let config = Config {
        max_flows: 4,
        ..forwarding()
    };
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    for number in 0..3_u16 {
        given.host.serve(TARGET, ConnectResult::Now, SILENT);
        let at = given.now();
        let peer = (LOCAL, 4000 + number).into();
        given.host.connect_inside(0, peer, TARGET, SILENT, at);
        given.pass(millis(2));
    }
    let counters = given.engine.counters();
    assert_eq!((counters.tcp_joined, counters.flows_refused), (1, 2));
    assert_eq!(given.host.open(), 2);
}

#[test]
fn connection_is_listed_as_one_of_the_guest() {
    let (given, _) = connected(SILENT, SILENT);
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
    assert_eq!(
        (flow.guest, flow.remote),
        ((LOCAL, 4000).into(), Some((LOCAL, 5000).into()))
    );
    assert!(!flow.came_in);
}
