//! Tests of SOCKS 5.

use pontoon_proxy::{Credentials, Handshake, Progress, Protocol, Refusal};
use pontoon_test_support::proxy::{Course, SECRET, course, credentials, target};
use proptest::prelude::*;

fn run(to: &str, credentials: Option<&Credentials>, answers: &[u8]) -> Course {
    let handshake = || Handshake::new(Protocol::Socks5, &target(to), credentials);
    let whole = course(handshake(), answers, &[usize::MAX]);
    for length in 1..6 {
        assert_eq!(whole, course(handshake(), answers, &[length]));
    }
    whole
}

const TO: &str = "192.0.2.1:258";

/// The reply to a CONNECT request.
const CONNECTED: &[u8] = &[5, 0, 0, 1, 10, 0, 0, 1, 4, 56];

fn answers(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn request_contains_an_address_or_a_name() {
    for (to, address) in [
        (TO, vec![1, 192, 0, 2, 1]),
        (
            "[2001:db8::1]:258",
            vec![4, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ),
        ("A.example:258", [&[3, 9][..], b"a.example"].concat()),
    ] {
        let course = run(to, None, &answers(&[&[5, 0], CONNECTED]));
        let expected = [&[5, 1, 0, 5, 1, 0][..], &address, &[1, 2]].concat();
        assert_eq!(course.requests, expected, "{to}");
        assert_eq!(course.progress, Progress::Done { consumed: 12 });
    }
}

#[test]
fn requests_follow_the_answers() {
    let credentials = credentials();
    let mut handshake = Handshake::new(Protocol::Socks5, &target(TO), Some(&credentials));
    assert_eq!(handshake.take_request(), Some(vec![5, 2, 0, 2]));
    assert_eq!(handshake.take_request(), None);
    assert_eq!(handshake.read(&[5]), Progress::NeedMore);
    assert_eq!(handshake.take_request(), None);
    assert_eq!(handshake.read(&[2]), Progress::NeedMore);
    let authentication = [&[1, 4][..], b"user", &[5], SECRET.as_bytes()].concat();
    assert_eq!(handshake.take_request(), Some(authentication));
    assert_eq!(handshake.read(&[1, 0]), Progress::NeedMore);
    assert_eq!(
        handshake.take_request(),
        Some(vec![5, 1, 0, 1, 192, 0, 2, 1, 1, 2])
    );
    assert_eq!(handshake.read(CONNECTED), Progress::Done { consumed: 10 });
    assert_eq!(handshake.take_request(), None);
}

#[test]
fn credentials_are_not_sent_if_the_proxy_does_not_require_them() {
    let course = run(TO, Some(&credentials()), &answers(&[&[5, 0], CONNECTED]));
    assert_eq!(course.progress, Progress::Done { consumed: 12 });
    assert!(
        !course
            .requests
            .windows(SECRET.len())
            .any(|part| part == SECRET.as_bytes())
    );
}

#[test]
fn octets_behind_the_reply_belong_to_the_connection() {
    let name = [&[5, 0, 0, 3, 4][..], b"host", &[0, 80]].concat();
    let ipv6 = [&[5, 0, 0, 4][..], &[0; 18]].concat();
    let empty_name = [5, 0, 9, 3, 0, 0, 80];
    for reply in [CONNECTED, &name, &ipv6, &empty_name] {
        for behind in [&b""[..], &[5, 0], b"SSH-2.0-OpenSSH_9.2\r\n"] {
            let consumed = 2 + reply.len();
            let course = run(TO, None, &answers(&[&[5, 0], reply, behind]));
            assert_eq!(course.progress, Progress::Done { consumed });
        }
    }
}

#[test]
fn every_reply_code_but_zero_refuses_the_connection() {
    for code in 1..=255 {
        let course = run(TO, None, &[5, 0, 5, code]);
        assert_eq!(course.progress, Progress::Refused(Refusal::Reply(code)));
    }
    for (code, text) in [
        (
            2,
            "the proxy answered with code 2 (connection not allowed by ruleset)",
        ),
        (5, "the proxy answered with code 5 (connection refused)"),
        (9, "the proxy answered with code 9"),
    ] {
        assert_eq!(Refusal::Reply(code).to_string(), text);
    }
}

#[test]
fn refused_authentication_has_its_own_reason() {
    let credentials = credentials();
    for (with, answers, refusal) in [
        (false, &[5, 0xff][..], Refusal::Methods),
        (true, &[5, 0xff], Refusal::Methods),
        // The proxy selects a method that was not offered.
        (false, &[5, 2], Refusal::CredentialsRequired),
        (true, &[5, 1], Refusal::Malformed("an answer of SOCKS 5")),
        (true, &[5, 2, 1, 1], Refusal::CredentialsRefused),
        (true, &[5, 2, 5, 0xff], Refusal::CredentialsRefused),
    ] {
        let course = run(TO, with.then_some(&credentials), answers);
        assert_eq!(course.progress, Progress::Refused(refusal), "{answers:?}");
    }
}

#[test]
fn malformed_answer_is_refused() {
    for answers in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        &[4, 90],
        &[0],
        &[5, 0, 4],
        &[5, 0, 5, 0, 0, 2],
        &[5, 0, 5, 0, 0, 0],
        &[5, 2, 2, 0],
    ] {
        let refusal = Refusal::Malformed("an answer of SOCKS 5");
        let course = run(TO, Some(&credentials()), answers);
        assert_eq!(course.progress, Progress::Refused(refusal), "{answers:?}");
    }
}

#[test]
fn every_prefix_of_the_answers_needs_more() {
    let answers = answers(&[&[5, 2, 1, 0], CONNECTED]);
    for end in 0..answers.len() {
        let course = run(TO, Some(&credentials()), &answers[..end]);
        assert_eq!(course.progress, Progress::NeedMore);
    }
}

#[test]
fn longest_credentials_and_names_are_sent_whole() {
    let part = "x".repeat(255);
    let credentials = Credentials::new(part.clone(), part.clone()).unwrap();
    let name = [["a"; 126].join("."), "b".to_owned()].join(".");
    assert_eq!(name.len(), 253);
    let course = run(
        &format!("{name}:1"),
        Some(&credentials),
        &answers(&[&[5, 2, 1, 0], CONNECTED]),
    );
    let expected = [
        &[5, 2, 0, 2, 1, 255][..],
        part.as_bytes(),
        &[255],
        part.as_bytes(),
        &[5, 1, 0, 3, 253],
        name.as_bytes(),
        &[0, 1],
    ];
    assert_eq!(course.requests, expected.concat());
}

proptest! {
    #[test]
    fn random_answers_never_panic_and_end_within_three_hundred_octets(
        start in proptest::sample::select(vec![&[][..], &[5, 0], &[5, 2, 1, 0], &[5, 0, 5, 0, 0, 3]]),
        rest in proptest::collection::vec(any::<u8>(), 300),
    ) {
        let course = run(TO, Some(&credentials()), &answers(&[start, &rest]));
        prop_assert_ne!(course.progress, Progress::NeedMore);
    }
}
