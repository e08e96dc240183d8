//! Tests of the decider: UDP endpoints and echo ids of the guest.

use pontoon_engine::decider::{Answer, DEADLINE, Denial, TokenState, Verdict};
use pontoon_simnet::settings::addressing;

use super::decider::{deciding, ends, outcome, token};
use super::*;

fn datagram(v6: bool, from: u16, to: u16, len: usize) -> Packet {
    let (guest, server) = ends(v6);
    Packet::Udp(Datagram {
        from: (guest, from).into(),
        to: (server, to).into(),
        payload: vec![7; len],
    })
}

fn echo(v6: bool, ident: u8, seq: u8) -> Packet {
    let (from, to) = ends(v6);
    Packet::Icmp(IcmpMessage {
        from,
        to,
        kind: if v6 { 128 } else { 8 },
        code: 0,
        rest: vec![0, ident, 0, seq, 1, 2, 3],
    })
}

fn reply(v6: bool) -> String {
    format!("icmp {}/0", if v6 { 129 } else { 0 })
}

#[test]
fn allowed_destination_gets_the_kept_datagram() {
    for v6 in [false, true] {
        for late in [false, true] {
            let (mut given, decider) = deciding(config(1500), Answer::Now(Verdict::Allow));
            if late {
                decider.set(Answer::Later);
            }
            given.packet_up(&datagram(v6, 1, 7, 1400));
            given.packet_up(&datagram(v6, 1, 7, 1400));
            if late {
                given.pass(millis(5));
                given.quiet();
                assert_eq!(given.host.calls(), 0);
                assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
            } else {
                token(&decider);
            }
            given.pass(millis(5));
            let from = format!("udp from {}", SocketAddr::new(ends(v6).1, 7));
            // The second datagram was dropped while the decision was pending.
            assert_eq!(outcome(&mut given), vec![from; if late { 1 } else { 2 }]);
            assert_eq!(given.engine.counters().decisions_repeated, u64::from(late));
            // The decided destination is not asked about again, but another port is.
            given.packet_up(&datagram(v6, 1, 7, 9));
            assert_eq!(decider.take(), []);
            decider.set(Answer::Later);
            given.packet_up(&datagram(v6, 1, 8, 9));
            assert_eq!(decider.take().len(), 1);
        }
    }
}

#[test]
fn kept_datagrams_of_a_superframe_are_all_sent() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    let segmentation = pontoon_wire::vnet::Segmentation::Udp { len: 100 };
    let packet = datagram(false, 1, 7, 950);
    let (offload, frame) = packet.emit_partial(addressing().ether(), segmentation);
    given.frame_up(offload, frame);
    assert_eq!(given.verdict(token(&decider), Verdict::Allow), TokenState::Known);
    given.pass(millis(5));
    assert_eq!(outcome(&mut given).len(), 10);
    assert_eq!(given.engine.counters().udp_up, 10);
}

#[test]
fn destination_is_asked_about_again_after_silence() {
    let (mut given, decider) = deciding(config(1500), Answer::Now(Verdict::Allow));
    let ask = |given: &mut Given| {
        given.packet_up(&datagram(false, 1, 7, 9));
        decider.take().len()
    };
    assert_eq!((ask(&mut given), ask(&mut given)), (1, 0));
    given.pass(seconds(100));
    assert_eq!(ask(&mut given), 0);
    given.pass(seconds(121));
    assert_eq!(ask(&mut given), 1);
}

#[test]
fn denied_datagram_is_reported_as_the_decider_demands() {
    let cases = [
        (Denial::Reset, Some([(3, 3), (1, 4)])),
        (Denial::Unreachable, Some([(3, 13), (1, 1)])),
        (Denial::Drop, None),
    ];
    for (denial, codes) in cases {
        for v6 in [false, true] {
            let (mut given, decider) = deciding(config(1500), Answer::Later);
            given.packet_up(&datagram(v6, 1, 7, 9));
            let state = given.verdict(token(&decider), Verdict::Deny(denial));
            assert_eq!(state, TokenState::Known);
            let expected = codes.map(|codes| codes[usize::from(v6)]);
            let expected = expected.map(|(kind, code)| format!("icmp {kind}/{code}"));
            assert_eq!(outcome(&mut given), Vec::from_iter(expected));
            assert_eq!((given.host.calls(), given.engine.flows()), (0, 0));
            assert_eq!(given.engine.counters().decisions_denied, 1);
        }
    }
}

#[test]
fn redirected_datagrams_come_back_from_the_written_address() {
    for v6 in [false, true] {
        let (mut given, decider) = deciding(config(1500), Answer::Later);
        let own: IpAddr = match v6 {
            false => Ipv4Addr::LOCALHOST.into(),
            true => core::net::Ipv6Addr::LOCALHOST.into(),
        };
        given.packet_up(&datagram(v6, 1, 7, 9));
        let redirect = Verdict::Redirect((own, 4444).into());
        assert_eq!(given.verdict(token(&decider), redirect), TokenState::Known);
        given.packet_up(&datagram(v6, 1, 7, 9));
        given.pass(millis(5));
        let from = format!("udp from {}", SocketAddr::new(ends(v6).1, 7));
        assert_eq!(outcome(&mut given), [from.clone(), from.clone()]);
        assert_eq!(decider.take(), []);
        // Rules are applied to each datagram, and its destination stays redirected.
        given.set_rules(&["allow *".parse().unwrap()]);
        given.packet_up(&datagram(v6, 1, 7, 9));
        given.pass(millis(5));
        assert_eq!(outcome(&mut given), [from]);
        // A change of the host's addresses keeps the redirected peer, unless it concerns the written address.
        given.set_owned(&[own]);
        given.packet_up(&datagram(v6, 1, 7, 9));
        given.pass(millis(5));
        assert_eq!((outcome(&mut given).len(), decider.take()), (1, vec![]));
        given.set_owned(&[own, ends(v6).1]);
        given.packet_up(&datagram(v6, 1, 7, 9));
        given.pass(millis(5));
        assert_eq!(outcome(&mut given).len(), 1, "prohibited");
        assert_eq!(given.engine.counters().policy_refused, 1);
    }
}

#[test]
fn redirect_to_the_other_family_or_a_stream_denies_a_datagram() {
    for verdict in [
        Verdict::Redirect((SERVER_V6, 7).into()),
        Verdict::RedirectToStream,
    ] {
        for packet in [datagram(false, 1, 7, 9), echo(false, 1, 1)] {
            let (mut given, decider) = deciding(config(1500), Answer::Later);
            given.packet_up(&packet);
            assert_eq!(given.verdict(token(&decider), verdict), TokenState::Known);
            assert_eq!(outcome(&mut given), ["icmp 3/13"]);
            assert_eq!(given.host.calls(), 0);
        }
    }
}

#[test]
fn datagrams_without_a_verdict_are_refused_at_the_deadline() {
    for packet in [datagram(false, 1, 7, 9), echo(false, 1, 1)] {
        let (mut given, _decider) = deciding(config(1500), Answer::Later);
        given.packet_up(&packet);
        given.pass(DEADLINE);
        assert_eq!(outcome(&mut given), ["icmp 3/13"]);
        assert_eq!(given.engine.counters().decisions_expired, 1);
        assert_eq!((given.host.calls(), given.engine.pending_decisions()), (0, 0));
    }
}

#[test]
fn destination_may_be_redirected_to_another_port_of_an_allowed_address() {
    let (mut given, decider) = deciding(config(1500), Answer::Now(Verdict::Allow));
    given.packet_up(&datagram(false, 1, 7, 9));
    decider.set(Answer::Now(Verdict::Redirect((SERVER_V4, 8).into())));
    given.packet_up(&datagram(false, 1, 9, 9));
    given.pass(millis(5));
    let from = |port| format!("udp from {}", SocketAddr::from((SERVER_V4, port)));
    assert_eq!(outcome(&mut given), [from(7), from(9)]);
}

#[test]
fn echo_request_is_sent_after_the_verdict() {
    for v6 in [false, true] {
        let (mut given, decider) = deciding(config(1500), Answer::Later);
        given.packet_up(&echo(v6, 1, 1));
        given.packet_up(&echo(v6, 1, 2));
        given.quiet();
        assert_eq!(given.host.calls(), 0);
        let requests = decider.take();
        let [request] = &requests[..] else {
            panic!("{requests:?}");
        };
        assert_eq!(request.guest, SocketAddr::new(ends(v6).0, 1));
        assert_eq!(given.verdict(request.token, Verdict::Allow), TokenState::Known);
        given.packet_up(&echo(v6, 1, 3));
        given.pass(millis(5));
        assert_eq!(outcome(&mut given), [reply(v6), reply(v6)]);
        // Another id is asked about, and this one again after a minute.
        given.packet_up(&echo(v6, 2, 1));
        assert_eq!(decider.take().len(), 1);
        given.pass(seconds(61));
        given.packet_up(&echo(v6, 1, 4));
        assert_eq!(decider.take().len(), 1);
    }
}

#[test]
fn denied_echo_request_is_prohibited_or_dropped() {
    for (denial, codes) in [
        (Denial::Reset, ["icmp 3/13", "icmp 1/1"]),
        (Denial::Unreachable, ["icmp 3/13", "icmp 1/1"]),
        (Denial::Drop, ["", ""]),
    ] {
        for v6 in [false, true] {
            let (mut given, decider) = deciding(config(1500), Answer::Later);
            given.packet_up(&echo(v6, 1, 1));
            let state = given.verdict(token(&decider), Verdict::Deny(denial));
            assert_eq!(state, TokenState::Known);
            let expected = Some(codes[usize::from(v6)]).filter(|code| !code.is_empty());
            assert_eq!(outcome(&mut given), Vec::from_iter(expected));
            assert_eq!(given.host.calls(), 0);
        }
    }
}

#[test]
fn redirected_echo_is_answered_from_the_written_address() {
    let (mut given, decider) = deciding(config(1500), Answer::Later);
    given.packet_up(&echo(false, 1, 1));
    let redirect = Verdict::Redirect((Ipv4Addr::LOCALHOST, 0).into());
    assert_eq!(given.verdict(token(&decider), redirect), TokenState::Known);
    given.packet_up(&echo(false, 1, 2));
    given.pass(millis(5));
    for _ in 0..2 {
        let packet = given.take().pop();
        let Some(Packet::Icmp(icmp)) = packet else {
            panic!("{packet:?}");
        };
        assert_eq!((icmp.from, icmp.kind), (SERVER_V4.into(), 0));
        given.packet_up(&echo(false, 1, 3));
        given.pass(millis(5));
    }
    assert_eq!(decider.take(), []);
    assert_eq!(given.engine.flows(), 1);
}

#[test]
fn pending_datagrams_end_with_the_guest() {
    let (mut given, _decider) = deciding(config(1500), Answer::Later);
    given.packet_up(&datagram(false, 1, 7, 9));
    given.packet_up(&echo(false, 1, 1));
    assert_eq!(given.engine.pending_decisions(), 2);
    given.forget_guest();
    // The decider has both requests.
    assert_eq!(given.engine.pending_decisions(), 2);
    given.pass(DEADLINE);
    given.quiet();
    assert_eq!(given.engine.pending_decisions(), 0);
}
