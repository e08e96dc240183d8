//! Tests of claims in the directory of flow owners on flows that wait for a decision.

use core::net::IpAddr;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use pontoon_wire::Mac;
use pontoon_wire::vnet::Segmentation;

use crate::decider::{Answer, DEADLINE, Decider, DecisionToken, FlowRequest, TokenState, Verdict};
use crate::flow_rate::{Admission, FlowOpener};
use crate::siblings::{FlowKey, HandOver, Siblings};
use crate::test_world::{FakeHost, FakeLink, GUEST, GUEST_V6, Sent, net, with_frame};
use crate::{Engine, Frame, Instant, WorkerId};

/// Directory of the flows that the only worker has claimed.
#[derive(Clone, Debug, Default)]
struct Claims(Arc<Mutex<HashSet<FlowKey>>>);

impl Claims {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Siblings for Claims {
    fn owner(&self, key: &FlowKey) -> Option<WorkerId> {
        self.0.lock().unwrap().contains(key).then_some(WorkerId(0))
    }

    fn claim(&self, key: &FlowKey) -> Result<(), WorkerId> {
        self.seize(key);
        Ok(())
    }

    fn seize(&self, key: &FlowKey) {
        self.0.lock().unwrap().insert(*key);
    }

    fn release(&self, key: &FlowKey) {
        self.0.lock().unwrap().remove(key);
    }

    fn reassembler(&self, _: IpAddr, _: IpAddr, _: u32) -> WorkerId {
        WorkerId(0)
    }

    fn hand_over(&self, _: WorkerId, _: &Frame<'_>, _: bool) -> HandOver {
        HandOver::Dropped
    }

    fn flows(&self) -> u32 {
        0
    }

    fn opened(&self) {}

    fn closed(&self) {}

    fn clients(&self, _: u32) -> u32 {
        0
    }

    fn all_clients(&self) -> u32 {
        0
    }

    fn client_opened(&self, _: u32) {}

    fn client_closed(&self, _: u32) {}

    fn set_evictable(&self, _: u32) {}

    fn most_evictable(&self) -> Option<WorkerId> {
        None
    }

    fn ports(&self, _: IpAddr) -> u32 {
        0
    }

    fn port_taken(&self, _: IpAddr) {}

    fn port_freed(&self, _: IpAddr) {}

    fn count_against_rate(&self, _: u32, _: FlowOpener, _: Instant) -> Admission {
        Admission::Admitted
    }

    fn guest_moved(&self, _: Mac) {}
}

/// Decider that answers later, and stores the tokens.
#[derive(Clone, Debug, Default)]
struct Later(Arc<Mutex<Vec<DecisionToken>>>);

impl Decider for Later {
    fn decide(&mut self, request: &FlowRequest) -> Answer {
        self.0.lock().unwrap().push(request.token);
        Answer::Later
    }
}

/// An engine whose decider has the requests about a SYN and a datagram of each address family.
struct Waiting {
    engine: Engine<FakeHost>,
    host: FakeHost,
    link: FakeLink,
    claims: Claims,
    asked: Later,
}

const NOW: Instant = Instant(1_000_000_000_000);

impl Waiting {
    fn new() -> Self {
        let (claims, asked) = (Claims::default(), Later::default());
        let mut engine = Engine::new(net().config, WorkerId(0), [7; 32], NOW);
        engine.join(Box::new(claims.clone()));
        engine.set_decider(Box::new(asked.clone()), DEADLINE);
        let (mut host, mut link) = (FakeHost::default(), FakeLink::new());
        for (guest, to) in [(GUEST, "192.0.2.1:7"), (GUEST_V6, "[2001:db8::1]:7")] {
            let sent = Sent::new(guest, to, b"hello");
            for bytes in [sent.syn(), sent.udp()] {
                with_frame(&bytes, Segmentation::Whole, |frame, _| {
                    engine.handle_frames(std::slice::from_ref(frame), &mut link, &mut host, NOW);
                });
            }
        }
        assert_eq!(claims.len(), 4);
        Self {
            engine,
            host,
            link,
            claims,
            asked,
        }
    }

    /// Allows all flows, and returns the numbers of flows and of claims.
    fn allow(mut self) -> (usize, usize) {
        let tokens = core::mem::take(&mut *self.asked.0.lock().unwrap());
        for token in tokens {
            let (link, host) = (&mut self.link, &mut self.host);
            let state = self.engine.take_verdict(token, Verdict::Allow, link, host, NOW);
            assert_eq!(state, TokenState::Known);
        }
        (self.engine.flows(), self.claims.len())
    }
}

#[test]
fn opened_flows_keep_their_claims() {
    assert_eq!(Waiting::new().allow(), (4, 4));
}

#[test]
fn claims_on_flows_that_the_rules_refuse_at_the_verdict_are_released() {
    let mut waiting = Waiting::new();
    let rules = ["deny *".parse().unwrap()];
    let (link, host) = (&mut waiting.link, &mut waiting.host);
    waiting.engine.set_rules(&rules, link, host, NOW);
    assert_eq!(waiting.allow(), (0, 0));
}

#[test]
fn claims_on_flows_to_an_address_that_the_host_has_at_the_verdict_are_released() {
    let mut waiting = Waiting::new();
    let owned = ["192.0.2.1/32", "2001:db8::1/128"].map(|net| net.parse::<IpNet>().unwrap());
    let (link, host) = (&mut waiting.link, &mut waiting.host);
    waiting.engine.set_owned_addresses(&owned, link, host, NOW);
    assert_eq!(waiting.allow(), (0, 0));
}

#[test]
fn claims_end_with_the_guest() {
    let mut waiting = Waiting::new();
    let (link, host) = (&mut waiting.link, &mut waiting.host);
    waiting.engine.forget_guest(link, host, NOW);
    assert_eq!(waiting.claims.len(), 0);
}

/// The endpoint waits for the decision about another destination.
#[test]
fn claim_on_an_endpoint_with_another_pending_decision_is_kept() {
    let mut waiting = Waiting::new();
    let sent = Sent::new(GUEST, "192.0.2.1:8", b"hello");
    with_frame(&sent.udp(), Segmentation::Whole, |frame, _| {
        let (link, host) = (&mut waiting.link, &mut waiting.host);
        waiting
            .engine
            .handle_frames(std::slice::from_ref(frame), link, host, NOW);
    });
    let token = waiting.asked.0.lock().unwrap()[1];
    let (link, host) = (&mut waiting.link, &mut waiting.host);
    let rules = ["deny 192.0.2.1:7".parse().unwrap()];
    waiting.engine.set_rules(&rules, link, host, NOW);
    let state = waiting
        .engine
        .take_verdict(token, Verdict::Allow, link, host, NOW);
    assert_eq!(state, TokenState::Known);
    assert_eq!(waiting.claims.len(), 4);
}
