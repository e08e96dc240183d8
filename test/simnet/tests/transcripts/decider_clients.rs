//! Tests of the decider: clients of published ports.

use pontoon_engine::decider::{Answer, DEADLINE, Denial, Direction, TokenState, Verdict};
use pontoon_simnet::decider::ScriptedDecider;

use super::decider::{deciding, outcome, token};
use super::*;

/// Returns an engine with TCP port 8080 published, whose client waits for the decider.
fn waiting(answer: Answer) -> (Given, ScriptedDecider) {
    let (mut given, decider) = deciding(any(), answer);
    let client = (CLIENT, 5000).into();
    given.host.connect_in(0, client, 7, Script::source(100), START);
    given.pass(millis(1));
    (given, decider)
}

#[test]
fn allowed_client_is_connected_to_the_guest() {
    for late in [false, true] {
        let (mut given, decider) = waiting(match late {
            false => Answer::Now(Verdict::Allow),
            true => Answer::Later,
        });
        let requests = decider.take();
        assert_eq!(requests.len(), 1);
        let direction = Direction::In {
            published: (Ipv4Addr::UNSPECIFIED, 8080).into(),
        };
        assert_eq!(requests[0].direction, direction);
        assert_eq!(requests[0].guest, (GUEST_V4, 80).into());
        assert_eq!(requests[0].remote, (CLIENT, 5000).into());
        if late {
            given.quiet();
            assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
            // Data that arrives meanwhile is forwarded later.
            given.pass(millis(50));
            // Another connection gets the slot that was free when the client was accepted.
            decider.set(Answer::Now(Verdict::Allow));
            given.up(dial(1, 80));
            assert_eq!(outcome(&mut given), ["syn"]);
            assert_eq!(
                given.verdict(requests[0].token, Verdict::Allow),
                TokenState::Known
            );
        }
        let syn = given.take_one();
        assert_eq!((syn.flags, syn.from), (SYN, (CLIENT, 5000).into()));
        given.packet_up(&Packet::Tcp(Segment {
            mss: Some(1460),
            ..Segment::between(syn.to, syn.from).with(SYN.and(ACK), 500, syn.seq.wrapping_add(1))
        }));
        given.pass(millis(5));
        assert_eq!(take_bytes(&mut given), 100);
        assert_eq!(given.engine.counters().tcp_accepted, 1);
    }
}

#[test]
fn denied_client_is_reset() {
    for denial in [Denial::Reset, Denial::Unreachable, Denial::Drop] {
        for late in [false, true] {
            let (mut given, decider) = waiting(match late {
                false => Answer::Now(Verdict::Deny(denial)),
                true => Answer::Later,
            });
            if late {
                let state = given.verdict(token(&decider), Verdict::Deny(denial));
                assert_eq!(state, TokenState::Known);
            }
            given.pass(millis(1));
            given.quiet();
            assert_eq!(given.host.outcomes()[&7], Some(ConnectionEnd::Reset));
            assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
            assert_eq!(given.engine.counters().decisions_denied, 1);
        }
    }
}

#[test]
fn redirected_client_is_reset() {
    for verdict in [
        Verdict::Redirect((SERVER_V4, 80).into()),
        Verdict::RedirectToStream,
    ] {
        let (mut given, decider) = waiting(Answer::Later);
        assert_eq!(given.verdict(token(&decider), verdict), TokenState::Known);
        given.pass(millis(1));
        assert_eq!(given.host.outcomes()[&7], Some(ConnectionEnd::Reset));
    }
}

#[test]
fn client_without_a_verdict_is_reset_at_the_deadline() {
    let (mut given, _decider) = waiting(Answer::Later);
    given.pass(DEADLINE + millis(1));
    given.quiet();
    assert_eq!(given.host.outcomes()[&7], Some(ConnectionEnd::Reset));
    assert_eq!((given.engine.pending_decisions(), given.host.open()), (0, 0));
    assert_eq!(given.engine.counters().decisions_expired, 1);
}

#[test]
fn client_of_a_port_that_is_unpublished_meanwhile_is_served() {
    let (mut given, decider) = waiting(Answer::Later);
    given.engine.unpublish(0, &mut given.link, &mut given.host, START);
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    assert_eq!(outcome(&mut given), ["syn"]);
}

#[test]
fn pending_clients_end_with_the_guest() {
    let (mut given, _decider) = waiting(Answer::Later);
    given.forget_guest();
    given.pass(millis(1));
    assert_eq!(given.host.outcomes()[&7], Some(ConnectionEnd::Reset));
    assert_eq!((given.engine.pending_decisions(), given.host.open()), (1, 0));
    given.pass(DEADLINE);
    given.quiet();
    assert_eq!(given.engine.pending_decisions(), 0);
    assert_eq!(given.engine.counters().decisions_expired, 0);
}

/// Returns an engine with UDP port 8053 published, to which a client has sent two datagrams.
fn asked(answer: Answer) -> (Given, ScriptedDecider) {
    let config = Config {
        published: vec![Published::new(
            Protocol::Udp,
            (Ipv4Addr::UNSPECIFIED, 8053).into(),
            53,
        )],
        ..config(1500)
    };
    let (mut given, decider) = deciding(config, answer);
    let opened = given
        .engine
        .open_published(&mut given.link, &mut given.host, START);
    assert_eq!(opened, []);
    for len in [10, 10] {
        assert!(given.host.datagram_in(0, (CLIENT, 5000).into(), vec![3; len]));
    }
    given.pass(millis(1));
    (given, decider)
}

#[test]
fn allowed_udp_client_reaches_the_guest() {
    for late in [false, true] {
        let (mut given, decider) = asked(match late {
            false => Answer::Now(Verdict::Allow),
            true => Answer::Later,
        });
        let requests = decider.take();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].guest, (GUEST_V4, 53).into());
        assert_eq!(requests[0].remote, (CLIENT, 5000).into());
        if late {
            given.quiet();
            assert!(given.host.datagram_in(0, (CLIENT, 5000).into(), vec![4; 10]));
            given.pass(millis(1));
            given.quiet();
            assert_eq!(given.engine.counters().decisions_repeated, 1);
            assert_eq!(
                given.verdict(requests[0].token, Verdict::Allow),
                TokenState::Known
            );
        }
        let from = format!("udp from {}", SocketAddr::from((CLIENT, 5000)));
        // The host has received the two datagrams together.
        assert_eq!(outcome(&mut given), vec![from; 2]);
        // The guest's reply and the client's next datagram are not asked about.
        given.packet_up(&Packet::Udp(Datagram {
            from: (GUEST_V4, 53).into(),
            to: (CLIENT, 5000).into(),
            payload: vec![5],
        }));
        given.pass(millis(1));
        assert_eq!((outcome(&mut given).len(), decider.take()), (1, vec![]));
    }
}

#[test]
fn other_udp_clients_reach_nothing() {
    for verdict in [
        Verdict::Deny(Denial::Reset),
        Verdict::Deny(Denial::Drop),
        Verdict::Redirect((SERVER_V4, 7).into()),
    ] {
        let (mut given, decider) = asked(Answer::Later);
        assert_eq!(given.verdict(token(&decider), verdict), TokenState::Known);
        given.pass(millis(1));
        given.quiet();
        // The next datagram is asked about again.
        assert!(given.host.datagram_in(0, (CLIENT, 5000).into(), vec![4; 10]));
        given.pass(DEADLINE + millis(1));
        given.quiet();
        assert_eq!(decider.take().len(), 1);
        assert_eq!(given.engine.counters().udp_down, 0);
        assert_eq!(given.engine.counters().decisions_expired, 1);
    }
}

#[test]
fn udp_client_of_a_port_that_is_unpublished_meanwhile_is_forgotten() {
    let (mut given, decider) = asked(Answer::Later);
    given.engine.unpublish(0, &mut given.link, &mut given.host, START);
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    given.quiet();
    assert_eq!(given.engine.counters().udp_down, 0);
}

/// Sends a datagram of a client of the published port, and returns the number of requests and of packets to the guest.
fn client_sends(given: &mut Given, decider: &ScriptedDecider, client: SocketAddr) -> (usize, usize) {
    assert!(given.host.datagram_in(0, client, vec![4; 10]));
    given.pass(millis(5));
    (decider.take().len(), given.take().len())
}

/// Sends a datagram of the guest from the published port, and returns the number of requests.
fn guest_sends(given: &mut Given, decider: &ScriptedDecider, to: SocketAddr) -> usize {
    given.packet_up(&Packet::Udp(Datagram {
        from: (GUEST_V4, 53).into(),
        to,
        payload: vec![5],
    }));
    given.pass(millis(5));
    given.take();
    decider.take().len()
}

/// Another guest may connect, to which neither the clients nor the destinations of the former one were allowed.
#[test]
fn peers_of_a_published_udp_port_end_with_the_guest() {
    let (mut given, decider) = asked(Answer::Now(Verdict::Allow));
    let (clients, servers) = ([5000, 5001], [7, 8]);
    let (client, server) = (|port| (CLIENT, port).into(), |port| (SERVER_V4, port).into());
    client_sends(&mut given, &decider, client(5001));
    for port in servers {
        assert_eq!(guest_sends(&mut given, &decider, server(port)), 1);
        assert_eq!(guest_sends(&mut given, &decider, server(port)), 0);
    }
    for port in clients {
        assert_eq!(client_sends(&mut given, &decider, client(port)), (0, 1));
    }
    given.forget_guest();
    decider.set(Answer::Now(Verdict::Deny(Denial::Drop)));
    for port in servers {
        assert_eq!(client_sends(&mut given, &decider, server(port)), (1, 0));
        assert_eq!(guest_sends(&mut given, &decider, server(port)), 1);
    }
    for port in clients {
        assert_eq!(guest_sends(&mut given, &decider, client(port)), 1);
        assert_eq!(client_sends(&mut given, &decider, client(port)), (1, 0));
    }
}

/// A datagram from a destination to which the guest has not sent for two minutes does not renew its permission.
#[test]
fn destination_of_a_published_udp_port_is_asked_about_again_after_silence() {
    let (mut given, decider) = asked(Answer::Now(Verdict::Allow));
    let server = (SERVER_V4, 7).into();
    assert_eq!(decider.take().len(), 1);
    assert_eq!(guest_sends(&mut given, &decider, server), 1);
    given.pass(seconds(100));
    assert_eq!(client_sends(&mut given, &decider, server), (0, 1));
    assert_eq!(guest_sends(&mut given, &decider, server), 0);
    given.pass(seconds(125));
    decider.set(Answer::Now(Verdict::Deny(Denial::Drop)));
    assert_eq!(client_sends(&mut given, &decider, server), (1, 0));
    assert_eq!(guest_sends(&mut given, &decider, server), 1);
    // A client is asked about once.
    decider.set(Answer::Now(Verdict::Allow));
    assert_eq!(client_sends(&mut given, &decider, (CLIENT, 6000).into()), (1, 1));
    given.pass(seconds(125));
    assert_eq!(client_sends(&mut given, &decider, (CLIENT, 6000).into()), (0, 1));
}
