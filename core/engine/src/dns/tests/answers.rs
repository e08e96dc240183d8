//! Tests of the responses that the forwarder sends to the guest.

use super::*;

#[test]
fn response_has_the_id_of_the_guests_query() {
    let mut bench = Bench::new(&[A]);
    let question = query(0x1234, "example.org");
    assert_eq!(bench.ask(&question), (vec![("dns_queries", 1)], vec![]));
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(A));
    assert_eq!(asked[2..], question[2..]);
    assert_ne!(asked[..2], question[..2], "a fresh id");
    assert_eq!(bench.forwarder.pending(), 1);

    let step = bench.answer(socket, A, &[answer(&asked, 40)]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 40)]));
    bench.idle();
}

#[test]
fn each_query_has_a_new_id_and_socket() {
    let mut bench = Bench::new(&[A]);
    let mut ids = std::collections::BTreeSet::new();
    for n in 0..200 {
        bench.ask(&query(n, &format!("n{n}.example")));
        let (socket, _, asked) = bench.asked();
        assert_eq!(socket, usize::from(n));
        ids.insert([asked[0], asked[1]]);
    }
    assert!(ids.len() > 190, "{} different ids of 200", ids.len());
}

#[test]
fn response_to_another_question_is_ignored() {
    let (mut bench, question, (socket, _, asked)) = asking(&[A]);
    let right = answer(&asked, 4);
    let with = |at: usize, bits: u8| {
        let mut wrong = right.clone();
        wrong[at] ^= bits;
        wrong
    };
    let wrong = [
        with(0, 1),    // id
        with(1, 0x80), // another id
        with(2, 0x80), // a query instead of a response
        with(2, 0x08), // another opcode
        with(5, 1),    // no question
        with(13, 1),   // another name
        with(13, 32),  // in another case
        with(26, 1),   // another type
        right[..11].to_vec(),
        right[..20].to_vec(),
    ];
    let count = wrong.len() as u64;
    let step = bench.answer(socket, A, &wrong);
    assert_eq!(step, (vec![("dns_mismatched", count)], vec![]));
    // Another sender, whose datagrams an unconnected socket would accept.
    let step = bench.answer(socket, "192.0.2.9:53", &[&right]);
    assert_eq!(step, (vec![("dns_mismatched", 1)], vec![]));
    let step = bench.answer(socket, "192.0.2.1:54", &[&right]);
    assert_eq!(step, (vec![("dns_mismatched", 1)], vec![]));
    let step = bench.answer(socket, A, &[right]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 4)]));
    bench.idle();
}

#[test]
fn retransmitted_query_waits_for_the_first_one() {
    let mut bench = Bench::new(&[A]);
    let question = query(1, "example.org");
    bench.ask(&question);
    bench.asked();
    assert_eq!(bench.ask(&question), (vec![], vec![]));
    assert!(bench.sent().is_empty());
    // A query for another name is forwarded separately.
    bench.ask(&query(1, "example.net"));
    assert_eq!(bench.sent().len(), 1);
    assert_eq!(bench.forwarder.pending(), 2);
}

#[test]
fn super_frame_may_contain_several_queries() {
    let mut bench = Bench::new(&[A]);
    let queries = [
        query(1, "example.org"),
        query(2, "example.net"),
        query(3, "example.com"),
    ];
    let len = u16::try_from(queries[0].len()).unwrap();
    let step = bench.ask_from(GUEST, &queries.concat(), Segmentation::Udp { len });
    assert_eq!(step, (vec![("dns_queries", 3)], vec![]));
    assert_eq!(bench.sent().len(), 3);
}

#[test]
fn large_response_is_sent_in_fragments() {
    let mut bench = Bench::new(&[A]);
    for len in [4_096, 60_000] {
        let question = query(1, "example.org");
        bench.ask(&question);
        let (socket, _, asked) = bench.asked();
        let message = answer(&asked, len - asked.len());
        let (moved, sent) = bench.answer(socket, A, &[message]);
        let frames = (8 + len).div_ceil(1_480);
        assert_eq!(moved, [("frames_down", frames as u64), ("udp_down", 1)]);
        assert_eq!(sent.len(), frames);
    }
    bench.idle();
}

#[test]
fn response_to_ipv6_query_has_the_ipv6_source_address() {
    let mut bench = Bench::new(&[A]);
    let question = query(1, "example.org");
    bench.ask_from(GUEST_V6, &question, Segmentation::Whole);
    let (socket, _, asked) = bench.asked();
    let step = bench.answer(socket, A, &[answer(&asked, 0)]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));
    bench.idle();
}
