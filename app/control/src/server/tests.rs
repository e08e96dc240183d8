//! Tests of streamed responses, and of routes with a variable segment.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::http::{Parsed, parse};
use crate::{REQUEST_TIMEOUT, STREAM_BUFFER};

/// Service with lines for the streams of its clients.
#[derive(Default)]
struct Service {
    lines: Vec<u8>,
    complete: bool,
    /// A clone is held by each open stream.
    open: Rc<()>,
}

const ROUTES: &[Route<Service>] = &[
    Route::new("GET", "/lines", Role::Read, |service, _, _| {
        let open = Rc::clone(&service.open);
        Answer::Stream(Box::new(move |service, part, _| {
            let _ = &open;
            part.append(&mut service.lines);
            match service.complete {
                true => StreamState::Complete,
                false => StreamState::Open,
            }
        }))
    }),
    Route::new("DELETE", "/lines/{id}", Role::Operate, |_, request, _| {
        Answer::Now(HttpResponse::json(&request.id()))
    }),
    Route::new("POST", "/lines", Role::Operate, ok),
    Route::new("POST", "/decide", Role::Decide, ok),
    Route::new("GET", "/measure", Role::Measure, ok),
];

fn ok(_: &mut Service, _: &HttpRequest, _: Instant) -> Answer<Service> {
    Answer::Now(HttpResponse::document("{}"))
}

struct Fixture {
    server: Server<Service>,
    service: Service,
    now: Instant,
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let servers = crate::open(Some(&directory.path().join("socket")), None, ROUTES).unwrap();
        Self {
            server: servers.into_iter().next().unwrap(),
            service: Service::default(),
            now: Instant::now(),
            directory,
        }
    }

    fn request(&mut self, request: &str) -> UnixStream {
        let mut client = UnixStream::connect(self.directory.path().join("socket")).unwrap();
        client.set_nonblocking(true).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        self.serve();
        client
    }

    fn serve(&mut self) {
        self.server.serve(&mut self.service, self.now);
    }

    fn streams(&self) -> usize {
        Rc::strong_count(&self.service.open) - 1
    }
}

/// Returns what has been received, and true if the connection is closed.
fn received(client: &mut UnixStream) -> (String, bool) {
    let mut bytes = Vec::new();
    let closed = client.read_to_end(&mut bytes).is_ok();
    (String::from_utf8(bytes).unwrap(), closed)
}

const LINES: &str = "GET /lines HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn stream_is_sent_in_parts_until_it_is_complete() {
    let mut fixture = Fixture::new();
    fixture.service.lines = b"1\n".to_vec();
    let mut client = fixture.request(LINES);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n";
    assert_eq!(received(&mut client), (format!("{head}1\n"), false));
    // A client that has read everything is not disconnected, however long nothing follows.
    assert_eq!(fixture.server.deadline(), None);
    fixture.now += Duration::from_secs(86_400);
    fixture.serve();
    fixture.service.lines = b"2\n".to_vec();
    fixture.serve();
    assert_eq!(received(&mut client), ("2\n".to_owned(), false));
    fixture.service.complete = true;
    fixture.serve();
    assert_eq!(received(&mut client), (String::new(), true));
    assert_eq!((fixture.server.clients(), fixture.streams()), (0, 0));
}

#[test]
fn stream_ends_when_its_client_disconnects_or_shuts_down() {
    let mut fixture = Fixture::new();
    for how in [Shutdown::Both, Shutdown::Write] {
        let client = fixture.request(LINES);
        assert_eq!(fixture.streams(), 1);
        client.shutdown(how).unwrap();
        fixture.serve();
        assert_eq!((fixture.server.clients(), fixture.streams()), (0, 0), "{how:?}");
    }
}

#[test]
fn client_that_does_not_read_its_stream_is_disconnected() {
    let mut fixture = Fixture::new();
    let client = fixture.request(LINES);
    // More than the socket's buffers and the limit on unsent bytes take.
    for _ in 0..100 {
        fixture.service.lines.resize(64 << 10, b'x');
        fixture.serve();
    }
    let left = fixture.service.lines.len();
    assert_eq!(left, 64 << 10, "the limit of {STREAM_BUFFER} bytes is reached");
    fixture.now = fixture.server.deadline().unwrap();
    fixture.serve();
    assert_eq!((fixture.server.clients(), fixture.streams()), (0, 0));
    drop(client);
    assert!(REQUEST_TIMEOUT >= Duration::from_secs(1));
}

#[test]
fn last_segment_of_a_path_is_variable() {
    let mut fixture = Fixture::new();
    for (path, status) in [
        ("/lines/7?x=y", 200),
        ("/lines/", 404),
        ("/lines/7/8", 404),
        ("/line/7", 404),
    ] {
        let mut client = fixture.request(&format!("DELETE {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let (text, _) = received(&mut client);
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {text}");
        assert_eq!(text.ends_with("\"7\""), status == 200);
    }
}

#[test]
fn role_includes_the_requests_of_its_routes() {
    use Role::{Decide, Measure, Operate, Read};
    let roles = [Operate, Read, Decide, Measure];
    for (method, path, statuses) in [
        ("GET", "/lines", [200, 200, 404, 404]),
        ("POST", "/lines", [200, 403, 404, 404]),
        ("PUT", "/lines", [405, 405, 404, 404]),
        ("DELETE", "/lines/1", [200, 403, 404, 404]),
        ("GET", "/lines/1", [405, 403, 404, 404]),
        ("POST", "/decide", [200, 403, 200, 404]),
        ("GET", "/decide", [405, 403, 405, 404]),
        ("GET", "/measure", [200, 200, 404, 200]),
        ("POST", "/measure", [405, 405, 404, 405]),
        ("GET", "/none", [404; 4]),
    ] {
        let text = format!("{method} {path} HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
        let Parsed::Whole(request, _) = parse(text.as_bytes()) else {
            panic!("{text}");
        };
        let got = roles.map(|role| {
            match dispatch(ROUTES, role, &mut Service::default(), &request, Instant::now()) {
                Answer::Now(response) => response.status,
                Answer::Later(_) | Answer::Stream(_) => 200,
            }
        });
        assert_eq!(got, statuses, "{method} {path}");
    }
}
