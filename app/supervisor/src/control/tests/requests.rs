//! Tests of valid and invalid HTTP requests.

use pontoon_control::http::{BODY, CONTINUE};
use pontoon_control::server::Route;

use super::*;
use crate::control::api::DOCUMENT;

#[test]
fn split_and_pipelined_requests_are_parsed() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    let text = "GET /v1/openapi.json HTTP/1.1\r\n\r\nGET /no?x=1 HTTP/1.1\r\nconnection: CLOSE\r\n\r\n";
    for letter in text.chars() {
        send(&client, letter.encode_utf8(&mut [0; 4]));
        fixture.serve();
    }
    let mut all = String::new();
    // The document may be longer than the socket's buffer.
    loop {
        let (part, ended) = received(&client);
        all.push_str(&part);
        fixture.serve();
        if ended {
            break;
        }
    }
    assert!(all.contains(DOCUMENT));
    let (_, second) = all.split_once(DOCUMENT).unwrap();
    assert!(second.starts_with("HTTP/1.1 404 "), "{second}");
    assert!(
        second.contains("\r\nConnection: close\r\n")
            && second.ends_with(r#"{"error":"no such resource: /no"}"#)
    );
}

#[test]
fn invalid_request_gets_an_error_and_closes_the_connection() {
    for (text, wanted) in [
        ("SSH-2.0-x\r\n\r\n".to_owned(), "400"),
        (
            "GET /v1/stats HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "501",
        ),
        (
            "PUT /v1/policy HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "PUT /v1/policy HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
            "400",
        ),
        (
            format!("PUT /v1/policy HTTP/1.1\r\nContent-Length: {}\r\n\r\n", BODY + 1),
            "413",
        ),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(9_000)), "431"),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65)), "431"),
    ] {
        let mut fixture = Fixture::new(1);
        let client = fixture.client();
        send(&client, &text);
        fixture.serve();
        let (answer, ended) = received(&client);
        assert_eq!((status(&answer), ended), (wanted, true), "{text:?}: {answer}");
    }
}

#[test]
fn unsupported_method_gets_status_405_with_allow() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    send(&client, "DELETE /v1/policy HTTP/1.1\r\n\r\n");
    fixture.serve();
    let (answer, _) = received(&client);
    assert!(
        answer.starts_with("HTTP/1.1 405 ") && answer.contains("\r\nAllow: GET, PUT\r\n"),
        "{answer}"
    );
    send(&client, "HEAD /v1/policy HTTP/1.1\r\n\r\n");
    fixture.serve();
    let (answer, _) = received(&client);
    assert!(
        answer.starts_with("HTTP/1.1 405 ") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}

#[test]
fn expect_continue_gets_100_continue() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    send(
        &client,
        "PUT /v1/policy HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    fixture.serve();
    fixture.serve();
    assert_eq!(received(&client).0.as_bytes(), CONTINUE);
    send(&client, "{}");
    fixture.serve();
    fixture.confirm(1);
    assert_eq!(status(&received(&client).0), "200");
}

#[test]
fn target_in_absolute_form_is_accepted() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    for (target, wanted) in [
        ("http://pontoon/v1/publish", "200"),
        ("HTTP://pontoon/v1/publish?x=/v1/stats", "200"),
        ("http://pontoon", "404"),
        ("http://pontoon?/v1/publish", "404"),
        ("https://pontoon/v1/publish", "404"),
        ("/http://pontoon/v1/publish", "404"),
    ] {
        send(&client, &format!("GET {target} HTTP/1.1\r\n\r\n"));
        fixture.serve();
        assert_eq!(status(&received(&client).0), wanted, "{target}");
    }
}

#[test]
fn oversized_body_gets_status_413_and_is_discarded_up_to_a_limit() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    let body = "x".repeat(2 * BODY);
    let head = format!(
        "PUT /v1/policy HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    send(&client, &head);
    let mut rest = body.as_bytes();
    while !rest.is_empty() {
        fixture.serve();
        let len = (&client).write(rest).unwrap();
        rest = &rest[len..];
    }
    let (answer, ended) = received(&client);
    assert_eq!((status(&answer), ended), ("413", true));
    client.shutdown(std::net::Shutdown::Both).unwrap();
    fixture.serve();
    assert_eq!(fixture.control.servers[0].clients(), 0);

    // A body without end is read up to the limit only.
    let client = fixture.client();
    send(&client, &head);
    let talk = vec![b'x'; 64 << 10];
    let mut sent = 0;
    while let Ok(len) = (&client).write(&talk) {
        sent += len;
        fixture.serve();
    }
    assert!((16 << 20..17 << 20).contains(&sent), "{sent}");
}

/// Tests each route, so that a role permits no request by mistake that is added later.
#[test]
fn clients_of_the_socket_for_reading_change_nothing() {
    let mut fixture = Fixture::new(1);
    let path = fixture.path.with_file_name("read");
    fixture.control.open_role(&path, Role::Read).unwrap();
    for route in crate::control::api::ROUTES {
        let client = UnixStream::connect(&path).unwrap();
        client.set_nonblocking(true).unwrap();
        let Route {
            method, path, role, ..
        } = route;
        send(
            &client,
            &format!("{method} {path} HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}"),
        );
        fixture.serve();
        let (answer, _) = received(&client);
        match *role {
            Role::Read | Role::Measure => assert_ne!(status(&answer), "403", "{path}: {answer}"),
            Role::Operate | Role::Decide => {
                assert_eq!(status(&answer), "403", "{method} {path}: {answer}");
                let why = "this socket permits no changes (try: the socket of --control)";
                assert!(answer.ends_with(&format!("{{\"error\":\"{why}\"}}")), "{answer}");
            }
        }
    }
    let changes = |update: &Update| !matches!(update, Update::Flows(_));
    assert!(!fixture.updates.iter().any(changes), "{:?}", fixture.updates);
    // The clients of the other socket have the same state.
    let client = fixture.client();
    send(&client, CHANGE);
    fixture.serve();
    assert!(fixture.updates.iter().any(changes), "{:?}", fixture.updates);
}
