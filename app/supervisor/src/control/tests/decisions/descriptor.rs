//! Tests of a decider at a descriptor.

use super::*;

/// Returns a control socket with a decider at the other end of a descriptor, which is that end.
fn with_descriptor() -> (Fixture, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let fixture = required(Some(ours.into()));
    // The engine starts with a connected decider.
    assert_eq!(fixture.updates, []);
    (fixture, theirs)
}

#[test]
fn descriptor_carries_requests_and_verdicts_as_lines() {
    let (mut fixture, decider) = with_descriptor();
    let second = connect(&mut fixture, GET);
    assert_eq!(status(&received(&second).0), "409");
    ask(
        &mut fixture,
        vec![request(1, EgressProtocol::Tcp), request(2, EgressProtocol::Tcp)],
    );
    assert_eq!(received(&decider).0.lines().count(), 2);
    // Lines may arrive in pieces.
    for piece in [
        "{\"token\":1,\"verdict\":\"al",
        "low\"}\n{\"token\":2,",
        "\"verdict\":\"deny\"}\n",
    ] {
        send(&decider, piece);
        fixture.serve();
    }
    let expected = [(1, VerdictKind::Allow), (2, VerdictKind::Deny(Denial::Reset))];
    assert_eq!(verdicts(&mut fixture), expected);
    assert_eq!(received(&decider).0, "");
    ask(&mut fixture, vec![request(3, EgressProtocol::Tcp)]);
    assert_eq!(received(&decider).0.lines().count(), 1);
    for (wrong, token) in [
        ("garbage", "null"),
        ("{\"verdict\":\"allow\"}", "null"),
        ("{\"token\":3,\"verdict\":\"maybe\"}", "3"),
        ("[1]", "null"),
    ] {
        send(&decider, &format!("{wrong}\n"));
        fixture.serve();
        let (error, ended) = received(&decider);
        assert!(
            error.contains("\"error\":") && error.contains(&format!("\"token\":{token}")),
            "{error}"
        );
        assert!(!ended);
    }
    assert_eq!(fixture.updates, []);
}

#[test]
fn requests_of_the_guest_are_read_before_earlier_ones_of_a_published_port() {
    let (mut fixture, decider) = with_descriptor();
    let of_client = |token| DecisionRequest {
        destination: None,
        published: Some("127.0.0.1:80".parse().unwrap()),
        ..request(token, EgressProtocol::Tcp)
    };
    ask(&mut fixture, (0..700).map(of_client).collect());
    ask(&mut fixture, vec![request(10_000, EgressProtocol::Tcp)]);
    let mut text = String::new();
    while !text.contains(r#""token":10000"#) {
        let (part, _) = received(&decider);
        assert!(!part.is_empty(), "{text}");
        text += &part;
        fixture.serve();
    }
    // The others are those that were sent before the guest's request arrived.
    assert!(text.lines().count() < 500, "{} requests", text.lines().count());
}

#[test]
fn end_of_the_descriptor_disconnects_the_decider() {
    for long in [false, true] {
        let (mut fixture, mut decider) = with_descriptor();
        if long {
            // A line of a megabyte is not collected.
            while decider.write(&[b'a'; 4096]).is_ok() {}
        } else {
            decider.shutdown(Shutdown::Both).unwrap();
        }
        fixture.serve();
        assert_eq!(fixture.updates, [Update::DeciderConnected(false)]);
        fixture.updates.clear();
        // Then a client may connect.
        let _ = super::decider(&mut fixture);
    }
}

#[test]
fn descriptor_whose_other_end_does_not_read_is_closed() {
    let (mut fixture, _decider) = with_descriptor();
    for turn in 0..100 {
        let requests = (0..64).map(|at| request(turn * 64 + at, EgressProtocol::Tcp));
        ask(&mut fixture, requests.collect());
    }
    assert_eq!(fixture.updates, []);
    fixture.wait(REQUEST_TIMEOUT / 2);
    assert_eq!(fixture.updates, []);
    fixture.wait(REQUEST_TIMEOUT / 2);
    assert_eq!(fixture.updates, [Update::DeciderConnected(false)]);
}

/// Makes the API hold as many requests as it takes for a decider that does not read.
fn overload(fixture: &mut Fixture) {
    for turn in 0..100 {
        let requests = (0..64).map(|at| request(turn * 64 + at, EgressProtocol::Udp));
        ask(fixture, requests.collect());
    }
}

/// Returns the value of a metric without labels.
fn metric(fixture: &mut Fixture, name: &str) -> u64 {
    let client = fixture.client();
    send(&client, "GET /metrics HTTP/1.1\r\n\r\n");
    fixture.serve();
    let (text, _) = received(&client);
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().trim().parse().unwrap()
}

#[test]
fn late_verdicts_at_a_descriptor_have_no_answer_and_leave_the_decider_connected() {
    let (mut fixture, decider) = with_descriptor();
    overload(&mut fixture);
    fixture.wait(DEADLINE);
    // The decider reads each line and answers it, and is only slow.
    let mut answered = 0;
    loop {
        let (text, ended) = received(&decider);
        assert!(!ended);
        if text.is_empty() {
            break;
        }
        for line in text.lines() {
            let request: reply::Decision = serde_json::from_str(line).expect("no error");
            send(
                &decider,
                &format!("{{\"token\":{},\"verdict\":\"allow\"}}\n", request.token),
            );
            fixture.serve();
            answered += 1;
        }
    }
    assert!(answered > 100, "{answered}");
    assert_eq!(fixture.updates, []);
    assert_eq!(
        metric(&mut fixture, "pontoon_decider_late_verdicts_total"),
        answered
    );
    ask(&mut fixture, vec![request(10_000, EgressProtocol::Tcp)]);
    send(&decider, "{\"token\":10000,\"verdict\":\"allow\"}\n");
    fixture.serve();
    assert_eq!(verdicts(&mut fixture), [(10_000, VerdictKind::Allow)]);
}

#[test]
fn errors_beyond_their_limit_are_dropped_and_leave_the_decider_connected() {
    let (mut fixture, decider) = with_descriptor();
    overload(&mut fixture);
    for _ in 0..1000 {
        send(&decider, &"garbage\n".repeat(10));
        fixture.serve();
    }
    assert_eq!(fixture.updates, []);
    let mut lines = 0;
    loop {
        let (text, ended) = received(&decider);
        assert!(!ended);
        if text.is_empty() {
            break;
        }
        lines += text.lines().filter(|line| line.contains("\"error\":")).count() as u64;
        fixture.serve();
    }
    let dropped = metric(&mut fixture, "pontoon_decider_unsent_errors_total");
    assert_eq!(lines + dropped, 10_000);
    assert!(lines > 100 && dropped > 1000, "{lines}, {dropped}");
}

#[test]
fn decider_gets_no_requests_whose_deadline_has_passed() {
    let (mut fixture, decider) = with_descriptor();
    overload(&mut fixture);
    fixture.wait(DEADLINE);
    ask(&mut fixture, vec![request(10_000, EgressProtocol::Tcp)]);
    let mut tokens = Vec::new();
    loop {
        let (text, _) = received(&decider);
        if text.is_empty() {
            break;
        }
        tokens.push(text);
        fixture.serve();
    }
    let text = tokens.concat();
    let lines: Vec<reply::Decision> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.last().unwrap().token, 10_000);
    // Those that were sent before the deadline are in the socket.
    assert!(lines.len() < 2000, "{} requests", lines.len());
}

#[test]
fn descriptor_must_be_a_connected_stream_socket() {
    let others: [OwnedFd; 3] = [
        std::fs::File::open("/dev/null").unwrap().into(),
        std::os::unix::net::UnixDatagram::pair().unwrap().0.into(),
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().into(),
    ];
    for other in others {
        let mut control = Control::open(None, None, served()).unwrap();
        let error = control.require_decider(None, Some(other), DEADLINE).unwrap_err();
        assert_eq!(error.status(), 2);
        assert!(error.to_string().contains("--decider-fd"));
    }
}
