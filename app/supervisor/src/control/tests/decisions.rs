//! Tests of the connected decider.

mod descriptor;

use std::net::Shutdown;
use std::os::fd::OwnedFd;

use pontoon_engine::decider::Denial;
use pontoon_engine::egress::EgressProtocol;
use pontoon_test_support::openapi;
use pontoon_worker::messages::{DecisionRequest, DecisionVerdict, VerdictKind};

use super::*;

const DEADLINE: Duration = Duration::from_secs(2);

const GET: &str = "GET /v1/decisions HTTP/1.1\r\n\r\n";

/// Returns a control socket of a network that requires a decider.
fn required(descriptor: Option<OwnedFd>) -> Fixture {
    let mut fixture = Fixture::new(1);
    let path = fixture.path.with_extension("decide");
    let control = &mut fixture.control;
    control
        .require_decider(Some(&path), descriptor, DEADLINE)
        .unwrap();
    fixture.serve();
    fixture
}

/// Connects a client to the socket of the decider, which sends `text`.
fn connect(fixture: &mut Fixture, text: &str) -> UnixStream {
    let client = UnixStream::connect(fixture.path.with_extension("decide")).unwrap();
    client.set_nonblocking(true).unwrap();
    send(&client, text);
    fixture.serve();
    client
}

/// Connects a decider.
fn decider(fixture: &mut Fixture) -> UnixStream {
    let client = connect(fixture, GET);
    let (head, ended) = received(&client);
    assert!(
        status(&head) == "200" && head.ends_with("\r\n\r\n") && !ended,
        "{head}"
    );
    let [Update::DeciderConnected(true), Update::Confirm(_)] = fixture.updates[..] else {
        panic!("{:?}", fixture.updates);
    };
    fixture.confirm(1);
    fixture.updates.clear();
    assert_eq!(received(&client).0, "{\"connected\":true}\n");
    client
}

fn request(token: u64, protocol: EgressProtocol) -> DecisionRequest {
    DecisionRequest {
        token,
        protocol,
        destination: Some("192.0.2.1:80".parse().unwrap()),
        published: None,
        guest: "10.0.2.15:4000".parse().unwrap(),
        remote: "192.0.2.1:80".parse().unwrap(),
        rule: Some("allow *".to_owned()),
        deadline_ms: 2000,
    }
}

/// Reports requests of the engine.
fn ask(fixture: &mut Fixture, requests: Vec<DecisionRequest>) {
    let updates = &mut fixture.updates;
    let mut send = |update| updates.push(update);
    fixture
        .control
        .take_report(Report::Decide(requests), &mut send, fixture.now);
}

/// Sends a verdict by a client of its own, and returns the status of the response.
fn decide(fixture: &mut Fixture, token: impl std::fmt::Display, body: &str) -> String {
    let client = connect(fixture, &post(&format!("/v1/decisions/{token}"), body));
    status(&received(&client).0).to_owned()
}

/// Returns the verdicts that were sent to the engine.
fn verdicts(fixture: &mut Fixture) -> Vec<(u64, VerdictKind)> {
    let sent = std::mem::take(&mut fixture.updates);
    let list = sent.into_iter().flat_map(|update| match update {
        Update::Verdicts(verdicts) => verdicts,
        other => panic!("{other:?}"),
    });
    list.map(|DecisionVerdict { token, verdict }| (token, verdict))
        .collect()
}

#[test]
fn requests_are_lines_of_the_streamed_response() {
    let mut fixture = required(None);
    assert!(fixture.control.is_asking());
    let client = decider(&mut fixture);
    let client_in = DecisionRequest {
        destination: None,
        published: Some("0.0.0.0:8080".parse().unwrap()),
        rule: None,
        ..request(8, EgressProtocol::Tcp)
    };
    ask(&mut fixture, vec![request(7, EgressProtocol::Udp), client_in]);
    let (text, ended) = received(&client);
    let lines: Vec<reply::Decision> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!ended && lines.len() == 2);
    let document = openapi::parse(crate::control::api::DOCUMENT);
    let schema = document.pointer("/components/schemas/Decision").unwrap();
    for line in text.lines() {
        let line = serde_json::from_str(line).unwrap();
        assert_eq!(openapi::conform(&document, schema, &line), Ok(()));
    }
    assert_eq!(
        (lines[0].token, &*lines[0].protocol, &*lines[0].direction),
        (7, "udp", "out")
    );
    assert_eq!(lines[0].rule.as_deref(), Some("allow *"));
    assert_eq!((lines[1].token, &*lines[1].direction), (8, "in"));
    assert_eq!(lines[1].published, Some("0.0.0.0:8080".parse().unwrap()));
}

#[test]
fn each_verdict_reaches_the_engine_once() {
    let mut fixture = required(None);
    let _decider = decider(&mut fixture);
    let cases = [
        (r#"{"verdict":"allow"}"#, VerdictKind::Allow),
        (r#"{"verdict":"deny"}"#, VerdictKind::Deny(Denial::Reset)),
        (
            r#"{"verdict":"deny","how":"unreachable"}"#,
            VerdictKind::Deny(Denial::Unreachable),
        ),
        (
            r#"{"verdict":"deny","how":"drop"}"#,
            VerdictKind::Deny(Denial::Drop),
        ),
        (
            r#"{"verdict":"redirect","to":"[::1]:8080"}"#,
            VerdictKind::Redirect("[::1]:8080".parse().unwrap()),
        ),
    ];
    for (token, (body, kind)) in (1..).zip(cases) {
        ask(&mut fixture, vec![request(token, EgressProtocol::Tcp)]);
        assert_eq!(decide(&mut fixture, token, body), "200", "{body}");
        assert_eq!(decide(&mut fixture, token, body), "404", "a second verdict");
        assert_eq!(verdicts(&mut fixture), [(token, kind)]);
    }
}

#[test]
fn wrong_verdicts_leave_the_request_pending() {
    let mut fixture = required(None);
    let _decider = decider(&mut fixture);
    let client = DecisionRequest {
        destination: None,
        published: Some("0.0.0.0:80".parse().unwrap()),
        ..request(3, EgressProtocol::Tcp)
    };
    ask(
        &mut fixture,
        vec![
            request(1, EgressProtocol::Tcp),
            request(2, EgressProtocol::Udp),
            client,
        ],
    );
    for (token, body, expected) in [
        ("1", "", "400"),
        ("1", "garbage", "400"),
        ("1", "[]", "400"),
        ("1", "{}", "400"),
        ("1", r#"{"verdict":"maybe"}"#, "400"),
        ("1", r#"{"verdict":"allow","to":"127.0.0.1:1"}"#, "400"),
        ("1", r#"{"verdict":"allow","how":"drop"}"#, "400"),
        ("1", r#"{"verdict":"deny","how":"slowly"}"#, "400"),
        ("1", r#"{"verdict":"redirect"}"#, "400"),
        ("1", r#"{"verdict":"redirect","to":"nowhere"}"#, "400"),
        ("1", r#"{"verdict":"redirect","to":"0.0.0.0:1"}"#, "400"),
        ("1", r#"{"verdict":"redirect","to":"unix:relative"}"#, "400"),
        ("2", r#"{"verdict":"redirect","to":"unix:/run/x"}"#, "400"),
        ("2", r#"{"verdict":"redirect","to":"[::1]:5"}"#, "400"),
        ("3", r#"{"verdict":"redirect","to":"127.0.0.1:5"}"#, "400"),
        ("9", r#"{"verdict":"allow"}"#, "404"),
        ("x", r#"{"verdict":"allow"}"#, "404"),
        ("-1", r#"{"verdict":"allow"}"#, "404"),
        ("99999999999999999999", r#"{"verdict":"allow"}"#, "404"),
    ] {
        assert_eq!(decide(&mut fixture, token, body), expected, "{token}: {body}");
    }
    let long = format!(r#"{{"verdict":"deny","how":"{}"}}"#, "a".repeat(5000));
    assert_eq!(decide(&mut fixture, 1, &long), "413");
    // The server refuses a body of a megabyte before it has received it.
    let head = format!(
        "POST /v1/decisions/1 HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        1 << 20
    );
    let client = connect(&mut fixture, &head);
    assert_eq!(status(&received(&client).0), "413");
    assert_eq!(fixture.updates, []);
    for token in [1, 2, 3] {
        assert_eq!(decide(&mut fixture, token, r#"{"verdict":"allow"}"#), "200");
    }
    assert_eq!(verdicts(&mut fixture).len(), 3);
}

#[test]
fn redirect_to_a_unix_socket_passes_a_connected_descriptor() {
    let mut fixture = required(None);
    let _decider = decider(&mut fixture);
    let path = fixture.path.with_extension("proxy");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    ask(&mut fixture, vec![request(1, EgressProtocol::Tcp)]);
    let body = format!(r#"{{"verdict":"redirect","to":"unix:{}"}}"#, path.display());
    assert_eq!(decide(&mut fixture, 1, &body), "200");
    let [(1, VerdictKind::Stream(socket))] = &verdicts(&mut fixture)[..] else {
        panic!("no descriptor");
    };
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.write_all(b"hello").unwrap();
    let mut hello = [0; 5];
    assert_eq!(rustix::io::read(socket.borrow().unwrap(), &mut hello), Ok(5));
    // If no socket listens, the connection is reset and the response has the reason.
    drop(listener);
    ask(&mut fixture, vec![request(2, EgressProtocol::Tcp)]);
    assert_eq!(decide(&mut fixture, 2, &body), "409");
    assert_eq!(verdicts(&mut fixture), [(2, VerdictKind::Deny(Denial::Reset))]);
    assert_eq!(decide(&mut fixture, 2, &body), "404");
}

/// The supervisor is the client of the socket, and has more rights there than the decider and the guest.
#[test]
fn connections_that_the_engine_does_not_receive_are_limited_and_delay_no_other_verdict() {
    pontoon_process::descriptor::raise_limit();
    let mut fixture = required(None);
    let _decider = decider(&mut fixture);
    let path = fixture.path.with_extension("target");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let body = format!(r#"{{"verdict":"redirect","to":"unix:{}"}}"#, path.display());
    const MOST: u64 = 1024;
    for token in 0..=MOST {
        ask(&mut fixture, vec![request(token, EgressProtocol::Tcp)]);
        let status = decide(&mut fixture, token, &body);
        assert_eq!(status, if token < MOST { "200" } else { "409" }, "{token}");
        // The updates stay in a list, as if the engine did not read them.
        if token < MOST {
            drop(listener.accept().unwrap());
        }
    }
    let of_each = |updates: &[Update]| -> Vec<usize> {
        let len = |update: &Update| match update {
            Update::Verdicts(verdicts) => verdicts.len(),
            other => panic!("{other:?}"),
        };
        updates.iter().map(len).collect()
    };
    assert_eq!(of_each(&fixture.updates), vec![1; 1025]);
    fixture.updates.clear();
    ask(&mut fixture, vec![request(MOST + 1, EgressProtocol::Tcp)]);
    assert_eq!(decide(&mut fixture, MOST + 1, &body), "200");
}

#[test]
fn flows_are_not_redirected_to_sockets_of_the_instance() {
    let mut fixture = required(None);
    let read = fixture.path.with_extension("read");
    fixture.control.open_role(&read, Role::Read).unwrap();
    let slirp = fixture.path.with_extension("slirp");
    fixture.control.open_slirp_api(&slirp).unwrap();
    let other_name = fixture.path.with_extension("link");
    std::os::unix::fs::symlink(&fixture.path, &other_name).unwrap();
    let decide_path = fixture.path.with_extension("decide");
    let paths = [fixture.path.clone(), decide_path, read, slirp, other_name];
    let _decider = decider(&mut fixture);
    for (token, path) in (1..).zip(paths) {
        ask(&mut fixture, vec![request(token, EgressProtocol::Tcp)]);
        let body = format!(r#"{{"verdict":"redirect","to":"unix:{}"}}"#, path.display());
        assert_eq!(decide(&mut fixture, token, &body), "409", "{}", path.display());
        let denied = [(token, VerdictKind::Deny(Denial::Reset))];
        assert_eq!(verdicts(&mut fixture), denied);
    }
}

#[test]
fn second_decider_is_refused_until_the_first_disconnects() {
    let mut fixture = required(None);
    let first = decider(&mut fixture);
    ask(&mut fixture, vec![request(1, EgressProtocol::Tcp)]);
    let second = connect(&mut fixture, GET);
    assert_eq!(status(&received(&second).0), "409");
    drop(first);
    fixture.serve();
    assert_eq!(fixture.updates, [Update::DeciderConnected(false)]);
    fixture.updates.clear();
    // The engine has denied the flow of the earlier request.
    assert_eq!(decide(&mut fixture, 1, r#"{"verdict":"allow"}"#), "404");
    let third = decider(&mut fixture);
    assert_eq!(received(&third).0, "");
}

#[test]
fn flows_of_a_decider_that_disconnects_while_another_connects_are_denied() {
    let mut fixture = required(None);
    let first = decider(&mut fixture);
    ask(&mut fixture, vec![request(1, EgressProtocol::Tcp)]);
    // Both are processed in one turn.
    drop(first);
    let second = connect(&mut fixture, GET);
    assert_eq!(status(&received(&second).0), "200");
    let [
        Update::DeciderConnected(false),
        Update::DeciderConnected(true),
        Update::Confirm(_),
    ] = fixture.updates[..]
    else {
        panic!("{:?}", fixture.updates);
    };
    assert_eq!(decide(&mut fixture, 1, r#"{"verdict":"allow"}"#), "404");
}

#[test]
fn decider_that_shuts_its_side_down_is_disconnected() {
    let mut fixture = required(None);
    let client = decider(&mut fixture);
    client.shutdown(Shutdown::Write).unwrap();
    fixture.serve();
    assert_eq!(fixture.updates, [Update::DeciderConnected(false)]);
}

#[test]
fn decider_that_does_not_read_is_disconnected_and_delays_no_other_client() {
    let mut fixture = required(None);
    let _hung = decider(&mut fixture);
    for turn in 0..400 {
        let requests = (0..64).map(|at| request(turn * 64 + at, EgressProtocol::Tcp));
        ask(&mut fixture, requests.collect());
    }
    let other = fixture.client();
    send(&other, STATS);
    fixture.serve();
    assert_eq!(status(&received(&other).0), "200");
    assert_eq!(fixture.updates, []);
    let before = fixture.control.deadline().unwrap();
    assert!(before <= fixture.now + REQUEST_TIMEOUT);
    fixture.wait(REQUEST_TIMEOUT);
    assert_eq!(fixture.updates, [Update::DeciderConnected(false)]);
}

/// Tests that a decider that reads late receives few requests whose deadline has passed, and all that are pending.
#[test]
fn requests_of_the_past_are_not_sent() {
    const FLOOD: u64 = 4096;
    let mut fixture = required(None);
    let decider = decider(&mut fixture);
    for flood in 0..2 {
        fixture.wait(DEADLINE);
        for first in (0..FLOOD).step_by(64) {
            let tokens = (first..first + 64).map(|token| FLOOD * flood + token);
            let requests = tokens.map(|token| request(token, EgressProtocol::Tcp));
            ask(&mut fixture, requests.collect());
        }
    }
    let mut lines = String::new();
    loop {
        let (part, ended) = received(&decider);
        assert!(!ended);
        if part.is_empty() {
            break;
        }
        lines += &part;
        fixture.serve();
    }
    let tokens = lines.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).expect(line);
        line["token"].as_u64()
    });
    let (pending, past): (Vec<_>, Vec<_>) = tokens.partition(|token| *token >= FLOOD);
    assert!(pending.into_iter().eq(FLOOD..2 * FLOOD));
    assert!(past.len() < 1500, "{} requests of the past", past.len());
}

#[test]
fn verdict_after_the_deadline_is_refused() {
    let mut fixture = required(None);
    let _decider = decider(&mut fixture);
    ask(&mut fixture, vec![request(1, EgressProtocol::Tcp)]);
    fixture.wait(DEADLINE);
    assert_eq!(decide(&mut fixture, 1, r#"{"verdict":"allow"}"#), "404");
    assert_eq!(fixture.updates, []);
}

#[test]
fn requests_of_an_exited_engine_are_forgotten() {
    let mut fixture = required(None);
    let _decider = decider(&mut fixture);
    ask(&mut fixture, vec![request(1, EgressProtocol::Tcp)]);
    let updates = &mut fixture.updates;
    fixture
        .control
        .ask_again(&mut |update| updates.push(update), fixture.now);
    assert_eq!(decide(&mut fixture, 1, r#"{"verdict":"allow"}"#), "404");
}

#[test]
fn no_decider_is_served_unless_it_is_required() {
    let mut fixture = Fixture::new(1);
    assert!(!fixture.control.is_asking());
    let client = fixture.client();
    send(&client, GET);
    fixture.serve();
    assert_eq!(status(&received(&client).0), "409");
    ask(&mut fixture, vec![request(1, EgressProtocol::Tcp)]);
    assert_eq!(fixture.updates, []);
}

#[test]
fn socket_of_the_decider_has_no_other_resource() {
    let mut fixture = required(None);
    for text in [
        STATS,
        CHANGE,
        "GET /v1/flows HTTP/1.1\r\n\r\n",
        "GET /metrics HTTP/1.1\r\n\r\n",
    ] {
        let client = connect(&mut fixture, text);
        assert_eq!(status(&received(&client).0), "404", "{text}");
    }
    assert_eq!(fixture.updates, []);
}
