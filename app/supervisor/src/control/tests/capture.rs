//! Tests of captures: one runs at a time, and a response is sent once the file is complete.

use std::os::unix::fs::PermissionsExt;

use pontoon_worker::messages::{CaptureCommand, CaptureResult};

use super::*;

const STOP: &str = "DELETE /v1/capture HTTP/1.1\r\n\r\n";

/// Returns a fixture with a running capture, the client that has started it, and the directory of the capture's file.
fn begun() -> (Fixture, UnixStream, tempfile::TempDir) {
    let mut fixture = Fixture::new(1);
    let directory = tempfile::tempdir().unwrap();
    let client = fixture.client();
    let file = directory.path().join("x");
    let body = format!(
        r#"{{"file": "{}", "snap": 96, "size": 5000, "time_ms": 7}}"#,
        file.display()
    );
    send(&client, &post("/v1/capture", &body));
    fixture.serve();
    let Some(Update::Capture(CaptureCommand::Start(start))) = fixture.updates.first() else {
        panic!("{:?}", fixture.updates);
    };
    assert_eq!(
        (start.number, start.snap, start.size, start.time),
        (1, 96, Some(5000), Some(Duration::from_millis(7)))
    );
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(received(&client).0, "", "before every worker has confirmed");
    fixture.confirm(1);
    assert!(shown(&received(&client).0).running);
    fixture.updates.clear();
    (fixture, client, directory)
}

fn shown(answer: &str) -> reply::Capture {
    assert_eq!(status(answer), "200", "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn ended(fixture: &mut Fixture, number: u64) {
    end(fixture, number, false);
}

fn end(fixture: &mut Fixture, number: u64, failed: bool) {
    let updates = &mut fixture.updates;
    let captured = CaptureResult {
        number,
        frames: 3,
        dropped: 1,
        bytes: 500,
        failed,
        why: "a reason".to_owned(),
    };
    fixture.control.take_report(
        Report::Captured(captured),
        &mut |update| updates.push(update),
        fixture.now,
    );
}

#[test]
fn one_capture_runs_at_a_time_and_its_end_is_confirmed_with_the_result() {
    let (mut fixture, client, directory) = begun();
    let other = directory.path().join("y");
    send(
        &client,
        &post("/v1/capture", &format!(r#"{{"file": "{}"}}"#, other.display())),
    );
    fixture.serve();
    assert_eq!(status(&received(&client).0), "409");
    assert!(!other.exists());
    send(&client, STOP);
    fixture.serve();
    assert_eq!(fixture.updates, [Update::Capture(CaptureCommand::Stop(1))]);
    assert_eq!(received(&client).0, "");
    ended(&mut fixture, 0);
    assert_eq!(received(&client).0, "", "another one");
    ended(&mut fixture, 1);
    let shown = shown(&received(&client).0);
    assert_eq!(
        (shown.running, shown.frames, shown.dropped, shown.bytes),
        (false, 3, 1, 500)
    );
    assert!(!fixture.control.is_asking());
    send(&client, STOP);
    fixture.serve();
    assert_eq!(status(&received(&client).0), "409");
}

#[test]
fn capture_that_ends_by_itself_is_stopped_in_all_workers() {
    let (mut fixture, client, _directory) = begun();
    assert!(fixture.control.is_asking());
    ended(&mut fixture, 1);
    assert_eq!(fixture.updates, [Update::Capture(CaptureCommand::Stop(1))]);
    send(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
    fixture.serve();
    assert_eq!(shown(&received(&client).0).ended.as_deref(), Some("a reason"));
}

#[test]
fn failed_capture_is_truncated_to_complete_packets() {
    for (failed, left) in [(false, "torn"), (true, "")] {
        let (mut fixture, client, directory) = begun();
        let file = directory.path().join("x");
        // The content of the file is not a complete packet.
        std::fs::write(&file, "torn").unwrap();
        end(&mut fixture, 1, failed);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), left);
        send(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
        fixture.serve();
        assert_eq!(shown(&received(&client).0).ended.as_deref(), Some("a reason"));
    }
}

#[test]
fn capture_that_is_being_stopped_ends_with_its_engine() {
    let (mut fixture, client, directory) = begun();
    let file = directory.path().join("x");
    send(&client, STOP);
    fixture.serve();
    // The content of the file is not a complete packet.
    std::fs::write(&file, "torn").unwrap();
    fixture.control.ask_again(&mut |_| {}, fixture.now);
    assert_eq!(
        shown(&received(&client).0).ended.as_deref(),
        Some("the engine crashed")
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    assert!(!fixture.control.is_asking());
}

#[test]
fn late_confirmation_of_the_end_is_reported_and_accepted() {
    let (mut fixture, client, _directory) = begun();
    let ask = |fixture: &mut Fixture| {
        send(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
        fixture.serve();
        shown(&received(&client).0)
    };
    send(&client, STOP);
    fixture.serve();
    fixture.wait(REPORT_TIMEOUT);
    assert_eq!(status(&received(&client).0), "503");
    let silent = ask(&mut fixture);
    assert_eq!(
        (silent.running, silent.ended.as_deref()),
        (false, Some("the engine does not respond"))
    );
    assert!(fixture.control.is_asking());
    ended(&mut fixture, 1);
    let late = ask(&mut fixture);
    assert_eq!(
        (late.running, late.frames, late.ended.as_deref()),
        (false, 3, Some("a reason"))
    );
    assert!(!fixture.control.is_asking());

    // In the second case the engine exits instead of replying late.
    let (mut fixture, client, directory) = begun();
    let file = directory.path().join("x");
    send(&client, STOP);
    fixture.serve();
    fixture.wait(REPORT_TIMEOUT);
    std::fs::write(&file, "torn").unwrap();
    fixture.control.ask_again(&mut |_| {}, fixture.now);
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    assert!(!fixture.control.is_asking());
}

#[test]
fn restarted_engine_continues_behind_the_last_complete_packet() {
    let (mut fixture, client, directory) = begun();
    let file = directory.path().join("x");
    // The content of the file is not a complete packet.
    std::fs::write(&file, "torn").unwrap();
    fixture.now += Duration::from_millis(3);
    let updates = &mut fixture.updates;
    fixture
        .control
        .ask_again(&mut |update| updates.push(update), fixture.now);
    let [Update::Capture(CaptureCommand::Start(start))] = &fixture.updates[..] else {
        panic!("{:?}", fixture.updates);
    };
    assert_eq!(
        (start.number, start.snap, start.size, start.time),
        (1, 96, Some(5000), Some(Duration::from_millis(4)))
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    send(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
    fixture.serve();
    assert!(shown(&received(&client).0).running);

    fixture.now += Duration::from_millis(4);
    fixture.control.ask_again(&mut |_| {}, fixture.now);
    send(&client, "GET /v1/capture HTTP/1.1\r\n\r\n");
    fixture.serve();
    let ended = shown(&received(&client).0).ended;
    assert_eq!(ended.as_deref(), Some("the time limit was reached"));
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    for (wanted, body, why) in [
        (400, r#"{}"#, "missing field `file`"),
        (400, r#"{"file": "x"}"#, "not an absolute path"),
        (409, r#"{"file": "/dev/null"}"#, "not a regular file"),
        (400, r#"{"file": "/x", "size": 1}"#, "at least 4096"),
        (400, r#"{"file": "/x", "time_ms": 0}"#, "greater than zero"),
        (400, r#"{"file": "/x", "ring": 2}"#, "unknown field"),
    ] {
        send(&client, &post("/v1/capture", body));
        fixture.serve();
        let (answer, _) = received(&client);
        assert_eq!(status(&answer), wanted.to_string(), "{body}");
        assert!(answer.contains(why), "{body}: {answer}");
    }
    assert_eq!(fixture.updates, []);
}
