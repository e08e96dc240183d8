//! Tests of equal queries of several clients, for which one query is sent to the resolver (RFC 5452 section 5).

use super::*;

/// Returns `message` with another id.
fn with_id(message: &[u8], id: u16) -> Vec<u8> {
    let mut message = message.to_vec();
    message[..2].copy_from_slice(&id.to_be_bytes());
    message
}

/// Returns an address of the guest with a client's port.
fn client(port: u16) -> String {
    format!("10.0.2.15:{port}")
}

#[test]
fn equal_questions_are_sent_once_and_answered_to_each_client() {
    let mut bench = Bench::new(&[A]);
    for id in 0..1_000 {
        assert_eq!(bench.ask(&query(id, "example.org")).0, [("dns_queries", 1)]);
    }
    let (socket, _, asked) = bench.asked();
    assert_eq!(bench.world.host.open_sockets(), 1);
    let (moved, sent) = bench.answer(socket, A, &[answer(&asked, 4)]);
    assert_eq!(moved, [("frames_down", 1_000), ("udp_down", 1_000)]);
    let expected: Vec<_> = (0..1_000)
        .map(|id| answer(&query(id, "example.org"), 4))
        .collect();
    assert_eq!(sent, expected);
    bench.idle();
}

#[test]
fn response_has_the_letter_case_of_each_clients_question() {
    let mut bench = Bench::new(&[A]);
    let questions = [
        query(1, "example.org"),
        query(2, "EXAMPLE.org"),
        query(3, "eXaMpLe.OrG"),
    ];
    for question in &questions {
        bench.ask(question);
    }
    let (socket, _, asked) = bench.asked();
    let (_, sent) = bench.answer(socket, A, &[answer(&asked, 4)]);
    assert_eq!(sent, questions.map(|question| answer(&question, 4)));
    bench.idle();
}

#[test]
fn only_names_are_compared_without_regard_to_case() {
    let mut bench = Bench::new(&[A]);
    let mut lower = query(1, "example.org");
    let mut upper = query(2, "example.org");
    let at = lower.len() - 3;
    lower[at] = b'a';
    upper[at] = b'A';
    bench.ask(&lower);
    bench.ask(&upper);
    assert_eq!(bench.sent().len(), 2, "types 97 and 65");
}

#[test]
fn query_in_another_form_is_sent_separately_up_to_a_limit() {
    let mut bench = Bench::new(&[A]);
    let plain = query(1, "example.org");
    // Queries with RD, AD or CD cleared or set, and with EDNS.
    let mut forms = vec![plain.clone()];
    for (at, bit) in [(2, 0x01), (3, 0x20), (3, 0x10)] {
        let mut other = plain.clone();
        other[at] ^= bit;
        forms.push(other);
    }
    let mut edns = plain.clone();
    edns[11] = 1;
    edns.extend([0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
    forms.push(edns.clone());
    for form in &forms {
        assert_eq!(bench.ask(form).0, [("dns_queries", 1)]);
    }
    assert_eq!(bench.sent().len(), forms.len());
    // With an option that resolvers ignore, each query of a flood could be made different.
    let mut dropped = 0;
    for n in 0..1_000_u16 {
        let mut padded = with_id(&edns, n);
        padded.extend(n.to_be_bytes());
        dropped += usize::from(bench.ask(&padded).0 == [("dns_dropped", 1)]);
    }
    assert_eq!(bench.sent().len(), 32 - forms.len());
    assert_eq!(dropped, 1_000 - 32 + forms.len());
    // The limit does not apply to another question.
    assert_eq!(bench.ask(&query(1, "example.net")).0, [("dns_queries", 1)]);
}

#[test]
fn retransmitted_query_is_answered_once() {
    let mut bench = Bench::new(&[A]);
    let question = query(1, "example.org");
    for port in [4_000, 4_001, 4_000, 4_001] {
        bench.ask_from(&client(port), &question, Segmentation::Whole);
    }
    let (socket, _, asked) = bench.asked();
    bench
        .world
        .host
        .queue(socket, A, None, &answer(&asked, 0), asked.len());
    let flow = bench.world.host.flow(socket);
    let before = bench.world.net.counters;
    bench
        .forwarder
        .handle_socket(flow, READABLE, &mut bench.world.ctx());
    assert_eq!(
        moved(&bench.world.net, &before),
        [("frames_down", 2), ("udp_down", 2)]
    );
    bench.world.link.take();
    bench.idle();
}

#[test]
fn clients_of_one_query_are_limited() {
    let mut bench = Bench::new(&[A]);
    for id in 0..1_024 {
        bench.ask(&query(id, "example.org"));
    }
    assert_eq!(
        bench.ask(&query(2_000, "example.org")),
        (vec![("dns_dropped", 1)], vec![])
    );
    assert_eq!(bench.ask(&query(2_000, "example.net")).0, [("dns_queries", 1)]);
}

#[test]
fn failure_of_a_shared_query_is_sent_to_all_clients() {
    let mut bench = Bench::new(&[A, B]);
    let questions = [query(1, "example.org"), query(2, "Example.org")];
    for question in &questions {
        bench.ask(question);
    }
    let (socket, ..) = bench.asked();
    bench.refuse(socket, Failure::Refused);
    let (socket, ..) = bench.asked();
    let (moved, sent) = bench.refuse(socket, Failure::Refused);
    assert_eq!(moved, [("frames_down", 2), ("udp_down", 2), ("dns_failed", 2)]);
    assert_eq!(sent, questions.map(|question| server_failure(&question)));
    bench.idle();
}

#[test]
fn error_response_to_a_shared_query_is_sent_to_all_clients() {
    let mut bench = Bench::new(&[A]);
    let questions = [query(1, "example.org"), query(2, "Example.org")];
    for question in &questions {
        bench.ask(question);
    }
    let (socket, _, asked) = bench.asked();
    let (_, sent) = bench.answer(socket, A, &[server_failure(&asked)]);
    assert_eq!(sent, questions.map(|question| server_failure(&question)));
    bench.idle();
}
