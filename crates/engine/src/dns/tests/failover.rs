//! Resolvers that are silent, refuse, or change.

use super::*;
use crate::test_world::{TROUBLE, problem};

#[test]
fn a_silent_resolver_loses_the_query_and_is_remembered() {
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

    // The dead one is not asked first, nor offered to TCP, until half a minute has passed.
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
fn a_slow_name_does_not_kill_a_resolver_that_answers_others() {
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
fn one_resolver_is_asked_again_and_given_up_after_five_seconds() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A]);
    for _ in 0..3 {
        assert_eq!(bench.wait(SECOND + SECOND / 10), (vec![], vec![]));
        assert_eq!(bench.asked(), (socket, addr(A), asked.clone()), "the same again");
    }
    bench.wait(SECOND);
    bench.sent();
    let (moved, sent) = bench.wait(SECOND);
    assert_eq!(moved, [("frames_down", 1), ("udp_down", 1), ("dns_failed", 1)]);
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

#[test]
fn a_refusal_fails_over_at_once() {
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
fn an_error_that_is_only_in_the_queue_counts_as_a_refusal() {
    let mut bench = Bench::new(&[A, B]);
    bench.ask(&query(1, "example.org"));
    let (socket, ..) = bench.asked();
    let flow = bench.world.host.flow(socket);
    // An event of a socket that is gone by now says nothing.
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
fn when_each_has_refused_the_guest_is_told_at_once() {
    let (mut bench, question, (socket, ..)) = asking(&[A, B]);
    bench.refuse(socket, Failure::Refused);
    let (socket, ..) = bench.asked();
    let (moved, sent) = bench.refuse(socket, Failure::HostUnreachable);
    assert_eq!(moved, [("frames_down", 1), ("udp_down", 1), ("dns_failed", 1)]);
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

#[test]
fn a_resolver_that_cannot_be_connected_to_is_passed_over() {
    let mut bench = Bench::new(&[B, A]);
    bench.world.host.unreachable.push(addr(B));
    assert_eq!(
        bench.ask(&query(1, "example.org")).0,
        [("dns_queries", 1), ("dns_failovers", 1)]
    );
    assert_eq!(bench.asked().1, addr(A));
    assert_eq!(bench.world.host.open_sockets(), 1);

    bench.world.host.unreachable.push(addr(A));
    let question = query(2, "example.org");
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
fn without_resolvers_the_guest_is_told_at_once() {
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

#[test]
fn new_resolvers_leave_waiting_queries_in_peace() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A]);
    bench.forwarder.set_resolvers(&[addr(B)]);
    bench.ask(&query(2, "example.org"));
    assert_eq!(bench.asked().1, addr(B));
    let step = bench.answer(socket, A, &[answer(&asked, 0)]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));

    // One that goes unanswered moves to the new list.
    let mut bench = Bench::new(&[A]);
    bench.ask(&question);
    bench.asked();
    bench.forwarder.set_resolvers(&[addr(B)]);
    assert_eq!(bench.wait(SECOND + SECOND / 10).0, [("dns_failovers", 1)]);
    assert_eq!(bench.asked().1, addr(B));
}
