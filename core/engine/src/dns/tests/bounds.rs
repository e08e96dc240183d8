//! Tests of the forwarder's limits: too many queries, too long queries, malformed messages.

use core::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use crate::Bandwidth;
use crate::bandwidth::Throttle;

#[test]
fn query_without_a_free_descriptor_is_dropped() {
    let mut bench = Bench::new(&[A, B]);
    bench.world.host.opens.push_back(Failure::Exhausted);
    let (moved, sent) = bench.ask(&query(1, "example.org"));
    assert_eq!(moved, [("host_exhausted", 1), ("dns_queries", 1)]);
    assert!(sent.is_empty());
    bench.idle();
}

#[test]
fn queries_and_endpoints_share_the_limit_on_ports() {
    let mut bench = Bench::new(&[A]);
    bench.world.net.config.max_udp_ports = 2;
    for (id, name) in [(0, "a.example"), (1, "b.example")] {
        assert_eq!(bench.ask(&query(id, name)).0, [("dns_queries", 1)]);
    }
    assert_eq!(bench.ask(&query(2, "c.example")).0, [("dns_dropped", 1)]);
}

#[test]
fn queries_beyond_a_fourth_of_max_flows_are_dropped() {
    for (max_flows, most) in [(1, 1), (8, 2), (100, 25)] {
        let mut bench = Bench::new(&[A]);
        bench.world.net.config.max_flows = max_flows;
        for id in 0..most {
            let name = format!("n{id}.example");
            assert_eq!(bench.ask(&query(id, &name)).0, [("dns_queries", 1)]);
        }
        assert_eq!(
            bench.ask(&query(most, "example.org")).0,
            [("dns_dropped", 1)],
            "{max_flows}"
        );
    }
}

#[test]
fn query_beyond_the_limit_is_dropped() {
    let mut bench = Bench::new(&[A]);
    bench.world.net.config.max_flows = 4 * 4_096;
    for n in 0..4_096 {
        let name = format!("n{n}.example");
        assert_eq!(bench.ask(&query(n, &name)).0, [("dns_queries", 1)]);
    }
    assert_eq!(
        bench.ask(&query(5_000, "n1.example")),
        (vec![("dns_dropped", 1)], vec![]),
        "another client of a query"
    );
    assert_eq!(
        bench.ask(&query(5_000, "example.org")),
        (vec![("dns_dropped", 1)], vec![])
    );
    let (socket, _, asked) = bench.sent().remove(0);
    bench.answer(socket, A, &[answer(&asked, 0)]);
    assert_eq!(bench.ask(&query(5_000, "example.org")).0, [("dns_queries", 1)]);
    let (moved, sent) = bench.wait(SECOND * 6);
    assert_eq!(
        moved,
        [("frames_down", 4_096), ("udp_down", 4_096), ("dns_failed", 4_096)]
    );
    assert_eq!(sent.len(), 4_096);
    bench.sent();
    bench.idle();
}

#[test]
fn query_longer_than_512_bytes_is_answered_with_truncation() {
    let mut bench = Bench::new(&[A]);
    let mut question = query(1, "example.org");
    let mut truncated = question.clone();
    truncated[2..4].copy_from_slice(&[0x83, 0x80]);
    question.resize(512, 0);
    bench.ask(&question);
    assert_eq!(bench.asked().2[2..], question[2..]);
    question.resize(513, 0);
    question[1] = 2;
    truncated[1] = 2;
    let (moved, sent) = bench.ask(&question);
    assert_eq!(moved, [("frames_down", 1), ("udp_down", 1), ("dns_queries", 1)]);
    assert_eq!(sent, [truncated]);
}

#[test]
fn message_that_is_not_a_query_is_malformed() {
    let mut bench = Bench::new(&[A]);
    let whole = query(1, "example.org");
    let with = |at: usize, byte: u8| {
        let mut wrong = whole.clone();
        wrong[at] = byte;
        wrong
    };
    let mut cases: Vec<_> = (1..whole.len()).map(|len| whole[..len].to_vec()).collect();
    cases.extend([
        with(2, 0x81),
        with(4, 1),
        with(5, 2),
        with(12, 64),
        with(12, 0xc0),
    ]);
    let mut long = query(1, &["x".repeat(63).as_str(); 4].join("."));
    cases.push(long.clone());
    for wrong in cases {
        assert_eq!(bench.ask(&wrong), (vec![("malformed", 1)], vec![]), "{wrong:?}");
    }
    // A name has at most 255 bytes (RFC 1035 section 2.3.4).
    long.drain(12..14);
    long[12] = 61;
    assert_eq!(bench.ask(&long).0, [("dns_queries", 1)]);
}

#[test]
fn other_opcodes_are_answered_with_notimp() {
    let mut bench = Bench::new(&[A]);
    for opcode in (1..16_u8).map(|code| code << 3) {
        let mut update = query(0x1234, "example.org");
        // RD is copied into the response; AD and the sections are not.
        update[2] = opcode | 1;
        update[3] = 0x20;
        update.extend([7; 40]);
        let answer = [0x12, 0x34, 0x81 | opcode, 4, 0, 0, 0, 0, 0, 0, 0, 0];
        let (moved, sent) = bench.ask(&update);
        assert_eq!(
            moved,
            [("frames_down", 1), ("udp_down", 1), ("dns_unsupported", 1)]
        );
        assert_eq!(sent, [answer]);
        // The content of the sections has no effect.
        update[4..8].copy_from_slice(&[0, 3, 0xff, 0xff]);
        assert_eq!(bench.ask(&update).1, [answer]);
        assert_eq!(bench.ask(&update[..12]).1, [answer]);
    }
    assert!(bench.sent().is_empty());
    bench.idle();
    // A response is not answered, because two forwarders would answer each other for ever.
    let mut answer = query(1, "example.org");
    answer[2] = 0xa8;
    assert_eq!(bench.ask(&answer), (vec![("malformed", 1)], vec![]));
}

#[test]
fn flood_on_one_port_shares_turns_with_other_flows() {
    let mut bench = Bench::new(&[A]);
    bench.ask(&query(1, "example.org"));
    let (socket, ..) = bench.asked();
    let step = bench.answer(socket, A, &vec![vec![0; 20]; 40]);
    assert_eq!(step, (vec![("dns_mismatched", 32)], vec![]));
    let flow = bench.world.net.ready.pop_front().unwrap();
    let step = bench.step(|forwarder, ctx| forwarder.handle_ready(flow, ctx));
    assert_eq!(step, (vec![("dns_mismatched", 8)], vec![]));
    assert!(bench.world.net.ready.is_empty());
}

#[test]
fn event_of_an_earlier_generation_is_ignored() {
    let mut bench = Bench::new(&[A]);
    bench.ask(&query(1, "example.org"));
    let (socket, _, asked) = bench.asked();
    let flow = bench.world.host.flow(socket);
    bench.answer(socket, A, &[answer(&asked, 0)]);
    bench.ask(&query(2, "example.org"));
    assert_eq!(
        bench.world.host.flow(1).index,
        flow.index,
        "the new query reuses the slot"
    );
    bench.world.host.queue_failure(1, Failure::Refused);
    let step = bench.step(|forwarder, ctx| forwarder.handle_socket(flow, READABLE, ctx));
    assert_eq!(step, (vec![], vec![]));
    let step = bench.step(|forwarder, ctx| forwarder.handle_timeout(flow, ctx));
    assert_eq!(step, (vec![], vec![]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn random_messages_never_panic(
        header in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 12),
        rest in proptest::collection::vec(prop_oneof![Just(0_u8), 0..70_u8, any::<u8>()], 0..600),
        noise in proptest::collection::vec(any::<u8>(), 0..600),
        fails: bool,
    ) {
        let mut bench = Bench::new(&[A, B]);
        bench.ask(&[header, rest].concat());
        if let Some((socket, to, asked)) = bench.sent().pop() {
            let mut close = asked;
            for (byte, other) in close.iter_mut().zip(&noise).skip(2).step_by(7) {
                *byte ^= other;
            }
            bench.answer(socket, &to.to_string(), &[noise, close]);
            // The other resolver is queried if this one has responded with an error.
            let socket = bench.sent().pop().map_or(socket, |(socket, ..)| socket);
            if fails && bench.forwarder.pending() > 0 {
                bench.refuse(socket, Failure::Other(5));
            }
        }
        bench.wait(SECOND * 6);
        bench.idle();
    }
}

/// Limits the bandwidth to 64 kbit/s, at which 8 KB take a second.
fn limit_bandwidth(bench: &mut Bench) {
    let limit = NonZeroU64::new(64_000).map(Bandwidth::new);
    bench.world.net.throttle = Throttle::new(limit);
}

#[test]
fn response_waits_in_its_socket_while_the_bandwidth_is_used_up() {
    let (mut bench, _, (socket, _, asked)) = asking(&[A, B]);
    limit_bandwidth(&mut bench);
    bench.ask(&query(2, "example.com"));
    let (other, _, other_asked) = bench.asked();
    let (_, sent) = bench.answer(socket, A, &[answer(&asked, 16_000)]);
    assert!(sent.len() > 10, "fragments");

    let step = bench.answer(other, A, &[answer(&other_asked, 40)]);
    assert_eq!(step, (vec![("held_back", 1)], vec![]));
    // No other resolver is queried meanwhile.
    let step = bench.wait(SECOND * 15 / 10);
    assert_eq!((step, bench.sent()), ((vec![], vec![]), vec![]));
    bench.event(other);
    bench.wait(SECOND);
    let flow = bench.world.net.parked_first.pop().unwrap();
    assert_eq!(bench.world.net.parked_first, []);
    let step = bench.step(|forwarder, ctx| forwarder.handle_ready(flow, ctx));
    assert_eq!(
        step,
        (ANSWERED.into(), vec![answer(&query(2, "example.com"), 40)])
    );
    bench.idle();
}

#[test]
fn response_that_waits_for_bandwidth_is_sent_after_five_seconds() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A]);
    limit_bandwidth(&mut bench);
    bench.world.net.throttle.sent_down(1 << 20);
    let step = bench.answer(socket, A, &[vec![0; 20], answer(&asked, 40)]);
    assert_eq!(step, (vec![("held_back", 1)], vec![]));
    assert_eq!(bench.wait(SECOND * 4), (vec![], vec![]));
    let (moved, sent) = bench.wait(SECOND * 2);
    assert_eq!(sent, [answer(&question, 40)]);
    assert!(moved.contains(&("dns_mismatched", 1)), "{moved:?}");
    bench.idle();
}

/// Tests that an error response that was received at the timeout of the query is forwarded, and no other resolver
/// queried.
#[test]
fn error_response_that_waits_for_bandwidth_is_sent_after_five_seconds() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A, B]);
    limit_bandwidth(&mut bench);
    bench.world.net.throttle.sent_down(1 << 20);
    let mut refused = answer(&asked, 0);
    refused[3] |= 5;
    bench.answer(socket, A, &[refused]);
    let (_, sent) = bench.wait(SECOND * 6);
    let mut refused = answer(&question, 0);
    refused[3] |= 5;
    assert_eq!((sent, bench.sent()), (vec![refused], vec![]));
    bench.idle();
}

/// Tests that a datagram that is no response does not end the query before its timeout.
#[test]
fn query_whose_socket_has_no_response_fails_after_five_seconds() {
    let (mut bench, question, (socket, _, _)) = asking(&[A]);
    limit_bandwidth(&mut bench);
    bench.world.net.throttle.sent_down(10_000);
    let step = bench.answer(socket, A, &[vec![0; 20]]);
    assert_eq!(step, (vec![("held_back", 1)], vec![]));
    let (_, sent) = bench.wait(SECOND * 6);
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

#[test]
fn query_is_queued_once() {
    let mut bench = Bench::new(&[A]);
    bench.ask(&query(1, "example.org"));
    let (socket, ..) = bench.asked();
    bench.answer(socket, A, &vec![vec![0; 20]; 100]);
    assert_eq!(bench.world.net.ready.len(), 1);
    // Events of a query in the list are handled in its turn.
    assert_eq!(bench.event(socket), (vec![], vec![]));
    assert_eq!(bench.world.net.ready.len(), 1);
    limit_bandwidth(&mut bench);
    bench.world.net.throttle.sent_down(10_000);
    let flow = bench.world.net.ready.pop_front().unwrap();
    bench.step(|forwarder, ctx| forwarder.handle_ready(flow, ctx));
    bench.event(socket);
    assert_eq!(
        (bench.world.net.parked_first, bench.world.net.ready.len()),
        (vec![flow], 0)
    );
}

#[test]
fn many_clients_of_one_large_response_exceed_the_bandwidth_by_one_datagram() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A]);
    limit_bandwidth(&mut bench);
    for client in 1..32 {
        let mut other = question.clone();
        other[..2].copy_from_slice(&u16::to_be_bytes(100 + client));
        bench.ask(&other);
    }
    let (moved, sent) = bench.answer(socket, A, &[answer(&asked, 20_000)]);
    let sent: usize = sent.iter().map(Vec::len).sum();
    assert!((60_000..90_000).contains(&sent), "{sent}");
    assert!(moved.contains(&("dns_dropped", 28)), "{moved:?}");
    bench.idle();
}
