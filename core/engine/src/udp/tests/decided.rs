use super::*;
use crate::WorkerId;
use crate::decider::{Answer, DEADLINE, Decider, Decisions, Denial, FlowRequest, Verdict};
use crate::test_world::{TROUBLE, problem};

/// Decider that allows the destinations of one port, and denies all others.
#[derive(Debug)]
struct OnePort(u16);

impl Decider for OnePort {
    fn decide(&mut self, request: &FlowRequest) -> Answer {
        Answer::Now(match request.remote.port() == self.0 {
            true => Verdict::Allow,
            false => Verdict::Deny(Denial::Drop),
        })
    }
}

fn deciding(filter: UdpFilter) -> Nat {
    let mut nat = Nat::with_filter(filter);
    let decisions = Decisions::new(Box::new(OnePort(7)), DEADLINE, WorkerId(0), 0);
    nat.world.net.decisions = Some(Box::new(decisions));
    nat.send(GUEST, "192.0.2.1:7");
    nat.world.forget();
    nat
}

#[test]
fn undecided_port_of_an_allowed_address_is_closed_in_both_directions() {
    for filter in [UdpFilter::Address, UdpFilter::AddressPort] {
        let mut nat = deciding(filter);
        nat.arrive(0, "192.0.2.1:8");
        nat.send(GUEST, "192.0.2.1:8");
        assert!(nat.world.down().is_empty());
        let expected = [
            ("udp_unsolicited", 1),
            ("decisions_asked", 1),
            ("decisions_denied", 1),
        ];
        for moved in nat.world.moved() {
            assert!(expected.contains(&moved), "{moved:?}");
        }
        assert!(nat.world.calls().is_empty());
        nat.arrive(0, "192.0.2.1:7");
        assert_eq!(nat.world.down().len(), 1);
    }
}

#[test]
fn guest_cannot_answer_a_stranger_that_the_decider_denies() {
    let mut nat = deciding(UdpFilter::Endpoint);
    nat.arrive(0, "192.0.2.9:8");
    assert_eq!(nat.world.down().len(), 1, "the filter admits all senders");
    nat.world.forget();
    nat.send(GUEST, "192.0.2.9:8");
    assert!(nat.world.calls().is_empty());
    assert_eq!(nat.world.net.counters.decisions_denied, 1);
}

#[test]
fn stranger_that_was_allowed_long_ago_is_asked_about_again() {
    let mut nat = deciding(UdpFilter::Endpoint);
    nat.arrive(0, "192.0.2.1:7");
    for seconds in [100, 25] {
        nat.wait(seconds);
        nat.send(GUEST, "192.0.2.2:7");
    }
    nat.world.forget();
    nat.arrive(0, "192.0.2.1:7");
    assert_eq!(nat.world.down().len(), 1, "the filter admits all senders");
    assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("decisions_asked", 1), ("udp_up", 1)]);
}

/// Decider that redirects all datagrams.
#[derive(Debug)]
struct Redirecting;

impl Decider for Redirecting {
    fn decide(&mut self, _: &FlowRequest) -> Answer {
        Answer::Now(Verdict::Redirect(addr("198.51.100.99:4242")))
    }
}

/// Without a peer, the destination that the guest has sent is not known, and the one that the decider has chosen is not shown.
#[test]
fn error_about_a_forgotten_redirected_datagram_is_dropped() {
    let mut nat = Nat::new();
    let decisions = Decisions::new(Box::new(Redirecting), DEADLINE, WorkerId(0), 0);
    nat.world.net.decisions = Some(Box::new(decisions));
    nat.send(GUEST, "192.0.2.1:7");
    let refused = problem("198.51.100.99:4242", Some("198.51.100.99"), 3, 3);
    let report = |nat: &mut Nat| {
        nat.world.forget();
        nat.world.host.queue_problem(0, refused, b"hello");
        nat.event(0, TROUBLE);
        nat.world.down()
    };
    let expected = format!("icmp 192.0.2.1 > 10.0.2.15 3/3 0 about {GUEST} > 192.0.2.1:7");
    assert_eq!(report(&mut nat), [expected]);
    nat.world
        .net
        .policy
        .egress
        .set(&["deny 192.0.2.1".parse().unwrap()]);
    nat.udp.enforce(&mut nat.world.ctx());
    assert_eq!(report(&mut nat), [""; 0]);
}
