//! Tests of the decider: connections of the guest.

use pontoon_engine::decider::{
    Answer, DEADLINE, DecisionToken, Denial, Direction, FlowRequest, MOST_PENDING, TokenState, Verdict,
};
use pontoon_engine::egress::EgressProtocol;
use pontoon_simnet::decider::ScriptedDecider;

use super::*;

/// Limit on the pending decisions about flows of the guest: the rest is for clients.
const MOST_OF_GUEST: usize = MOST_PENDING / 8 * 7;

/// Returns an engine with servers on the ports 80 to 89 and a decider that gives this answer.
pub(super) fn deciding(config: Config, answer: Answer) -> (Given, ScriptedDecider) {
    let mut given = given(config, HostPlan::default());
    let decider = ScriptedDecider::new(answer);
    given.engine.set_decider(Box::new(decider.clone()), DEADLINE);
    (given, decider)
}

/// Returns the token of the only request.
#[track_caller]
pub(super) fn token(decider: &ScriptedDecider) -> DecisionToken {
    let requests = decider.take();
    assert_eq!(requests.len(), 1, "{requests:?}");
    requests[0].token
}

/// Returns the guest's and the server's address of the same family.
pub(super) fn ends(v6: bool) -> (IpAddr, IpAddr) {
    match v6 {
        false => (GUEST_V4.into(), SERVER_V4.into()),
        true => (GUEST_V6.into(), SERVER_V6.into()),
    }
}

fn dial_to(v6: bool, port: u16) -> Segment {
    let (guest, server) = ends(v6);
    syn_between((guest, 1).into(), (server, port).into())
}

/// Returns the kinds of packets to the guest, and the type and code of ICMP errors.
#[track_caller]
pub(super) fn outcome(given: &mut Given) -> Vec<String> {
    let name = |packet| match packet {
        Packet::Tcp(segment) if segment.flags.has(RST) => "reset".to_owned(),
        Packet::Tcp(segment) if segment.flags.has(SYN) => "syn".to_owned(),
        Packet::Icmp(icmp) => format!("icmp {}/{}", icmp.kind, icmp.code),
        Packet::Udp(datagram) => format!("udp from {}", datagram.from),
        other => format!("{other:?}"),
    };
    given.take().into_iter().map(name).collect()
}

/// The ways in which the decider answers in these tests.
const LATE: [bool; 2] = [false, true];

/// Sends a SYN and applies the verdict, at once or later. Returns the packets to the guest.
fn decide(
    given: &mut Given,
    decider: &ScriptedDecider,
    syn: &Segment,
    verdict: Verdict,
    late: bool,
) -> Vec<String> {
    if !late {
        decider.set(Answer::Now(verdict));
        given.up(syn.clone());
        return outcome(given);
    }
    decider.set(Answer::Later);
    given.up(syn.clone());
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.verdict(token(decider), verdict), TokenState::Known);
    outcome(given)
}

#[test]
fn request_describes_the_connection() {
    let config = Config {
        host_loopback: vec![Ipv4Addr::new(10, 0, 2, 2).into()],
        ..config(1500)
    };
    let (mut given, decider) = deciding(config, Answer::Later);
    given.set_rules(&["allow 10.0.2.2:80/tcp".parse().unwrap()]);
    let to = SocketAddr::from(([10, 0, 2, 2], 80));
    given.up(syn_between((GUEST_V4, 1).into(), to));
    let [request] = &decider.take()[..] else {
        panic!("one request");
    };
    let expected = FlowRequest {
        token: request.token,
        protocol: EgressProtocol::Tcp,
        direction: Direction::Out { destination: to },
        guest: (GUEST_V4, 1).into(),
        remote: (Ipv4Addr::LOCALHOST, 80).into(),
        rule: Some("allow 10.0.2.2:80/tcp".to_owned()),
        deadline: DEADLINE,
    };
    assert_eq!(*request, expected);
    // A destination that the policy refuses is not asked about.
    given.up(dial(1, 81));
    assert_eq!(outcome(&mut given), ["reset"]);
    assert_eq!(decider.take(), []);
}

#[test]
fn allowed_connection_is_opened() {
    for (v6, late) in [false, true]
        .into_iter()
        .flat_map(|v6| LATE.map(|late| (v6, late)))
    {
        let (mut given, decider) = deciding(config(1500), Answer::Later);
        let out = decide(&mut given, &decider, &dial_to(v6, 80), Verdict::Allow, late);
        assert_eq!(out, ["syn"]);
        given.counted(|counters| {
            one_each(counters);
            counters.decisions_asked += 1;
            counters.tcp_opened += 1;
        });
        assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    }
}

#[test]
fn denied_connection_is_refused_before_a_socket_opens() {
    let cases = [
        (Denial::Reset, [vec!["reset"], vec!["reset"]]),
        (
            Denial::Unreachable,
            [vec!["icmp 3/13", "reset"], vec!["icmp 1/1", "reset"]],
        ),
        (Denial::Drop, [vec![], vec![]]),
    ];
    for (denial, expected) in cases {
        for (v6, expected) in [false, true].into_iter().zip(expected) {
            for late in LATE {
                let (mut given, decider) = deciding(config(1500), Answer::Later);
                let out = decide(
                    &mut given,
                    &decider,
                    &dial_to(v6, 80),
                    Verdict::Deny(denial),
                    late,
                );
                assert_eq!(out, expected);
                given.counted(|counters| {
                    counters.frames_up += 1;
                    counters.frames_down += expected.len() as u64;
                    counters.decisions_asked += 1;
                    counters.decisions_denied += 1;
                    counters.icmp_errors_down += u64::from(denial == Denial::Unreachable);
                });
                assert_eq!((given.host.calls(), given.host.open()), (0, 0));
            }
        }
    }
}

#[test]
fn redirected_connection_reaches_the_chosen_address() {
    // IPv4 connections may be redirected to IPv6 addresses, and the reverse.
    for (v6, to) in [
        (false, SERVER_V6.into()),
        (true, IpAddr::from(Ipv4Addr::LOCALHOST)),
    ] {
        for late in LATE {
            let (mut given, decider) = deciding(config(1500), Answer::Later);
            // Only the chosen port has a server.
            given.host.serve(4444, ConnectResult::Now, Script::source(100));
            // A connect to an own address is not refused if the decider has chosen it.
            given.host.gain_address(ends(v6).1);
            let syn = dial_to(v6, 9);
            let redirect = Verdict::Redirect((to, 4444).into());
            assert_eq!(decide(&mut given, &decider, &syn, redirect, late), ["syn"]);
            let reports: Vec<_> = given.host.reports().map(|report| report.port).collect();
            assert_eq!(reports, [4444]);
        }
    }
}

#[test]
fn redirected_connection_uses_the_given_stream() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.up(dial(1, 9));
    given.host.give_stream(85);
    let state = given.verdict(token(&decider), Verdict::RedirectToStream);
    assert_eq!(
        (state, outcome(&mut given)),
        (TokenState::Known, vec!["syn".to_owned()])
    );
    // Without a stream, the connection fails.
    given.up(dial(2, 9));
    assert_eq!(
        given.verdict(token(&decider), Verdict::RedirectToStream),
        TokenState::Known
    );
    assert_eq!(outcome(&mut given), ["reset"]);
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn redirected_connection_is_reset_when_the_rules_refuse_its_destination() {
    for (rule, survives) in [("deny 203.0.113.7:9", false), ("deny 127.0.0.0/8", true)] {
        let (mut given, decider) = deciding(config(1500), Answer::Later);
        let redirect = Verdict::Redirect((Ipv4Addr::LOCALHOST, 80).into());
        assert_eq!(decide(&mut given, &decider, &dial(1, 9), redirect, true), ["syn"]);
        given.set_rules(&[rule.parse().unwrap()]);
        assert_eq!(given.engine.flows() == 1, survives, "{rule}");
    }
}

#[test]
fn flow_without_a_verdict_is_denied_at_the_deadline() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.up(dial(1, 80));
    given.pass(DEADLINE - millis(1));
    given.quiet();
    given.pass(millis(1));
    assert_eq!(given.take_one(), refusal(&dial(1, 80)));
    given.counted(|counters| {
        one_each(counters);
        counters.decisions_asked += 1;
        counters.decisions_expired += 1;
    });
    // The token is not known any more.
    assert_eq!(
        given.verdict(token(&decider), Verdict::Allow),
        TokenState::Unknown
    );
    given.quiet();
    given.counted(|_| {});
    assert_eq!((given.engine.pending_decisions(), given.host.calls()), (0, 0));
}

#[test]
fn verdict_is_applied_once() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.up(dial(1, 80));
    let token = token(&decider);
    assert_eq!(
        given.verdict(DecisionToken(token.0 + 1), Verdict::Allow),
        TokenState::Unknown
    );
    given.quiet();
    assert_eq!(given.verdict(token, Verdict::Allow), TokenState::Known);
    for verdict in [Verdict::Allow, Verdict::Deny(Denial::Reset)] {
        assert_eq!(given.verdict(token, verdict), TokenState::Unknown);
    }
    assert_eq!(outcome(&mut given), ["syn"]);
    assert_eq!(given.engine.flows(), 1);
}

#[test]
fn repeated_syn_is_dropped_while_the_decision_is_pending() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    for _ in 0..3 {
        given.up(dial(1, 80));
    }
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 3;
        counters.decisions_asked += 1;
        counters.decisions_repeated += 2;
    });
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(outcome(&mut given), ["syn"]);
}

#[test]
fn connection_has_the_sequence_number_of_the_last_syn() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    for seq in [1000, 5000] {
        given.up(Segment { seq, ..dial(1, 80) });
    }
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(given.take_one().ack, 5001);
}

#[test]
fn reset_of_the_guest_cancels_the_request() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.up(dial(1, 80));
    given.up(Segment {
        flags: RST,
        ..dial(1, 80)
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 2;
        counters.decisions_asked += 1;
        counters.tcp_reset_by_guest += 1;
    });
    assert_eq!(
        given.verdict(token(&decider), Verdict::Allow),
        TokenState::Unknown
    );
    assert_eq!((given.engine.flows(), given.host.calls()), (0, 0));
}

fn cancel(given: &mut Given, port: u16) {
    given.up(dial(port, 80));
    given.up(Segment {
        flags: RST,
        ..dial(port, 80)
    });
}

/// The decider has the requests of connections that the guest has reset: they count against the limit.
#[test]
fn cancelled_decisions_count_until_their_verdict_or_deadline() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    let most = u16::try_from(MOST_OF_GUEST).unwrap();
    for port in 0..most {
        cancel(&mut given, 1000 + port);
    }
    given.quiet();
    is_refused(&mut given, &dial(1, 80));
    let requests = decider.take();
    assert_eq!(requests.len(), MOST_OF_GUEST);
    // A verdict has no effect but room for another request.
    let state = given.verdict(requests[7].token, Verdict::Allow);
    assert_eq!(state, TokenState::Unknown);
    given.up(dial(1, 80));
    given.quiet();
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(outcome(&mut given), ["syn"]);
    given.pass(DEADLINE);
    // The SYN-ACK may be sent again, and no reset is.
    assert!(outcome(&mut given).iter().all(|packet| packet == "syn"));
    assert_eq!(given.engine.counters().decisions_expired, 0);
    assert_eq!(given.engine.pending_decisions(), 0);
}

#[test]
fn connection_is_asked_about_again_while_its_cancelled_decision_is_pending() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    cancel(&mut given, 1);
    let cancelled = token(&decider);
    given.up(dial(1, 80));
    given.quiet();
    let state = given.verdict(cancelled, Verdict::Allow);
    assert_eq!(state, TokenState::Unknown);
    given.quiet();
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(outcome(&mut given), ["syn"]);
}

#[test]
fn rules_are_checked_again_when_the_verdict_arrives() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.up(dial(1, 80));
    given.set_rules(&["deny *".parse().unwrap()]);
    given.forget_counters();
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(outcome(&mut given), ["reset"]);
    given.counted(|counters| {
        counters.frames_down += 1;
        counters.policy_refused += 1;
    });
    assert_eq!(given.host.calls(), 0);
}

#[test]
fn rule_is_counted_once_for_a_decided_flow() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.set_rules(&["allow *".parse().unwrap()]);
    given.up(dial(1, 80));
    given.up(dial(1, 80));
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(given.engine.egress().hits().next(), Some(1));
}

#[test]
fn limits_apply_after_the_decision() {
    let limited = Config {
        max_flow_rate: Some(1),
        ..config(1500)
    };
    let (mut given, decider) = deciding(limited, Answer::Later);
    // Denied flows do not count against the rate.
    for port in 1..5 {
        given.up(dial(port, 80));
        let state = given.verdict(token(&decider), Verdict::Deny(Denial::Drop));
        assert_eq!(state, TokenState::Known);
    }
    for (port, out) in [(5, "syn"), (6, "reset")] {
        given.up(dial(port, 80 + port));
        assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
        assert_eq!(outcome(&mut given), [out]);
    }
    assert_eq!(given.engine.counters().flows_refused, 1);
}

#[test]
fn flows_beyond_the_limit_on_pending_decisions_are_denied() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    let most = u16::try_from(MOST_OF_GUEST).unwrap();
    for port in 0..most {
        given.up(dial(1000 + port, 80));
    }
    given.quiet();
    is_refused(&mut given, &dial(1, 80));
    let requests = decider.take();
    assert_eq!(requests.len(), MOST_OF_GUEST);
    assert_eq!(given.engine.counters().decisions_unavailable, 1);
    // A verdict makes room for another request.
    let state = given.verdict(requests[7].token, Verdict::Deny(Denial::Drop));
    assert_eq!(state, TokenState::Known);
    given.up(dial(1, 80));
    given.quiet();
    assert_eq!(decider.take().len(), 1);
}

/// Each segment is handled in the turn in which it arrives, however many decisions are pending: no time passes.
#[test]
fn pending_decisions_delay_no_established_connection() {
    let mut given = Given::open(Script::SINK);
    let decider = ScriptedDecider::new(Answer::Later);
    given.engine.set_decider(Box::new(decider), DEADLINE);
    // One more than may be pending, which is refused.
    let most = u16::try_from(MOST_OF_GUEST).unwrap();
    for port in 0..=most {
        given.up(dial(20_000 + port, 80));
    }
    assert_eq!(outcome(&mut given), ["reset"]);
    given.forget_counters();
    let begin = given.now();
    for at in 0..100 {
        let payload = Given::guest_bytes(u64::from(at), 1);
        given.up(up(ACK, 1001 + at, 1).carrying(payload));
        given.down(down(ACK, 1, 1002 + at));
        given.counted(one_each);
    }
    assert_eq!(given.now(), begin);
    assert_eq!(given.engine.pending_decisions(), MOST_OF_GUEST);
}

#[test]
fn flows_are_denied_at_once_without_a_connected_decider() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.up(dial(1, 80));
    given.deny_pending();
    assert_eq!(outcome(&mut given), ["reset"]);
    decider.set(Answer::Unavailable);
    is_refused(&mut given, &dial(2, 80));
    given.counted(|counters| {
        counters.frames_up += 2;
        counters.frames_down += 2;
        counters.decisions_asked += 1;
        counters.decisions_unavailable += 2;
    });
    assert_eq!(given.host.calls(), 0);
}

#[test]
fn pending_decisions_end_with_the_guest() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.up(dial(1, 80));
    given.forget_guest();
    assert_eq!(
        given.verdict(token(&decider), Verdict::Allow),
        TokenState::Unknown
    );
    assert_eq!(given.engine.pending_decisions(), 0);
    given.pass(DEADLINE);
    given.quiet();
    assert_eq!(given.host.calls(), 0);
}

#[test]
fn queries_to_the_forwarder_are_not_asked_about() {
    let resolved = Config {
        resolvers: vec![(SERVER_V4, 53).into()],
        ..config(1500)
    };
    let dns = resolved.plan.v4.as_ref().unwrap().dns.unwrap();
    let (mut given, decider) = deciding(resolved, Answer::Unavailable);
    given.host.serve(53, ConnectResult::Now, Script::SINK);
    is_answered(&mut given, &syn_between((GUEST_V4, 1).into(), (dns, 53).into()));
    assert_eq!(decider.take(), []);
}

#[test]
fn allowed_connection_is_not_opened_while_the_host_is_exhausted() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.host.set_descriptors(0);
    given.up(dial(1, 80));
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(outcome(&mut given), ["reset"]);
    assert_eq!(given.engine.pending_decisions(), 0);
}
