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

/// Returns a flow of the client number `client` of the published port `published`, with the protocol's kind of key.
fn client(protocol: EgressProtocol, published: u16, client: u16) -> NewFlow {
    let guest = SocketAddr::from(([10, 0, 2, 15], published));
    let remote = SocketAddr::from(([198, 51, 100, 7], client));
    NewFlow {
        protocol,
        direction: Direction::In {
            published: SocketAddr::from(([192, 0, 2, 9], published)),
        },
        guest,
        remote,
        key: (protocol == EgressProtocol::Udp).then_some(PendingKey::UdpClient {
            guest,
            client: remote,
        }),
    }
}

/// Returns the number of `flows` that become pending, each with `len` bytes.
fn pending(net: &mut Net, len: usize, flows: impl Iterator<Item = NewFlow>) -> usize {
    let is_pending = |flow| matches!(net.judge(&flow, Instant(0), || kept(len)), Ruling::Pending(_));
    flows.map(is_pending).filter(|is_pending| *is_pending).count()
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

/// Lengths of frames with which the table is bounded by the number of decisions, and by the bytes.
const BOUNDS: [(usize, usize); 2] = [(1, MOST_PENDING), (64 << 10, MOST_BYTES / (64 << 10))];

const BOTH: [EgressProtocol; 2] = [EgressProtocol::Tcp, EgressProtocol::Udp];

#[test]
fn table_is_bounded_in_flows_and_bytes() {
    for (len, most) in BOUNDS {
        let mut net = with(Answer::Later);
        for round in 1..=2 {
            let guest = pending(&mut net, len, (0..2000).map(flow));
            let clients = |port| (0..2000).map(move |from| client(EgressProtocol::Udp, port, from));
            let clients = pending(&mut net, len, (1..4).flat_map(clients));
            assert_eq!(guest + clients, most);
            assert_eq!(net.decisions.as_ref().unwrap().tokens().len(), most);
            assert_eq!(net.counters.decisions_asked, round * most as u64);
            let refused = round * (8000 - most as u64);
            assert_eq!(net.counters.decisions_unavailable, refused);
            let decisions = net.decisions.as_mut().unwrap();
            for (token, _) in decisions.tokens() {
                assert!(decisions.remove(token).is_some());
            }
            assert_eq!(decisions.next_deadline(), None);
        }
    }
}

#[test]
fn clients_leave_an_eighth_to_the_guest() {
    for protocol in BOTH {
        for (len, most) in BOUNDS {
            let mut net = with(Answer::Later);
            let clients = |port| (0..2000).map(move |from| client(protocol, port, from));
            let clients = pending(&mut net, len, (1..4).flat_map(clients));
            assert_eq!(clients, most / 8 * 7);
            assert_eq!(pending(&mut net, len, (0..2000).map(flow)), most / 8);
        }
    }
}

#[test]
fn guest_leaves_an_eighth_to_clients() {
    for protocol in BOTH {
        for (len, most) in BOUNDS {
            let mut net = with(Answer::Later);
            assert_eq!(pending(&mut net, len, (0..2000).map(flow)), most / 8 * 7);
            let clients = (0..2000).map(|from| client(protocol, 1, from));
            assert_eq!(pending(&mut net, len, clients), most / 8);
        }
    }
}

#[test]
fn clients_of_a_port_leave_an_eighth_to_those_of_others() {
    for protocol in BOTH {
        for (len, most) in BOUNDS {
            let mut net = with(Answer::Later);
            let clients = |port| (0..2000).map(move |from| client(protocol, port, from));
            assert_eq!(pending(&mut net, len, clients(1)), most / 4 * 3);
            assert_eq!(pending(&mut net, len, clients(2)), most / 8);
            // A port with the same number and the other protocol is another one.
            let decisions = net.decisions.as_mut().unwrap();
            for (token, _) in decisions.tokens() {
                decisions.remove(token);
            }
            assert_eq!(pending(&mut net, len, clients(1)), most / 4 * 3);
            let other = BOTH.into_iter().find(|other| *other != protocol).unwrap();
            let clients = (0..2000).map(|from| client(other, 1, from));
            assert_eq!(pending(&mut net, len, clients), most / 8);
        }
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
    let allowed = DecidedFlow {
        key: flow(1).key.unwrap(),
        remote: flow(1).remote,
        verdict: Verdict::Allow,
    };
    net.set_verdict(Some(allowed));
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
