//! Changes of the log level.

use std::sync::Mutex;

use super::*;

#[test]
fn every_process_is_told_how_much_to_say() {
    static SET: Mutex<Vec<LevelFilter>> = Mutex::new(Vec::new());
    let mut desk = Desk::with(1, |level| SET.lock().unwrap().push(level));
    let client = desk.client();
    let put = |body: &str| {
        let len = body.len();
        format!("PUT /v1/log-level HTTP/1.1\r\nContent-Length: {len}\r\n\r\n{body}")
    };
    for body in [
        r#"{"level": "loud"}"#,
        r#"{"level": "DEBUG"}"#,
        "{}",
        r#"{"level": "info", "x": 1}"#,
    ] {
        say(&client, &put(body));
        desk.serve();
        assert_eq!(status(&heard(&client).0), "400", "{body}");
    }
    assert_eq!((desk.told.len(), SET.lock().unwrap().len()), (0, 0));
    say(&client, &put(r#"{"level": "debug"}"#));
    desk.serve();
    assert_eq!(desk.told, [Update::LogLevel(LevelFilter::DEBUG), Update::Ask(1)]);
    assert_eq!(*SET.lock().unwrap(), [LevelFilter::DEBUG]);
    assert_eq!(heard(&client).0, "");
    desk.answer(1);
    assert!(heard(&client).0.ends_with(r#"{"level":"debug"}"#));
    say(&client, "GET /v1/log-level HTTP/1.1\r\n\r\n");
    desk.serve();
    assert!(heard(&client).0.ends_with(r#"{"level":"debug"}"#));
}
