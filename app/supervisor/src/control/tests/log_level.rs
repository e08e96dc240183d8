//! Tests of changes of the log level.

use std::sync::Mutex;

use super::*;

#[test]
fn level_is_set_in_the_supervisor_and_sent_to_the_engine() {
    static SET: Mutex<Vec<LevelFilter>> = Mutex::new(Vec::new());
    let mut fixture = Fixture::with(1, |level| SET.lock().unwrap().push(level));
    let client = fixture.client();
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
        send(&client, &put(body));
        fixture.serve();
        assert_eq!(status(&received(&client).0), "400", "{body}");
    }
    assert_eq!((fixture.updates.len(), SET.lock().unwrap().len()), (0, 0));
    send(&client, &put(r#"{"level": "debug"}"#));
    fixture.serve();
    assert_eq!(
        fixture.updates,
        [Update::LogLevel(LevelFilter::DEBUG), Update::Confirm(1)]
    );
    assert_eq!(*SET.lock().unwrap(), [LevelFilter::DEBUG]);
    assert_eq!(received(&client).0, "");
    fixture.confirm(1);
    assert!(received(&client).0.ends_with(r#"{"level":"debug"}"#));
    send(&client, "GET /v1/log-level HTTP/1.1\r\n\r\n");
    fixture.serve();
    assert!(received(&client).0.ends_with(r#"{"level":"debug"}"#));
}
