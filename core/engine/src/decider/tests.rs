use core::net::SocketAddr;
use core::time::Duration;

use super::*;
use crate::test_world::net;

/// Decider that answers the same to all requests.
#[derive(Debug)]
struct Same(Answer);

impl Decider for Same {
    fn decide(&mut self, _: &FlowRequest) -> Answer {
        self.0
    }
}

fn flow(port: u16) -> NewFlow {
    let guest = SocketAddr::from(([10, 0, 2, 15], port));
    let written = SocketAddr::from(([192, 0, 2, 1], 80));
    NewFlow {
        protocol: EgressProtocol::Udp,
        direction: Direction::Out { destination: written },
        guest,
        remote: written,
        key: Some(PendingKey::Udp { guest, written }),
    }
}

fn with(answer: Answer) -> Net {
    let mut net = net();
    let decisions = Decisions::new(Box::new(Same(answer)), DEADLINE, WorkerId(3), u64::MAX);
    net.decisions = Some(Box::new(decisions));
    net
}

fn kept(len: usize) -> Kept {
    Kept::Datagrams(KeptDatagrams {
        index: 0,
        generation: 0,
        received: crate::host::Received {
            len,
            stride: len,
            from: SocketAddr::from(([192, 0, 2, 1], 80)),
            to: None,
            meta: crate::host::DatagramMeta {
                hop_limit: 64,
                traffic_class: 0,
                dont_fragment: false,
            },
        },
        payload: vec![0; len],
    })
}

#[test]
fn tokens_have_the_worker_and_52_bits() {
    let mut net = with(Answer::Later);
    let Ruling::Pending(token) = net.judge(&flow(1), Instant(0), || kept(1)) else {
        panic!("not pending");
    };
    assert_eq!(token.worker(), WorkerId(3));
    assert!(token.0 < 1 << 52);
    let Ruling::Pending(next) = net.judge(&flow(2), Instant(0), || kept(1)) else {
        panic!("not pending");
    };
    assert_eq!(next.0, token.0 + 1);
}

#[test]
fn table_is_bounded_in_flows_and_bytes() {
    for (len, most) in [(1, MOST_PENDING), (64 << 10, MOST_BYTES / (64 << 10))] {
        let mut net = with(Answer::Later);
        for port in 0..2000 {
            net.judge(&flow(port), Instant(0), || kept(len));
        }
        assert_eq!(net.decisions.as_ref().unwrap().tokens().len(), most);
        assert_eq!(net.counters.decisions_asked, most as u64);
        assert_eq!(net.counters.decisions_unavailable, 2000 - most as u64);
        let decisions = net.decisions.as_mut().unwrap();
        for (token, _) in decisions.tokens() {
            assert!(decisions.remove(token).is_some());
        }
        assert!(!decisions.is_full());
        assert_eq!(decisions.next_deadline(), None);
    }
}

#[test]
fn queue_of_deadlines_does_not_grow_with_made_decisions() {
    let mut net = with(Answer::Later);
    net.judge(&flow(0), Instant(0), || kept(1));
    for at in 1..100_000_u64 {
        let ruling = net.judge(&flow(1), Instant(at), || kept(1));
        let (Ruling::Pending(token), Some(decisions)) = (ruling, &mut net.decisions) else {
            panic!("{ruling:?}");
        };
        assert!(decisions.remove(token).is_some());
        assert!(decisions.remove(token).is_none());
    }
    let decisions = net.decisions.unwrap();
    assert!(decisions.is_bounded());
    assert_eq!(decisions.next_deadline(), Some(Instant(0) + DEADLINE));
}

#[test]
fn verdict_of_a_kept_frame_is_for_its_flow_only() {
    let mut net = with(Answer::Unavailable);
    net.set_verdict(flow(1).key.map(|key| (key, Verdict::Allow)));
    let refused = Ruling::Denied(Denial::Unreachable);
    assert_eq!(net.judge(&flow(2), Instant(0), || kept(1)), refused);
    assert_eq!(net.judge(&flow(1), Instant(0), || kept(1)), Ruling::Allowed);
    assert_eq!(net.judge(&flow(1), Instant(0), || kept(1)), refused);
}

#[test]
fn deadline_is_that_of_the_oldest_pending_decision() {
    let mut net = with(Answer::Later);
    for port in 0..3 {
        let now = Instant(0) + Duration::from_millis(port.into());
        net.judge(&flow(port), now, || kept(1));
    }
    let decisions = net.decisions.as_mut().unwrap();
    let tokens = decisions.tokens();
    assert!(decisions.remove(tokens[0].0).is_some());
    let due = Instant(0) + DEADLINE + Duration::from_millis(1);
    assert_eq!(decisions.next_deadline(), Some(due));
    assert_eq!(decisions.expired(Instant(0) + DEADLINE), None);
    assert_eq!(decisions.expired(due), Some(tokens[1]));
}
