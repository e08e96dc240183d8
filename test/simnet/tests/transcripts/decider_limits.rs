//! Tests of the limits on flows and on pending decisions with a decider.

use pontoon_engine::decider::{Answer, DEADLINE, Denial, MOST_PENDING, TokenState, Verdict};
use pontoon_engine::policy::{GuestForward, GuestForwards};

use super::decider::{deciding, outcome, token};
use super::*;

/// Limit on the pending decisions about flows of the guest: the rest is for clients.
const MOST_OF_GUEST: usize = MOST_PENDING / 8 * 7;

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
