//! HTTP client of a control socket: sends one request and receives the response.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use httparse::{EMPTY_HEADER, Status};
use pontoon_control::reply::Problem;
use pontoon_process::error::one_line;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// HTTP client of the control socket at a path, which makes a connection for each request.
pub(crate) struct Client<'a> {
    path: &'a Path,
    verbatim: bool,
}

/// Error of a control socket to which no connection could be made.
#[derive(Debug)]
pub(crate) struct ConnectError {
    path: PathBuf,
    error: io::Error,
}

impl ConnectError {
    /// Returns the error, with advice if no process listens at the path.
    pub(crate) fn advice(&self) -> String {
        let path = self.path.display();
        match self.error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                format!("{self} (try: pontoon run --control {path}, or another --control PATH)")
            }
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = self.error.to_string();
        // The standard library appends the number of the error, which is removed.
        let reason = error.split(" (os error").next().unwrap_or_default();
        write!(f, "cannot connect to {}: {reason}", self.path.display())
    }
}

impl std::error::Error for ConnectError {}

/// Timeout of a response. The supervisor waits for the engine for at most one second.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a response that arrives in pieces.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Limit on the bytes of a line of a body that grows, and of a response's head.
const MAX_LINE: usize = 64 << 10;

/// Limit on the bytes of a response. The longest lists 131,072 flows with less than 400 bytes each.
const MAX_RESPONSE: usize = 128 << 20;

impl<'a> Client<'a> {
    /// A client whose replies have spaces in place of control characters, as they are printed.
    pub(crate) fn new(path: &'a Path) -> Self {
        Self {
            path,
            verbatim: false,
        }
    }

    /// The same client; if `verbatim`, its replies are as the server sent them: for JSON, which escapes them.
    pub(crate) fn verbatim(self, verbatim: bool) -> Self {
        Self { verbatim, ..self }
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, what: &str) -> Result<T> {
        self.request("GET", what, &[])
    }

    pub(crate) fn put<T: DeserializeOwned>(&self, what: &str, value: &impl Serialize) -> Result<T> {
        self.request("PUT", what, &serde_json::to_vec(value)?)
    }

    pub(crate) fn post<T: DeserializeOwned>(&self, what: &str, value: &impl Serialize) -> Result<T> {
        self.request("POST", what, &serde_json::to_vec(value)?)
    }

    pub(crate) fn delete<T: DeserializeOwned>(&self, what: &str) -> Result<T> {
        self.request("DELETE", what, &[])
    }

    /// Requests a body that grows, and passes each of its lines to `take` until the server ends it.
    pub(crate) fn stream(&self, what: &str, mut take: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let shown = self.path.display();
        let mut stream = UnixStream::connect(self.path).map_err(|error| ConnectError {
            path: self.path.to_owned(),
            error,
        })?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(format!("GET {what} HTTP/1.1\r\nHost: pontoon\r\n\r\n").as_bytes())?;
        let mut lines = BufReader::new(stream);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(head.len() < MAX_LINE, "invalid HTTP response from {shown}");
            let len = lines.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut head);
            ensure!(len? > 0, "incomplete response from {shown}");
        }
        if !head.starts_with(b"HTTP/1.1 200 ") {
            lines.get_ref().shutdown(Shutdown::Write)?;
            lines.take(MAX_LINE as u64).read_to_end(&mut head)?;
            let (status, body) = split(&head)?;
            match serde_json::from_slice::<Problem>(body) {
                Ok(problem) => bail!("{}", one_line(&problem.error)),
                Err(_) => bail!("{shown} responded with status {status}"),
            }
        }
        // Nothing may happen for any time.
        lines.get_ref().set_read_timeout(None)?;
        loop {
            let mut line = Vec::new();
            let len = lines
                .by_ref()
                .take(MAX_LINE as u64)
                .read_until(b'\n', &mut line)?;
            if len == 0 {
                return Ok(());
            }
            ensure!(line.ends_with(b"\n"), "incomplete record from {shown}");
            take(str::from_utf8(&line)?.trim_end())?;
        }
    }

    fn request<T: DeserializeOwned>(&self, method: &str, what: &str, body: &[u8]) -> Result<T> {
        let shown = self.path.display();
        let stream = UnixStream::connect(self.path).map_err(|error| ConnectError {
            path: self.path.to_owned(),
            error,
        })?;
        let response = Self::exchange(stream, method, what, body)
            .with_context(|| format!("cannot send a request to {shown}"))?;
        let (status, body) =
            split(&response).with_context(|| format!("invalid HTTP response from {shown}"))?;
        if status != 200 {
            match serde_json::from_slice::<Problem>(body) {
                Ok(problem) => bail!("{}", one_line(&problem.error)),
                Err(_) => bail!("{shown} responded with status {status}"),
            }
        }
        let reply = match self.verbatim || !may_contain_controls(body) {
            true => serde_json::from_slice(body),
            false => serde_json::from_slice(body).and_then(|reply| T::deserialize(without_controls(reply))),
        };
        // The error may quote the response.
        reply
            .map_err(|error| anyhow!(one_line(&error.to_string())))
            .with_context(|| format!("unexpected response from {shown}"))
    }

    fn exchange(mut stream: UnixStream, method: &str, what: &str, body: &[u8]) -> Result<Vec<u8>> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let head = format!(
            "{method} {what} HTTP/1.1\r\nHost: pontoon\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        // A server that closes the connection before it has read the whole request has responded with the reason.
        let sent = stream.write_all(&[head.as_bytes(), body].concat());
        let response = receive(stream, MAX_RESPONSE, Instant::now() + TOTAL_TIMEOUT)?;
        match response.is_empty() {
            true => sent.map(|()| response).map_err(Into::into),
            false => Ok(response),
        }
    }
}

/// Receives until the end of the stream or an error, which leaves an incomplete response.
///
/// # Errors
/// No byte was received; the response is longer than `most` or not complete at `deadline`.
fn receive(mut stream: impl Read, most: usize, deadline: Instant) -> Result<Vec<u8>> {
    let mut response = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(response),
            Ok(len) => response.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) if !response.is_empty() => return Ok(response),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("no response in {TIMEOUT:?}"),
            Err(error) => return Err(error.into()),
        }
        ensure!(response.len() <= most, "the response is longer than {most} bytes");
        ensure!(
            Instant::now() < deadline,
            "no complete response in {TOTAL_TIMEOUT:?}"
        );
    }
}

/// Returns true if strings of this JSON may contain control characters: escaped, or DEL or one of U+0080 to U+009F, which JSON
/// permits as they are.
fn may_contain_controls(json: &[u8]) -> bool {
    json.contains(&b'\\')
        || json.contains(&0x7f)
        || json
            .windows(2)
            .any(|pair| pair[0] == 0xc2 && (0x80..0xa0).contains(&pair[1]))
}

/// Replaces the control characters of all strings by spaces: the server may run as another user, who could otherwise control the
/// terminal.
fn without_controls(reply: Value) -> Value {
    match reply {
        Value::String(text) => Value::String(one_line(&text)),
        Value::Array(values) => values.into_iter().map(without_controls).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (one_line(&name), without_controls(value)))
            .collect(),
        other => other,
    }
}

/// Splits an HTTP response into status and body.
fn split(response: &[u8]) -> Result<(u16, &[u8])> {
    let mut fields = [EMPTY_HEADER; 16];
    let mut head = httparse::Response::new(&mut fields);
    let Status::Complete(len) = head.parse(response)? else {
        bail!("incomplete response");
    };
    let length = head
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("content-length"))
        .and_then(|field| str::from_utf8(field.value).ok()?.parse().ok());
    let body = &response[len..];
    ensure!(length == Some(body.len()), "incomplete response");
    Ok((head.code.unwrap_or(0), body))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use pontoon_control::reply::{EngineStats, LogLevel, Published};

    use super::*;

    #[test]
    fn missing_socket_is_reported_with_what_to_try() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let shown = path.display();
        let error = Client::new(&path).get::<()>("/v1/stats").unwrap_err();
        let error: &ConnectError = error.downcast_ref().unwrap();
        let message = format!("cannot connect to {shown}: No such file or directory");
        assert_eq!(error.to_string(), message);
        let advice = format!("{message} (try: pontoon run --control {shown}, or another --control PATH)");
        assert_eq!(error.advice(), advice);
        // The error has no advice: `--control` would not accept this path either.
        let long = directory.path().join("x".repeat(200));
        let error = Client::new(&long).get::<()>("/v1/stats").unwrap_err();
        let error: &ConnectError = error.downcast_ref().unwrap();
        assert_eq!(error.advice(), error.to_string());
    }

    #[test]
    fn response_of_a_server_that_stops_reading_is_received() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let body = r#"{"error":"too long"}"#;
            let head = format!("HTTP/1.1 413 Too Long\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all((head + body).as_bytes()).unwrap();
        });
        let long = "x".repeat(4 << 20);
        let error = Client::new(&path).put::<()>("/v1/policy", &long).unwrap_err();
        assert_eq!(error.to_string(), "too long");
        server.join().unwrap();
    }

    /// Serves one request with `response`.
    fn serve(status: u16, response: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let response = response.to_owned();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let len = response.len();
            let head = format!("HTTP/1.1 {status} OK\r\nContent-Length: {len}\r\n\r\n");
            // Closing a connection with an unread request would reset it.
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
            stream.write_all((head + &response).as_bytes()).unwrap();
        });
        (directory, path)
    }

    #[test]
    fn control_characters_of_a_reply_are_replaced() {
        for (json, text) in [
            (r#"{"published":["a\u001b[2J\nb"]}"#, "a [2J b"),
            ("{\"published\":[\"a\u{9b}2Jb\"]}", "a 2Jb"),
            ("{\"published\":[\"a\u{7f}b\"]}", "a b"),
            ("{\"published\":[\"a\u{e9}\u{a0}b\"]}", "a\u{e9}\u{a0}b"),
        ] {
            let (_directory, path) = serve(200, json);
            let reply: Published = Client::new(&path).get("/v1/publish").unwrap();
            assert_eq!(reply.published, [text]);
        }
        let (_directory, path) = serve(
            200,
            r#"{"workers":[],"total":{"flows":1,"pool_bytes":2,"counters":{"\u001b[2J":3}}}"#,
        );
        let stats: EngineStats = Client::new(&path).get("/v1/stats").unwrap();
        assert_eq!(stats.total.counters, [(" [2J".to_owned(), 3)].into());

        let (_directory, path) = serve(200, r#"{"published":["\u001b[2J"]}"#);
        let client = Client::new(&path).verbatim(true);
        let reply: Published = client.get("/v1/publish").unwrap();
        assert_eq!(reply.published, ["\u{1b}[2J"]);
    }

    #[test]
    fn lines_of_a_growing_body_are_passed_one_by_one() {
        let (_directory, path) = serve(200, "{\"n\":1}\n{\"n\":2}\n");
        let mut lines = Vec::new();
        let taken = Client::new(&path).stream("/v1/events?", |line| {
            lines.push(line.to_owned());
            Ok(())
        });
        taken.unwrap();
        assert_eq!(lines, ["{\"n\":1}", "{\"n\":2}"]);
        for (status, response, expected) in [
            (400, r#"{"error":"unknown type 'x'"}"#, "unknown type 'x'"),
            (200, "{", "incomplete record"),
        ] {
            let (_directory, path) = serve(status, response);
            let error = Client::new(&path)
                .stream("/v1/events?type=x", |_| Ok(()))
                .unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn control_characters_of_an_error_are_replaced() {
        for (status, json, text) in [
            (200, r#"{"level":"\u001b[2J"}"#, "unknown variant ` [2J`"),
            (409, r#"{"error":"a\u001b[2J\nb"}"#, "a [2J b"),
        ] {
            let (_directory, path) = serve(status, json);
            let client = Client::new(&path).verbatim(true);
            let error = client.get::<LogLevel>("/v1/log-level").unwrap_err();
            let message = format!("{error:#}");
            assert!(message.contains(text), "{message:?}");
        }
    }

    #[test]
    fn length_and_duration_of_a_response_are_limited() {
        let later = Instant::now() + TOTAL_TIMEOUT;
        let longest = receive(io::repeat(b'x').take(100_000), 100_000, later).unwrap();
        assert_eq!(longest.len(), 100_000);
        let error = receive(io::repeat(b'x'), 100_000, later).unwrap_err();
        assert_eq!(error.to_string(), "the response is longer than 100000 bytes");
        let error = receive(io::repeat(b'x'), usize::MAX, Instant::now()).unwrap_err();
        assert_eq!(error.to_string(), "no complete response in 60s");
    }

    #[test]
    fn incomplete_responses_are_errors() {
        let whole = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(split(whole).unwrap(), (404, &b"{}"[..]));
        for cut in [
            &whole[..10],
            &whole[..whole.len() - 1],
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"SSH-2.0\r\n\r\n",
        ] {
            assert!(split(cut).is_err());
        }
    }
}
