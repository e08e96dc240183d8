//! An HTTP/1.1 server with one request per connection.
//!
//! `GET /bytes/SEED/LEN` returns the pattern of the seed, `PUT /sha256` the hash of the body, and `/git/...` the
//! response of `git http-backend` for the repositories in the directory that the server was started with.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::tcp::send;
use crate::pattern::Pattern;

pub(crate) fn start(address: SocketAddr, repositories: Option<PathBuf>) -> Result<SocketAddr> {
    super::accept(address, repositories, |repositories, stream| {
        serve(repositories.as_deref(), stream)
    })
}

/// The request line and headers of a request.
struct HttpRequest {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
}

fn serve(repositories: Option<&Path>, stream: TcpStream) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    let request = HttpRequest::read(&mut reader)?;
    if request.header("expect") == "100-continue" {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = reader.take(request.header("content-length").parse().unwrap_or(0));
    let parts: Vec<&str> = request.path.split('/').skip(1).collect();
    match (request.method.as_str(), parts.as_slice(), repositories) {
        ("GET", ["bytes", seed, len], _) => {
            let len = len.parse()?;
            head(&mut writer, "200 OK", len)?;
            send(&mut writer, &Pattern::of(seed.parse()?), len)
        }
        ("PUT", ["sha256"], _) => {
            let text = sha256(&mut body)?;
            head(&mut writer, "200 OK", text.len() as u64)?;
            Ok(writer.write_all(text.as_bytes())?)
        }
        (_, ["git", ..], Some(repositories)) => git(repositories, &request, &mut body, &mut writer),
        _ => head(&mut writer, "404 Not Found", 0),
    }
}

impl HttpRequest {
    fn read(from: &mut impl BufRead) -> Result<Self> {
        let mut lines = from.lines();
        let mut line = || {
            lines
                .next()
                .context("the connection ended within the request")?
                .context("the request line is empty")
        };
        let first = line()?;
        let mut words = first.split(' ').map(str::to_string);
        let mut word = || words.next().context("the request line is malformed");
        let (method, target) = (word()?, word()?);
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let (path, query) = (path.to_string(), query.to_string());
        let mut headers = Vec::new();
        loop {
            let header = line()?;
            let Some((name, value)) = header.split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
        Ok(Self {
            method,
            path,
            query,
            headers,
        })
    }

    /// Returns the value of the header with this name in lower case, or an empty text.
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map_or("", |(_, value)| value)
    }
}

fn head(writer: &mut TcpStream, status: &str, len: u64) -> Result<()> {
    Ok(write!(
        writer,
        "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    )?)
}

fn sha256(body: &mut impl Read) -> Result<String> {
    let mut child = Command::new("openssl")
        .args(["dgst", "-sha256", "-r"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run openssl")?;
    std::io::copy(
        body,
        &mut child.stdin.take().context("the child process has no pipe")?,
    )?;
    Ok(String::from_utf8(child.wait_with_output()?.stdout)?)
}

/// Passes a request to `git http-backend` by the Common Gateway Interface (RFC 3875).
fn git(
    repositories: &Path,
    request: &HttpRequest,
    body: &mut impl Read,
    writer: &mut TcpStream,
) -> Result<()> {
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", repositories)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", &request.method)
        .env("PATH_INFO", request.path.trim_start_matches("/git"))
        .env("QUERY_STRING", &request.query)
        .env("CONTENT_TYPE", request.header("content-type"))
        .env("CONTENT_LENGTH", request.header("content-length"))
        .env("HTTP_CONTENT_ENCODING", request.header("content-encoding"))
        .env("GIT_PROTOCOL", request.header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run git http-backend")?;
    std::io::copy(
        body,
        &mut child.stdin.take().context("the child process has no pipe")?,
    )?;
    let mut answer = BufReader::new(child.stdout.take().context("the child process has no pipe")?);
    let (mut status, mut headers) = ("200 OK".to_string(), "Connection: close\r\n".to_string());
    loop {
        let mut header = String::new();
        ensure!(
            answer.read_line(&mut header)? > 0,
            "no answer of git http-backend"
        );
        match header.strip_prefix("Status: ") {
            Some(value) => status = value.trim_end().to_string(),
            None => headers.push_str(&header),
        }
        if header.trim_end().is_empty() {
            break;
        }
    }
    write!(writer, "HTTP/1.1 {status}\r\n{headers}")?;
    std::io::copy(&mut answer, writer)?;
    child.wait()?;
    Ok(())
}
