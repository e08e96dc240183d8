//! HTTP client of a control socket: sends one request and receives the response.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use httparse::{EMPTY_HEADER, Status};
use pontoon_control::reply::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// HTTP client of the control socket at a path, which makes a connection for each request.
pub(crate) struct Client<'a> {
    path: &'a Path,
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

impl<'a> Client<'a> {
    pub(crate) fn new(path: &'a Path) -> Self {
        Self { path }
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
                Ok(problem) => bail!("{}", problem.error),
                Err(_) => bail!("{shown} responded with status {status}"),
            }
        }
        serde_json::from_slice(body).with_context(|| format!("unexpected response from {shown}"))
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
        let mut response = Vec::new();
        match stream.read_to_end(&mut response) {
            Ok(0) => sent.map(|()| response).map_err(Into::into),
            Ok(_) => Ok(response),
            Err(_) if !response.is_empty() => Ok(response),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("no response in {TIMEOUT:?}"),
            Err(error) => Err(error.into()),
        }
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
