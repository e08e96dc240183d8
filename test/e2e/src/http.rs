//! A client of a control socket that measures the time of one response.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::Stopwatch;

/// One connection for many requests.
pub(crate) struct HttpClient(BufReader<UnixStream>);

impl HttpClient {
    /// The longest time to wait for a response.
    const PATIENCE: Duration = Duration::from_secs(10);

    pub(crate) fn connect(path: impl AsRef<Path>) -> Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(Self::PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Returns the body of a successful response.
    pub(crate) fn get(&mut self, path: &str) -> Result<String> {
        let (status, body) = self.request(&format!("GET {path} HTTP/1.1\r\n\r\n"))?;
        ensure!(status.contains(" 200 "), "{path}: {status} {body}");
        Ok(body)
    }

    /// Returns the body of a successful response that comes within 200 ms, whatever the workers do.
    pub(crate) fn get_at_once(&mut self, path: &str) -> Result<String> {
        let request = Stopwatch::start();
        let body = self.get(path)?;
        request.within(Duration::from_millis(200), Duration::from_secs(5))?;
        Ok(body)
    }

    /// Returns the body of the response, whatever its status.
    pub(crate) fn post(&mut self, path: &str, body: &str) -> Result<String> {
        let len = body.len();
        let request = format!("POST {path} HTTP/1.1\r\nContent-Length: {len}\r\n\r\n{body}");
        Ok(self.request(&request)?.1)
    }

    /// Returns the first line and the body of the response.
    fn request(&mut self, text: &str) -> Result<(String, String)> {
        self.0.get_mut().write_all(text.as_bytes())?;
        let mut status = String::new();
        let mut len = 0;
        loop {
            let mut line = String::new();
            ensure!(self.0.read_line(&mut line)? > 0, "the connection ended");
            match line.trim_end().split_once(": ") {
                Some(("Content-Length", value)) => len = value.parse()?,
                None if line == "\r\n" => break,
                None => status = line.trim_end().to_owned(),
                Some(_) => {}
            }
        }
        let mut body = vec![0; len];
        self.0.read_exact(&mut body)?;
        Ok((status, String::from_utf8(body)?))
    }
}
