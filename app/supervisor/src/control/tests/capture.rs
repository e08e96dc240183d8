//! Captures: one at a time, and told of when they are whole.

use std::os::unix::fs::PermissionsExt;

use pontoon_worker::messages::{Captured, Order};

use super::*;

const STOP: &str = "DELETE /v1/capture HTTP/1.1\r\n\r\n";

/// A desk at which a capture has begun, by a client that has heard so; another client; where the file is.
fn begun() -> (Desk, UnixStream, tempfile::TempDir) {
    let mut desk = Desk::new(1);
    let directory = tempfile::tempdir().unwrap();
    let client = desk.client();
    let file = directory.path().join("x");
    let body = format!(
        r#"{{"file": "{}", "snap": 96, "size": 5000, "time_ms": 7}}"#,
        file.display()
    );
    say(&client, &post("/v1/capture", &body));
    desk.serve();
    let Some(Update::Capture(Order::Start(start))) = desk.told.first() else {
        panic!("{:?}", desk.told);
    };
    assert_eq!(
        (start.number, start.snap, start.size, start.time),
        (1, 96, Some(5000), Some(Duration::from_millis(7)))
    );
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(heard(&client).0, "", "before every worker knows");
    desk.answer(1);
    assert!(shown(&heard(&client).0).running);
    desk.told.clear();
    (desk, client, directory)
}

fn shown(answer: &str) -> reply::Capture {
    assert_eq!(status(answer), "200", "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn ended(desk: &mut Desk, number: u64) {
    end(desk, number, false);
}

fn end(desk: &mut Desk, number: u64, failed: bool) {
    let told = &mut desk.told;
    let captured = Captured {
        number,
        frames: 3,
        dropped: 1,
        bytes: 500,
        failed,
        why: "a reason".to_owned(),
    };
    desk.control.take_report(
        Report::Captured(captured),
        &mut |update| told.push(update),
        desk.now,
    );
}

#[test]
fn one_at_a_time_and_the_answer_comes_when_it_is_whole() {
    let (mut desk, client, directory) = begun();
    let other = directory.path().join("y");
    say(
        &client,
        &post("/v1/capture", &format!(r#"{{"file": "{}"}}"#, other.display())),
    );
    desk.serve();
    assert_eq!(status(&heard(&client).0), "409");
    assert!(!other.exists());
    say(&client, STOP);
    desk.serve();
    assert_eq!(desk.told, [Update::Capture(Order::Stop(1))]);
    assert_eq!(heard(&client).0, "");
    ended(&mut desk, 0);
    assert_eq!(heard(&client).0, "", "another one");
    ended(&mut desk, 1);
    let shown = shown(&heard(&client).0);
    assert_eq!(
        (shown.running, shown.frames, shown.dropped, shown.bytes),
        (false, 3, 1, 500)
    );
    assert!(!desk.control.is_asking());
    say(&client, STOP);
    desk.serve();
    assert_eq!(status(&heard(&client).0), "409");
}

#[test]
fn one_that_ends_by_itself_is_heard_and_the_workers_forget_it() {
    let (mut desk, client, _directory) = begun();
    assert!(desk.control.is_asking());
    ended(&mut desk, 1);
    assert_eq!(desk.told, [Update::Capture(Order::Stop(1))]);
    say(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
    desk.serve();
    assert_eq!(shown(&heard(&client).0).ended.as_deref(), Some("a reason"));
}

#[test]
fn one_that_fails_leaves_what_is_whole() {
    for (failed, left) in [(false, "torn"), (true, "")] {
        let (mut desk, client, directory) = begun();
        let file = directory.path().join("x");
        // Nothing of it was whole.
        std::fs::write(&file, "torn").unwrap();
        end(&mut desk, 1, failed);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), left);
        say(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
        desk.serve();
        assert_eq!(shown(&heard(&client).0).ended.as_deref(), Some("a reason"));
    }
}

#[test]
fn one_that_is_to_end_does_with_its_engine() {
    let (mut desk, client, directory) = begun();
    let file = directory.path().join("x");
    say(&client, STOP);
    desk.serve();
    // Nothing of it was whole.
    std::fs::write(&file, "torn").unwrap();
    desk.control.ask_again(&mut |_| {}, desk.now);
    assert_eq!(
        shown(&heard(&client).0).ended.as_deref(),
        Some("the engine crashed")
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    assert!(!desk.control.is_asking());
}

#[test]
fn an_engine_that_takes_too_long_to_end_one_is_told_of_and_heard_later() {
    let (mut desk, client, _directory) = begun();
    let ask = |desk: &mut Desk| {
        say(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
        desk.serve();
        shown(&heard(&client).0)
    };
    say(&client, STOP);
    desk.serve();
    desk.wait(REPORT_TIMEOUT);
    assert_eq!(status(&heard(&client).0), "503");
    let silent = ask(&mut desk);
    assert_eq!(
        (silent.running, silent.ended.as_deref()),
        (false, Some("the engine does not respond"))
    );
    assert!(desk.control.is_asking());
    ended(&mut desk, 1);
    let late = ask(&mut desk);
    assert_eq!(
        (late.running, late.frames, late.ended.as_deref()),
        (false, 3, Some("a reason"))
    );
    assert!(!desk.control.is_asking());

    // Or it dies of it.
    let (mut desk, client, directory) = begun();
    let file = directory.path().join("x");
    say(&client, STOP);
    desk.serve();
    desk.wait(REPORT_TIMEOUT);
    std::fs::write(&file, "torn").unwrap();
    desk.control.ask_again(&mut |_| {}, desk.now);
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    assert!(!desk.control.is_asking());
}

#[test]
fn another_engine_goes_on_behind_what_is_whole() {
    let (mut desk, client, directory) = begun();
    let file = directory.path().join("x");
    // Nothing of it was whole.
    std::fs::write(&file, "torn").unwrap();
    desk.now += Duration::from_millis(3);
    let told = &mut desk.told;
    desk.control.ask_again(&mut |update| told.push(update), desk.now);
    let [Update::Capture(Order::Start(start))] = &desk.told[..] else {
        panic!("{:?}", desk.told);
    };
    assert_eq!(
        (start.number, start.snap, start.size, start.time),
        (1, 96, Some(5000), Some(Duration::from_millis(4)))
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    say(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
    desk.serve();
    assert!(shown(&heard(&client).0).running);

    desk.now += Duration::from_millis(4);
    desk.control.ask_again(&mut |_| {}, desk.now);
    say(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
    desk.serve();
    let ended = shown(&heard(&client).0).ended;
    assert_eq!(ended.as_deref(), Some("it was to take no longer"));
}

#[test]
fn what_cannot_be_is_said() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    for (wanted, body, why) in [
        (400, r#"{}"#, "missing field `file`"),
        (400, r#"{"file": "x"}"#, "not an absolute path"),
        (409, r#"{"file": "/dev/null"}"#, "not a regular file"),
        (400, r#"{"file": "/x", "size": 1}"#, "at least 4096"),
        (400, r#"{"file": "/x", "time_ms": 0}"#, "greater than zero"),
        (400, r#"{"file": "/x", "ring": 2}"#, "unknown field"),
    ] {
        say(&client, &post("/v1/capture", body));
        desk.serve();
        let (answer, _) = heard(&client);
        assert_eq!(status(&answer), wanted.to_string(), "{body}");
        assert!(answer.contains(why), "{body}: {answer}");
    }
    assert_eq!(desk.told, []);
}
