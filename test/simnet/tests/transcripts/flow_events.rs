//! Tests of the events of TCP connections: one opening event and one closing event for each, with bytes and reason.

use std::sync::{Arc, Mutex};

use pontoon_engine::Egress;
use pontoon_engine::decider::{Answer, Denial, TokenState, Verdict};
use pontoon_engine::flow_events::{CloseReason, FlowEvent, FlowEventKind, FlowEvents, Reported};

use super::*;

/// Receiver that writes each event as a line of text.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorder(Arc<Mutex<Vec<String>>>);

impl FlowEvents for Recorder {
    fn report(&mut self, event: &FlowEvent) -> Reported {
        let what = match event.kind {
            FlowEventKind::Opened { target: None } => "opened".to_owned(),
            FlowEventKind::Opened { target: Some(target) } => format!("opened to {target}"),
            FlowEventKind::Decided { ground } => format!("decided {ground:?}"),
            FlowEventKind::ServerName { part } => format!("name {}", String::from_utf8_lossy(part.octets())),
            FlowEventKind::Proof { result, ground } => match result {
                Ok(()) => format!("proven {ground:?}"),
                Err(cause) => format!("{} {ground:?}", cause.word()),
            },
            FlowEventKind::Peer { target } => format!("peer {target:?}"),
            FlowEventKind::Refused { reason } => format!("refused {reason}"),
            FlowEventKind::Closed {
                reason,
                traffic,
                announced,
                ..
            } => {
                assert!(announced);
                let failure = match (reason, reason.failure()) {
                    (CloseReason::ProxyRefused(refusal), _) => format!(": {refusal}"),
                    (_, Some(failure)) => format!(": {failure}"),
                    (_, None) => String::new(),
                };
                format!(
                    "closed {reason}{failure}, {} up, {} down",
                    traffic.up, traffic.down
                )
            }
        };
        self.0.lock().expect("no panic").push(what);
        Reported::Kept
    }
}

/// Returns an engine whose events are recorded.
pub(super) fn recorded(mut given: Given) -> (Given, Recorder) {
    let recorder = Recorder::default();
    given.engine.report_events(Box::new(recorder.clone()));
    (given, recorder)
}

/// Returns an engine with an open connection to a server with this script.
fn open(script: Script) -> (Given, Recorder) {
    let (mut given, recorder) = recorded(Given::serving(script));
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    (given, recorder)
}

impl Recorder {
    #[track_caller]
    pub(super) fn had(&self, expected: &[&str]) {
        assert_eq!(self.take(), expected);
    }

    /// Returns the lines since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        core::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

#[test]
fn fin_of_the_guest_first() {
    let (mut given, events) = open(Script::SINK);
    given.up(up(ACK.and(FIN), 1001, 1).carrying(Given::guest_bytes(0, 10)));
    given.pass(millis(1));
    events.had(&["opened"]);
    given.up(up(ACK, 1012, 2));
    events.had(&["closed guest-fin, 10 up, 0 down"]);
    assert_eq!(given.engine.flows(), 0);
}

#[test]
fn fin_of_the_peer_first_is_reported_before_time_wait() {
    let (mut given, events) = open(Script::source(100));
    given.pass(millis(1));
    given.up(up(ACK, 1001, 102));
    given.up(up(ACK.and(FIN), 1001, 102));
    events.had(&["opened", "closed peer-fin, 0 up, 100 down"]);
    assert_eq!(given.engine.flows(), 1);
    given.pass(seconds(120));
    assert_eq!(given.engine.flows(), 0);
    events.had(&[]);
}

#[test]
fn resets_of_either_side() {
    let (mut given, events) = open(Script::SINK);
    given.up(up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 7)));
    given.up(up(RST, 1008, 0));
    events.had(&["opened", "closed guest-reset, 7 up, 0 down"]);

    let (mut given, events) = open(Script {
        end: FinalAction::Reset(7),
        ..Script::SINK
    });
    given.up(up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 7)));
    given.pass(millis(5));
    events.had(&["opened", "closed peer-reset, 7 up, 0 down"]);
}

#[test]
fn failed_connects_have_the_hosts_error() {
    for (answer, reason) in [
        (
            ConnectResult::Fail(Failure::NetUnreachable),
            "network unreachable",
        ),
        (
            ConnectResult::FailAfter(millis(5), Failure::Refused),
            "connection refused",
        ),
        (
            ConnectResult::FailAfter(seconds(1000), Failure::Refused),
            "timed out",
        ),
        (ConnectResult::Fail(Failure::Other(99)), "errno 99"),
    ] {
        let (mut given, events) = recorded(Given::new(config(1500), PLAIN, HostPlan::default()));
        given.host.serve(PORT, answer, Script::SINK);
        given.up(syn());
        given.pass(seconds(11));
        let closed = format!("closed connect-failed: {reason}, 0 up, 0 down");
        events.had(&["opened", &closed]);
        assert_eq!(given.engine.flows(), 0);
    }
}

#[test]
fn guest_that_does_not_respond() {
    let (mut given, events) = recorded(Given::server());
    given.up(syn());
    given.pass(seconds(26));
    events.had(&["opened", "closed timeout, 0 up, 0 down"]);
}

#[test]
fn rules_decide_refuse_and_close() {
    let config = Config {
        egress: Egress::new(&[
            "deny 192.0.2.0/24".parse().unwrap(),
            "allow *:80".parse().unwrap(),
        ]),
        ..config(1500)
    };
    let (mut given, events) = recorded(Given::new(config, PLAIN, HostPlan::default()));
    given.host.serve(PORT, ConnectResult::Now, Script::SINK);
    given.up(syn());
    events.had(&["opened", "decided Rule(1)"]);
    given.up(dial(9, 81));
    events.had(&["refused unlisted"]);
    given.up(syn_between(GUEST, (Ipv4Addr::new(192, 0, 2, 1), 80).into()));
    events.had(&["refused rule"]);
    given.up(syn_between(GUEST, (Ipv4Addr::new(127, 0, 0, 1), 80).into()));
    events.had(&["refused address-class"]);
    let rules = ["allow *:443".parse().unwrap()];
    given
        .engine
        .set_rules(&rules, &mut given.link, &mut given.host, START);
    events.had(&["closed policy, 0 up, 0 down"]);
}

#[test]
fn limits_refuse_flows_of_guest_and_clients() {
    let config = Config {
        max_flows: 1,
        ..any()
    };
    let (mut given, events) = recorded(Given::new(config, PLAIN, HostPlan::default()));
    given.host.serve(PORT, ConnectResult::Now, SILENT);
    given.up(syn());
    given.up(up(ACK, 1001, 1));
    given.up(dial(9, 80));
    events.had(&["opened", "refused limit"]);
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 7, Script::SINK, START);
    given.pass(millis(1));
    events.had(&["refused limit"]);
}

#[test]
fn half_closed_connection_is_evicted() {
    let config = Config {
        max_flows: 1,
        ..config(1500)
    };
    let (mut given, events) = recorded(Given::new(config, PLAIN, HostPlan::default()));
    for port in [PORT, 81] {
        given.host.serve(port, ConnectResult::Now, SILENT);
    }
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK.and(FIN), 1001, 1));
    given.pass(seconds(6));
    given.up(dial(9, 81));
    events.had(&["opened", "opened", "closed evicted, 0 up, 0 down"]);
}

#[test]
fn clients_of_published_ports_are_reported() {
    let (mut given, events) = recorded(Given::new(any(), PLAIN, HostPlan::default()));
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 7, Script::SINK, START);
    given.pass(millis(1));
    events.had(&["opened"]);
    given.forget_guest();
    events.had(&["closed guest-gone, 0 up, 0 down"]);
}

#[test]
fn translated_destination_is_reported() {
    let config = Config {
        host_loopback: vec![Ipv4Addr::new(10, 0, 2, 2).into()],
        ..config(1500)
    };
    let (mut given, events) = recorded(Given::new(config, PLAIN, HostPlan::default()));
    given.host.serve(PORT, ConnectResult::Now, Script::SINK);
    given.up(syn_between(GUEST, (Ipv4Addr::new(10, 0, 2, 2), 80).into()));
    events.had(&["opened to 127.0.0.1:80"]);
}

#[test]
fn end_of_the_engine_closes_all_flows_once() {
    let (mut given, events) = open(Script::SINK);
    given.engine.report_end(START);
    events.had(&["opened", "closed ended, 0 up, 0 down"]);
    given.engine.report_end(START);
    events.had(&[]);
}

#[test]
fn panic_of_a_handler_closes_the_flow() {
    let (mut given, events) = open(Script::SINK);
    given.host.panic_after(0);
    given.up(up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 7)));
    given.pass(millis(1));
    assert_eq!(given.engine.counters().panics, 1);
    let seen = core::mem::take(&mut *events.0.lock().expect("no panic"));
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[1].starts_with("closed internal-error, "), "{seen:?}");
}

#[test]
fn dropped_events_are_counted() {
    #[derive(Debug)]
    struct Full;
    impl FlowEvents for Full {
        fn report(&mut self, event: &FlowEvent) -> Reported {
            if let FlowEventKind::Closed { announced, .. } = event.kind {
                assert!(!announced, "the opening event was dropped");
            }
            Reported::Dropped
        }
    }
    let mut given = Given::server();
    given.engine.report_events(Box::new(Full));
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given.up(up(RST, 1001, 0));
    assert_eq!(given.engine.counters().events_dropped, 2);
}

/// A flow that the decider permits has its decision behind the opening; one that it denies has a refusal only. The same holds
/// for a verdict that arrives later.
#[test]
fn decisions_of_the_decider() {
    let server = SocketAddr::new(SERVER_V4.into(), 80);
    let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, 81));
    for (verdict, expected) in [
        (Verdict::Allow, &["opened", "decided Decider"][..]),
        (Verdict::Redirect(server), &["opened", "decided Redirect"]),
        (
            Verdict::Redirect(proxy),
            &["opened to 127.0.0.1:81", "decided Redirect"],
        ),
        (Verdict::Deny(Denial::Drop), &["refused decider"]),
    ] {
        for late in [false, true] {
            let answer = if late { Answer::Later } else { Answer::Now(verdict) };
            let (given, decider) = decider::deciding(config(1500), answer);
            let (mut given, events) = recorded(given);
            given.up(syn_between((GUEST_V4, 1).into(), server));
            if late {
                events.had(&[]);
                assert_eq!(
                    given.verdict(decider::token(&decider), verdict),
                    TokenState::Known
                );
            }
            given.take();
            events.had(expected);
        }
    }
}

/// The engine does not know the path of a redirect to a Unix socket.
#[test]
fn redirect_to_a_stream_has_no_target() {
    let (given, decider) = decider::deciding(config(1500), Answer::Later);
    let (mut given, events) = recorded(given);
    given.up(dial(1, 9));
    given.host.give_stream(85);
    let state = given.verdict(decider::token(&decider), Verdict::RedirectToStream);
    assert_eq!(state, TokenState::Known);
    given.take();
    events.had(&["opened", "decided Redirect"]);
}

/// The rule of a flow's record is the one that matches its own packet, whatever packets were handled while its decision was
/// pending.
#[test]
fn rule_is_that_of_the_decided_flow() {
    let rules = ["deny *:82", "allow *:80", "allow *:81"].map(|rule| rule.parse().unwrap());
    let refused = [
        (81, None),
        (82, Some("refused rule")),
        (83, Some("refused unlisted")),
    ];
    for (other, refused) in refused {
        let (given, decider) = decider::deciding(config(1500), Answer::Later);
        let (mut given, events) = recorded(given);
        given.set_rules(&rules);
        given.up(dial(1, 80));
        let token = decider::token(&decider);
        given.up(dial(2, other));
        events.had(&Vec::from_iter(refused));
        assert_eq!(given.verdict(token, Verdict::Allow), TokenState::Known);
        events.had(&["opened", "decided Rule(1)", "decided Decider"]);
    }
}

/// The rule of a flow's record is one of the present rules.
#[test]
fn rule_is_that_of_the_rules_at_the_verdict() {
    let (given, decider) = decider::deciding(config(1500), Answer::Later);
    let (mut given, events) = recorded(given);
    given.set_rules(&["allow *:80".parse().unwrap()]);
    given.up(dial(1, 80));
    given.set_rules(&["deny *:9", "allow *:80"].map(|rule| rule.parse().unwrap()));
    let state = given.verdict(decider::token(&decider), Verdict::Allow);
    assert_eq!(state, TokenState::Known);
    events.had(&["opened", "decided Rule(1)", "decided Decider"]);
}

/// A client has the verdict about it, not that about a flow of the guest that was not opened.
#[test]
fn verdicts_about_clients_are_reported() {
    for late in [false, true] {
        let limited = Config {
            max_flow_rate: Some(2),
            ..any()
        };
        let (given, decider) = decider::deciding(limited, Answer::Later);
        let (mut given, events) = recorded(given);
        if !late {
            decider.set(Answer::Now(Verdict::Allow));
        }
        let client = (CLIENT, 5000).into();
        given.host.connect_in(0, client, 7, Script::SINK, START);
        given.pass(millis(1));
        if late {
            let client = decider::token(&decider);
            decider.set(Answer::Now(Verdict::Redirect((SERVER_V4, 81).into())));
            for port in 0..3 {
                given.up(dial(port + 1, 80));
            }
            let redirected = ["opened to 203.0.113.7:81", "decided Redirect"];
            // The simulated server has one client.
            let failed = "closed connect-failed: connection refused, 0 up, 0 down";
            events.had(&[&redirected[..], &redirected, &[failed, "refused limit"]].concat());
            given.pass(seconds(1));
            events.0.lock().expect("no panic").clear();
            assert_eq!(given.verdict(client, Verdict::Allow), TokenState::Known);
        }
        events.had(&["opened", "decided Decider"]);
    }
}

#[test]
fn verdicts_about_udp_clients_are_reported() {
    for late in [false, true] {
        let at = (Ipv4Addr::UNSPECIFIED, 8053).into();
        let config = Config {
            published: vec![Published::new(Protocol::Udp, at, 53)],
            ..config(1500)
        };
        let (given, decider) = decider::deciding(config, Answer::Later);
        let (mut given, events) = recorded(given);
        let opened = given
            .engine
            .open_published(&mut given.link, &mut given.host, START);
        assert_eq!(opened, []);
        events.had(&["opened"]);
        if !late {
            decider.set(Answer::Now(Verdict::Allow));
        }
        assert!(given.host.datagram_in(0, (CLIENT, 5000).into(), vec![3]));
        given.pass(millis(1));
        if late {
            let state = given.verdict(decider::token(&decider), Verdict::Allow);
            assert_eq!(state, TokenState::Known);
        }
        events.had(&["peer None", "decided Decider"]);
    }
}

/// A client is refused, with a record, if the reset of the connection that it would replace finds no room on the link.
#[test]
fn client_that_replaces_no_connection_is_reported() {
    let config = Config {
        max_flows: 1,
        ..any()
    };
    let (mut given, events) = recorded(Given::new(config, PLAIN, HostPlan::default()));
    given.host.serve(PORT, ConnectResult::Now, SILENT);
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK.and(FIN), 1001, 1));
    given.pass(seconds(6));
    events.had(&["opened"]);
    given.link.fill(seconds(1));
    let now = given.now();
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 7, Script::SINK, now);
    given.pass(millis(1));
    events.had(&["refused limit"]);
}
