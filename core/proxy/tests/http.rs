//! Tests of HTTP CONNECT.

use pontoon_proxy::{AuthenticationScheme, Credentials, Handshake, LIMIT, Progress, Protocol, Refusal};
use pontoon_test_support::proxy::{Course, SECRET, course, credentials, run, target};
use proptest::prelude::*;

fn handshake(credentials: Option<&Credentials>) -> Handshake {
    Handshake::new(Protocol::Http, &target("www.example.org:443"), credentials)
}

/// Returns the result of `answer`, which does not depend on segments.
fn answered(answer: &[u8], credentials: Option<&Credentials>) -> Progress {
    let whole = course(handshake(credentials), answer, &[usize::MAX]);
    assert_eq!(whole, course(handshake(credentials), answer, &[1]));
    whole.progress
}

#[test]
fn request_contains_the_target_as_authority() {
    for (to, authority) in [
        ("www.Example.org:443", "www.example.org:443"),
        ("192.0.2.1:22", "192.0.2.1:22"),
        ("[2001:db8::1]:80", "[2001:db8::1]:80"),
    ] {
        let mut handshake = Handshake::new(Protocol::Http, &target(to), None);
        let request = handshake.take_request().unwrap();
        let expected = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        assert_eq!(request, expected.as_bytes());
        assert_eq!(handshake.take_request(), None);
    }
}

#[test]
fn request_contains_basic_credentials() {
    // The example of RFC 7617 section 2.
    let aladdin = Credentials::parse(b"Aladdin:open sesame").unwrap();
    let request = handshake(Some(&aladdin)).take_request().unwrap();
    let field = "\r\nProxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n";
    assert!(request.ends_with(field.as_bytes()));
    // The example of RFC 7617 section 2.1.
    let test = Credentials::parse("test:123£\n".as_bytes()).unwrap();
    let request = handshake(Some(&test)).take_request().unwrap();
    assert!(request.ends_with(b" dGVzdDoxMjPCow==\r\n\r\n"));
}

#[test]
fn every_2xx_status_establishes_the_connection() {
    for code in 200..300 {
        let head = format!("HTTP/1.1 {code} OK\r\n\r\n");
        let consumed = head.len();
        assert_eq!(answered(head.as_bytes(), None), Progress::Done { consumed });
    }
}

#[test]
fn octets_behind_the_head_belong_to_the_connection() {
    for head in [
        "HTTP/1.1 200 Connection established\r\n\r\n",
        "HTTP/1.0 200 OK\r\nVia: 1.1 squid\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\nA: b\n\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ] {
        for behind in [
            "",
            "\n",
            "\r\n\r\n",
            "SSH-2.0-OpenSSH_9.2\r\n",
            "HTTP/1.1 403 x\r\n\r\n",
        ] {
            let answer = format!("{head}{behind}");
            let consumed = head.len();
            assert_eq!(
                answered(answer.as_bytes(), None),
                Progress::Done { consumed },
                "{answer}"
            );
        }
    }
}

#[test]
fn other_statuses_refuse_the_connection() {
    for code in (300..600).filter(|code| *code != 407).chain([101]) {
        let answer = format!("HTTP/1.1 {code} reason\r\nLocation: http://a.example/\r\n\r\n<html>");
        let refusal = Progress::Refused(Refusal::Status(code));
        assert_eq!(answered(answer.as_bytes(), None), refusal);
    }
    assert_eq!(
        Refusal::Status(403).to_string(),
        "the proxy answered with status 403 (Forbidden)"
    );
    assert_eq!(
        Refusal::Status(418).to_string(),
        "the proxy answered with status 418"
    );
}

#[test]
fn status_407_states_which_authentication_the_proxy_requires() {
    let unsupported = Refusal::Authentication;
    let credentials = credentials();
    for (fields, with, refusal) in [
        ("", false, Refusal::CredentialsRequired),
        (
            "Proxy-Authenticate: Basic realm=\"a\"\r\n",
            false,
            Refusal::CredentialsRequired,
        ),
        (
            "Proxy-Authenticate: basic realm=\"a\"\r\n",
            true,
            Refusal::CredentialsRefused,
        ),
        (
            "Proxy-Authenticate: Digest realm=\"a\", nonce=\"b\", Basic realm=\"c\"\r\n",
            true,
            Refusal::CredentialsRefused,
        ),
        (
            "Proxy-Authenticate: Negotiate\r\nproxy-authenticate: NTLM\r\n",
            true,
            unsupported(AuthenticationScheme::Ntlm),
        ),
        (
            "Proxy-Authenticate: Negotiate\r\n",
            false,
            unsupported(AuthenticationScheme::Negotiate),
        ),
        (
            "Proxy-Authenticate: Digest realm=\"Basic\"\r\n",
            false,
            unsupported(AuthenticationScheme::Digest),
        ),
        (
            "Proxy-Authenticate: Bearer\r\n",
            true,
            unsupported(AuthenticationScheme::Unknown),
        ),
    ] {
        let answer = format!("HTTP/1.1 407 {SECRET}\r\n{fields}\r\n");
        let credentials = with.then_some(&credentials);
        assert_eq!(
            answered(answer.as_bytes(), credentials),
            Progress::Refused(refusal),
            "{answer}"
        );
    }
    let text = unsupported(AuthenticationScheme::Ntlm).to_string();
    assert_eq!(
        text,
        "the proxy requires NTLM authentication, which is not supported"
    );
}

#[test]
fn answer_that_is_not_http_is_refused_at_its_first_wrong_octet() {
    for (answer, wrong) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", 0),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n", 0),
        ("http/1.1 200 OK\r\n\r\n", 0),
        ("HTTP/2 200\r\n\r\n", 5),
        ("HTTP/1,", 6),
    ] {
        let refusal = Refusal::Malformed("a response of HTTP/1.1");
        let answer = answer.as_bytes();
        assert_eq!(answered(answer, None), Progress::Refused(refusal));
        assert_eq!(answered(&answer[..=wrong], None), Progress::Refused(refusal));
        assert_eq!(answered(&answer[..wrong], None), Progress::NeedMore);
    }
}

#[test]
fn malformed_head_is_refused() {
    for answer in [
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.3 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: value\r\n\r\n",
        "HTTP/1.1 200 O\0K\r\n\r\n",
        "HTTP/1.1 200 OK\r\r\n\r\n",
    ] {
        let refusal = Refusal::Malformed("a response of HTTP/1.1");
        assert_eq!(
            answered(answer.as_bytes(), None),
            Progress::Refused(refusal),
            "{answer:?}"
        );
    }
    let fields = "A: b\r\n".repeat(200);
    let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    assert!(matches!(answered(answer.as_bytes(), None), Progress::Refused(_)));
}

#[test]
fn head_has_at_most_sixteen_kibibytes() {
    let frame = "HTTP/1.1 200 OK\r\nA: \r\n\r\n".len();
    for (excess, expected) in [
        (0, Progress::Done { consumed: LIMIT }),
        (1, Progress::Refused(Refusal::TooLong)),
    ] {
        let value = "x".repeat(LIMIT - frame + excess);
        let answer = format!("HTTP/1.1 200 OK\r\nA: {value}\r\n\r\n");
        assert_eq!(answered(answer.as_bytes(), None), expected);
    }
    // Interim answers count, too.
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(LIMIT);
    let refusal = Progress::Refused(Refusal::TooLong);
    assert_eq!(answered(endless.as_bytes(), None), refusal);
}

#[test]
fn every_prefix_of_an_answer_needs_more() {
    let head = b"HTTP/1.1 200 Connection established\r\nVia: a\r\n\r\n";
    for end in 0..head.len() {
        assert_eq!(answered(&head[..end], None), Progress::NeedMore);
    }
}

#[test]
fn committed_fuzz_inputs_are_read() {
    pontoon_test_support::corpus::replay("proxy", 20, run);
}

proptest! {
    #[test]
    fn mutated_answer_never_panics_and_does_not_depend_on_segments(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        segments in proptest::collection::vec(1..20_usize, 1..9),
        behind in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nProxy-Authenticate: Basic\r\n\r\n".to_vec();
        for (place, value) in flips {
            *place.get_mut::<u8>(&mut answer) = value;
        }
        answer.extend(behind);
        let credentials = credentials();
        let Course { progress, .. } = course(handshake(Some(&credentials)), &answer, &segments);
        prop_assert_eq!(progress, answered(&answer, Some(&credentials)));
    }
}
