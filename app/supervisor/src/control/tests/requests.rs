//! Valid and invalid requests.

use pontoon_control::http::{BODY, CONTINUE};

use super::*;
use crate::control::api::DOCUMENT;

#[test]
fn requests_in_pieces_and_in_a_row() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    let text = "GET /v1/openapi.json HTTP/1.1\r\n\r\nGET /no?x=1 HTTP/1.1\r\nconnection: CLOSE\r\n\r\n";
    for letter in text.chars() {
        say(&client, letter.encode_utf8(&mut [0; 4]));
        desk.serve();
    }
    let mut all = String::new();
    // The document may be longer than the socket takes at once.
    loop {
        let (part, ended) = heard(&client);
        all.push_str(&part);
        desk.serve();
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
fn what_is_no_request_is_refused_and_ends_the_connection() {
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
        let mut desk = Desk::new(1);
        let client = desk.client();
        say(&client, &text);
        desk.serve();
        let (answer, ended) = heard(&client);
        assert_eq!((status(&answer), ended), (wanted, true), "{text:?}: {answer}");
    }
}

#[test]
fn another_method_is_told_which_there_are() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    say(&client, "DELETE /v1/policy HTTP/1.1\r\n\r\n");
    desk.serve();
    let (answer, _) = heard(&client);
    assert!(
        answer.starts_with("HTTP/1.1 405 ") && answer.contains("\r\nAllow: GET, PUT\r\n"),
        "{answer}"
    );
    say(&client, "HEAD /v1/policy HTTP/1.1\r\n\r\n");
    desk.serve();
    let (answer, _) = heard(&client);
    assert!(
        answer.starts_with("HTTP/1.1 405 ") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}

#[test]
fn a_body_that_asks_whether_it_is_wanted() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    say(
        &client,
        "PUT /v1/policy HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    desk.serve();
    desk.serve();
    assert_eq!(heard(&client).0.as_bytes(), CONTINUE);
    say(&client, "{}");
    desk.serve();
    desk.answer(1);
    assert_eq!(status(&heard(&client).0), "200");
}

#[test]
fn a_target_may_say_whose_it_is() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    for (target, wanted) in [
        ("http://pontoon/v1/publish", "200"),
        ("HTTP://pontoon/v1/publish?x=/v1/stats", "200"),
        ("http://pontoon", "404"),
        ("http://pontoon?/v1/publish", "404"),
        ("https://pontoon/v1/publish", "404"),
        ("/http://pontoon/v1/publish", "404"),
    ] {
        say(&client, &format!("GET {target} HTTP/1.1\r\n\r\n"));
        desk.serve();
        assert_eq!(status(&heard(&client).0), wanted, "{target}");
    }
}

#[test]
fn who_says_too_much_hears_why() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    let body = "x".repeat(2 * BODY);
    let head = format!(
        "PUT /v1/policy HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    say(&client, &head);
    let mut rest = body.as_bytes();
    while !rest.is_empty() {
        desk.serve();
        let len = (&client).write(rest).unwrap();
        rest = &rest[len..];
    }
    let (answer, ended) = heard(&client);
    assert_eq!((status(&answer), ended), ("413", true));
    drop(client);
    desk.serve();
    assert_eq!(desk.control.servers[0].clients(), 0);

    // Who goes on without end is not heard out.
    let client = desk.client();
    say(&client, &head);
    let talk = vec![b'x'; 64 << 10];
    let mut said = 0;
    while let Ok(len) = (&client).write(&talk) {
        said += len;
        desk.serve();
    }
    assert!((16 << 20..17 << 20).contains(&said), "{said}");
}
