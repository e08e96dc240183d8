//! Tests of the limits on flows and on pending decisions with a decider.

use pontoon_engine::decider::{Answer, DEADLINE, Denial, MOST_PENDING, TokenState, Verdict};
use pontoon_engine::policy::{GuestForward, GuestForwards};
use pontoon_simnet::decider::ScriptedDecider;

use super::decider::{deciding, outcome, token};
use super::*;

/// Limit on the pending decisions about flows of the guest: the rest is for clients.
const MOST_OF_GUEST: usize = MOST_PENDING / 8 * 7;

/// Returns an engine with a limit of `max_flows` flows and a published TCP port.
fn limited(max_flows: u32) -> (Given, ScriptedDecider) {
    let config = Config { max_flows, ..any() };
    deciding(config, Answer::Later)
}

/// Connects `count` clients to the published port now, from `first` on.
fn connect(given: &mut Given, first: u16, count: u16) {
    for port in first..first + count {
        let now = given.now();
        given.host.connect_in(0, (CLIENT, port).into(), port, SILENT, now);
    }
    given.pass(millis(1));
}

/// A client whose decision is pending has a descriptor, so it counts as a flow, against the share of its port.
#[test]
fn clients_without_a_verdict_count_as_flows() {
    let (mut given, decider) = limited(8);
    connect(&mut given, 5000, 20);
    given.quiet();
    let requests = decider.take();
    assert_eq!(
        (requests.len(), given.host.open(), given.engine.flows()),
        (6, 6, 6)
    );
    assert_eq!(given.engine.counters().tcp_share_refused, 14);
    // The guest has the rest.
    decider.set(Answer::Now(Verdict::Allow));
    is_answered(&mut given, &dial(1, 80));
    is_answered(&mut given, &dial(2, 81));
    is_refused(&mut given, &dial(3, 82));
    assert_eq!(decider.take().len(), 3);
    // Decided clients have their flows, or none.
    for (nth, request) in requests.iter().enumerate() {
        let verdict = match nth {
            0..3 => Verdict::Allow,
            _ => Verdict::Deny(Denial::Reset),
        };
        assert_eq!(given.verdict(request.token, verdict), TokenState::Known);
    }
    assert_eq!(outcome(&mut given).iter().filter(|out| *out == "syn").count(), 3);
    assert_eq!((given.host.open(), given.engine.flows()), (5, 5));
    decider.set(Answer::Later);
    connect(&mut given, 6000, 5);
    assert_eq!(
        (decider.take().len(), given.host.open(), given.engine.flows()),
        (3, 8, 8)
    );
    given.pass(DEADLINE);
    assert_eq!((given.host.open(), given.engine.flows()), (5, 5));
    connect(&mut given, 7000, 1);
    given.forget_guest();
    given.pass(millis(1));
    assert_eq!((given.host.open(), given.engine.flows()), (0, 0));
}

/// A client whose decision is pending takes the slot of a connection in TIME-WAIT, which has no descriptor.
#[test]
fn time_wait_is_evicted_for_a_client_without_a_verdict() {
    let mut given = given(
        Config {
            max_flows: 1,
            ..any()
        },
        HostPlan::default(),
    );
    closing_server(&mut given);
    into_time_wait(&mut given, GUEST, SERVER);
    let decider = ScriptedDecider::new(Answer::Later);
    given.engine.set_decider(Box::new(decider.clone()), DEADLINE);
    connect(&mut given, 5000, 1);
    assert_eq!((given.host.open(), given.engine.flows()), (1, 1));
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(outcome(&mut given), ["syn"]);
}

/// A flow that has a socket is evicted for a client only after its verdict, for one client at a time.
#[test]
fn datagram_flow_is_evicted_for_an_allowed_client_only() {
    let mut given = given(
        Config {
            max_flows: 1,
            ..any()
        },
        HostPlan::default(),
    );
    given.packet_up(&Packet::Udp(Datagram {
        from: (GUEST.ip(), 5000).into(),
        to: (SERVER_V4, 7).into(),
        payload: vec![1; 10],
    }));
    given.pass(millis(5));
    given.take();
    let decider = ScriptedDecider::new(Answer::Later);
    given.engine.set_decider(Box::new(decider.clone()), DEADLINE);
    for (verdict, evicted) in [(Verdict::Deny(Denial::Reset), 0), (Verdict::Allow, 1)] {
        connect(&mut given, 5000 + evicted, 3);
        assert_eq!((given.host.open(), given.engine.flows()), (2, 2));
        assert_eq!(given.verdict(token(&decider), verdict), TokenState::Known);
        assert_eq!((given.host.open(), given.engine.flows()), (1, 1));
        assert_eq!(given.engine.counters().udp_evicted, u64::from(evicted));
    }
    assert_eq!(outcome(&mut given), ["syn"]);
}

/// The decider has the requests of a guest that has gone: they count until their deadline, however often a guest connects.
#[test]
fn requests_of_former_guests_count_against_the_limit() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    let most = u16::try_from(MOST_OF_GUEST).unwrap();
    for _ in 0..3 {
        for port in 0..most {
            given.up(dial(1000 + port, 80));
        }
        given.forget_guest();
    }
    given.take();
    let requests = decider.take();
    assert_eq!(requests.len(), MOST_OF_GUEST);
    assert_eq!(given.engine.pending_decisions(), MOST_OF_GUEST);
    let state = given.verdict(requests[0].token, Verdict::Allow);
    assert_eq!(state, TokenState::Unknown);
    assert_eq!((given.engine.flows(), given.host.calls()), (0, 0));
    given.pass(DEADLINE);
    given.quiet();
    assert_eq!(given.engine.pending_decisions(), 0);
    given.up(dial(1, 80));
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(outcome(&mut given), ["syn"]);
}

/// Permission for an address on the host's side permits no other one, to which a changed guest forward leads meanwhile. A
/// denial or a redirect is about the flow.
#[test]
fn permission_is_for_the_address_that_was_asked_about() {
    let redirect = Verdict::Redirect((SERVER_V4, 82).into());
    for verdict in [Verdict::Allow, redirect, Verdict::Deny(Denial::Reset)] {
        let mut forwarding = config(1500);
        let gateway = forwarding.plan.v4.as_ref().expect("the guest has IPv4").gateway;
        let forward = |port: u16| GuestForward {
            protocol: Protocol::Tcp,
            from: (gateway, 5000).into(),
            to: (Ipv4Addr::LOCALHOST, port).into(),
            count: 1,
        };
        forwarding.forwards = vec![forward(80)];
        let (mut given, decider) = deciding(forwarding, Answer::Later);
        given.up(syn_between((GUEST_V4, 1).into(), (gateway, 5000).into()));
        let replace = |forwards: &mut GuestForwards| {
            forwards.remove(&forward(80));
            forwards.add(forward(81));
        };
        given
            .engine
            .change_forwards(replace, &mut given.link, &mut given.host, START);
        assert_eq!(given.verdict(token(&decider), verdict), TokenState::Known);
        let ports = |given: &Given| Vec::from_iter(given.host.reports().map(|report| report.port));
        if verdict != Verdict::Allow {
            assert_eq!(decider.take(), []);
            assert_eq!(ports(&given), if verdict == redirect { vec![82] } else { vec![] });
            continue;
        }
        given.quiet();
        assert!(ports(&given).is_empty());
        let requests = decider.take();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].remote, (Ipv4Addr::LOCALHOST, 81).into());
        assert_eq!(given.verdict(requests[0].token, verdict), TokenState::Known);
        assert_eq!(
            (outcome(&mut given), ports(&given)),
            (vec!["syn".to_owned()], vec![81])
        );
    }
}
