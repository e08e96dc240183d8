//! Tests of resolvers that do not respond, respond with errors, or change.

use super::*;
use crate::test_world::{TROUBLE, problem};

#[test]
fn query_fails_over_from_resolver_that_times_out() {
    let (mut bench, question, (first, to, _)) = asking(&[A, B]);
    assert_eq!(to, addr(A));
    assert_eq!(bench.wait(SECOND / 2), (vec![], vec![]));
    assert_eq!(bench.wait(SECOND), (vec![("dns_failovers", 1)], vec![]));
    let (second, to, asked) = bench.asked();
    assert_eq!(to, addr(B));
    assert_ne!(first, second, "a fresh socket");
    assert_eq!(bench.world.host.open_sockets(), 1);
    let step = bench.answer(second, B, &[answer(&asked, 0)]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));
    bench.idle();

    // The failed resolver is neither queried first nor used for TCP until half a minute has passed.
    assert_eq!(bench.forwarder.current_resolver(bench.world.now), Some(addr(B)));
    bench.wait(SECOND * 29);
    bench.ask(&query(2, "example.org"));
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(B));
    bench.answer(socket, B, &[answer(&asked, 0)]);
    bench.wait(SECOND);
    assert_eq!(bench.forwarder.current_resolver(bench.world.now), Some(addr(A)));
    bench.ask(&query(3, "example.org"));
    assert_eq!(bench.asked().1, addr(A));
}

#[test]
fn slow_response_does_not_mark_an_answering_resolver_as_failed() {
    let mut bench = Bench::new(&[A, B]);
    bench.ask(&query(1, "slow.example"));
    bench.asked();
    bench.wait(SECOND / 2);
    bench.ask(&query(2, "quick.example"));
    let (socket, _, asked) = bench.asked();
    bench.answer(socket, A, &[answer(&asked, 0)]);
    assert_eq!(bench.wait(SECOND), (vec![("dns_failovers", 1)], vec![]));
    assert_eq!(bench.asked().1, addr(B));
    assert_eq!(bench.forwarder.current_resolver(bench.world.now), Some(addr(A)));
}

#[test]
fn single_resolver_is_retried_and_query_fails_after_five_seconds() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A]);
    for _ in 0..3 {
        assert_eq!(bench.wait(SECOND + SECOND / 10), (vec![], vec![]));
        assert_eq!(
            bench.asked(),
            (socket, addr(A), asked.clone()),
            "the query is retransmitted"
        );
    }
    bench.wait(SECOND);
    bench.sent();
    let (moved, sent) = bench.wait(SECOND);
    assert_eq!(moved, [("frames_down", 1), ("udp_down", 1), ("dns_failed", 1)]);
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

#[test]
fn connection_refused_fails_over_at_once() {
    let (mut bench, question, (socket, ..)) = asking(&[A, B]);
    let step = bench.refuse(socket, Failure::Refused);
    assert_eq!(step, (vec![("dns_failovers", 1)], vec![]));
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(B));
    let step = bench.answer(socket, B, &[answer(&asked, 0)]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));
    bench.idle();
}

#[test]
fn error_in_the_error_queue_fails_over_at_once() {
    let mut bench = Bench::new(&[A, B]);
    bench.ask(&query(1, "example.org"));
    let (socket, ..) = bench.asked();
    let flow = bench.world.host.flow(socket);
    // An event of a socket that was closed is ignored.
    let step = bench.step(|forwarder, ctx| forwarder.handle_socket(flow, TROUBLE, ctx));
    assert_eq!(step, (vec![], vec![]));
    bench
        .world
        .host
        .queue_problem(socket, problem(A, None, 3, 3), b"");
    let step = bench.step(|forwarder, ctx| forwarder.handle_socket(flow, TROUBLE, ctx));
    assert_eq!(step, (vec![("dns_failovers", 1)], vec![]));
    assert_eq!(bench.asked().1, addr(B));
}

#[test]
fn servfail_is_sent_at_once_if_all_resolvers_refuse() {
    let (mut bench, question, (socket, ..)) = asking(&[A, B]);
    bench.refuse(socket, Failure::Refused);
    let (socket, ..) = bench.asked();
    let (moved, sent) = bench.refuse(socket, Failure::HostUnreachable);
    assert_eq!(moved, [("frames_down", 1), ("udp_down", 1), ("dns_failed", 1)]);
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

#[test]
fn resolver_without_a_route_is_skipped() {
    let mut bench = Bench::new(&[B, A]);
    bench.world.host.unreachable.push(addr(B));
    assert_eq!(
        bench.ask(&query(1, "example.org")).0,
        [("dns_queries", 1), ("dns_failovers", 1)]
    );
    assert_eq!(bench.asked().1, addr(A));
    assert_eq!(bench.world.host.open_sockets(), 1);

    bench.world.host.unreachable.push(addr(A));
    let question = query(2, "example.net");
    let (moved, sent) = bench.ask(&question);
    assert_eq!(
        moved,
        [
            ("frames_down", 1),
            ("udp_down", 1),
            ("dns_queries", 1),
            ("dns_failed", 1),
            ("dns_failovers", 1)
        ]
    );
    assert_eq!(sent, [server_failure(&question)]);
    assert_eq!(bench.forwarder.pending(), 1, "the first");
}

#[test]
fn servfail_is_sent_at_once_without_resolvers() {
    let mut bench = Bench::new(&[]);
    assert_eq!(bench.forwarder.current_resolver(bench.world.now), None);
    let question = query(1, "example.org");
    let (moved, sent) = bench.ask(&question);
    assert_eq!(
        moved,
        [
            ("frames_down", 1),
            ("udp_down", 1),
            ("dns_queries", 1),
            ("dns_failed", 1)
        ]
    );
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

/// Returns an error response to `query`, with `extra` bytes behind the question.
fn decline(query: &[u8], rcode: u8, extra: usize) -> Vec<u8> {
    let mut message = answer(query, extra);
    message[3] |= rcode;
    message
}

const SERVFAIL: u8 = 2;
const NOTIMP: u8 = 4;
const REFUSED: u8 = 5;

#[test]
fn resolver_that_answers_refused_stays_first_for_other_queries() {
    for rcode in [SERVFAIL, NOTIMP, REFUSED] {
        let (mut bench, question, (first, _, asked)) = asking(&[A, B]);
        let step = bench.answer(first, A, &[decline(&asked, rcode, 0)]);
        assert_eq!(step, (vec![("dns_failovers", 1)], vec![]));
        let (second, to, asked) = bench.asked();
        assert_eq!(to, addr(B));
        assert_ne!(first, second, "a fresh socket");
        let step = bench.answer(second, B, &[answer(&asked, 9)]);
        assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 9)]));
        bench.idle();
        // A resolver that responds with an error is not skipped.
        assert_eq!(bench.forwarder.current_resolver(bench.world.now), Some(addr(A)));
    }
}

#[test]
fn response_without_records_is_passed_on() {
    for rcode in [0, 1, 3] {
        let (mut bench, question, (socket, _, asked)) = asking(&[A, B]);
        let step = bench.answer(socket, A, &[decline(&asked, rcode, 0)]);
        assert_eq!(step, (ANSWERED.into(), vec![decline(&question, rcode, 0)]));
        bench.idle();
    }
}

#[test]
fn first_error_response_is_sent_if_all_resolvers_decline() {
    let resolvers = [A, B, C];
    let (mut bench, question, (socket, _, asked)) = asking(&resolvers);
    bench.answer(socket, A, &[decline(&asked, REFUSED, 5)]);
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(B));
    bench.answer(socket, B, &[decline(&asked, SERVFAIL, 6)]);
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(C));
    let step = bench.answer(socket, C, &[decline(&asked, NOTIMP, 7)]);
    assert_eq!(step, (ANSWERED.into(), vec![decline(&question, REFUSED, 5)]));
    bench.idle();
}

#[test]
fn error_response_of_the_only_resolver_is_passed_on() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A]);
    let step = bench.answer(socket, A, &[decline(&asked, REFUSED, 5)]);
    assert_eq!(step, (ANSWERED.into(), vec![decline(&question, REFUSED, 5)]));
    bench.idle();
}

#[test]
fn error_response_is_passed_on_after_others_time_out() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A, B, C]);
    bench.answer(socket, A, &[decline(&asked, REFUSED, 5)]);
    assert_eq!(bench.asked().1, addr(B));
    assert_eq!(
        bench.wait(SECOND + SECOND / 10),
        (vec![("dns_failovers", 1)], vec![])
    );
    assert_eq!(bench.asked().1, addr(C));
    let step = bench.wait(SECOND + SECOND / 10);
    assert_eq!(step, (ANSWERED.into(), vec![decline(&question, REFUSED, 5)]));
    bench.idle();
    // The silent resolvers are skipped, but are queried after an error response of another resolver.
    bench.ask(&query(2, "example.org"));
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(A));
    bench.answer(socket, A, &[decline(&asked, REFUSED, 5)]);
    assert_eq!(bench.asked().1, addr(B));
}

#[test]
fn error_response_is_passed_on_if_the_first_resolver_timed_out() {
    let (mut bench, question, _) = asking(&[A, B]);
    bench.wait(SECOND + SECOND / 10);
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(B));
    let step = bench.answer(socket, B, &[decline(&asked, SERVFAIL, 5)]);
    assert_eq!(step, (ANSWERED.into(), vec![decline(&question, SERVFAIL, 5)]));
    bench.idle();
}

#[test]
fn error_response_is_passed_on_if_others_are_unreachable() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A, B, C]);
    bench.world.host.unreachable.push(addr(B));
    let step = bench.answer(socket, A, &[decline(&asked, REFUSED, 5)]);
    assert_eq!(step, (vec![("dns_failovers", 2)], vec![]));
    let (socket, to, _) = bench.asked();
    assert_eq!(to, addr(C));
    let step = bench.refuse(socket, Failure::Refused);
    assert_eq!(step, (ANSWERED.into(), vec![decline(&question, REFUSED, 5)]));
    bench.idle();
}

#[test]
fn error_response_is_passed_on_without_a_descriptor_for_the_next_resolver() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A, B]);
    bench.world.host.opens.push_back(Failure::Exhausted);
    let (moved, sent) = bench.answer(socket, A, &[decline(&asked, REFUSED, 5)]);
    let counted = [
        ANSWERED[0],
        ("host_exhausted", 1),
        ANSWERED[1],
        ("dns_failovers", 1),
    ];
    assert_eq!(moved, counted);
    assert_eq!(sent, [decline(&question, REFUSED, 5)]);
    bench.idle();
}

#[test]
fn query_ends_after_five_seconds_in_spite_of_an_error_response() {
    let resolvers: Vec<_> = (1..=8).map(|n| format!("192.0.2.{n}:53")).collect();
    let resolvers: Vec<_> = resolvers.iter().map(String::as_str).collect();
    let (mut bench, question, (socket, _, asked)) = asking(&resolvers);
    bench.answer(socket, A, &[decline(&asked, REFUSED, 5)]);
    let (_, sent) = bench.wait(5 * SECOND + SECOND / 10);
    assert_eq!(sent, [decline(&question, REFUSED, 5)]);
    assert_eq!(bench.sent().len(), 5);
    bench.idle();
}

#[test]
fn error_response_too_long_to_store_is_passed_on() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A, B]);
    let step = bench.answer(socket, A, &[decline(&asked, REFUSED, 1_300)]);
    assert_eq!(step, (ANSWERED.into(), vec![decline(&question, REFUSED, 1_300)]));
    bench.idle();
}

#[test]
fn change_of_resolvers_keeps_pending_queries() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A]);
    bench.forwarder.set_resolvers(&[addr(B)]);
    bench.ask(&query(2, "example.net"));
    assert_eq!(bench.asked().1, addr(B));
    let step = bench.answer(socket, A, &[answer(&asked, 0)]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));

    // A query without a response is sent to a resolver of the new list.
    let mut bench = Bench::new(&[A]);
    bench.ask(&question);
    bench.asked();
    bench.forwarder.set_resolvers(&[addr(B)]);
    assert_eq!(bench.wait(SECOND + SECOND / 10).0, [("dns_failovers", 1)]);
    assert_eq!(bench.asked().1, addr(B));
}
