//! Subset of HTTP/1.1 (RFC 9112) that a control socket uses: requests and responses with `Content-Length`.

use std::collections::VecDeque;
use std::fmt::Display;

use httparse::Status;
use pontoon_process::error::one_line;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::reply::Problem;
use crate::role::Role;

/// Complete HTTP request of a client.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// HTTP method: `GET`, `PUT`, ...
    pub method: String,
    /// Path of the request target, without the query.
    pub path: String,
    /// Query of the request target, without the question mark; empty if there is none.
    pub query: String,
    /// Value of the `Host` field or authority of the target, with the port if one is given.
    pub host: Option<String>,
    /// Body of the request; empty without `Content-Length`.
    pub body: Vec<u8>,
    /// True if the connection is to be closed after the response.
    pub close: bool,
    /// Role of the clients of the server that has received the request. The parser sets the least one.
    pub role: Role,
}

/// Result of parsing the bytes that a client has sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The bytes are the beginning of a request.
    Partial {
        /// True if the client waits for `100 Continue` before it sends the body.
        expects_continue: bool,
    },
    /// The bytes begin with this request, which has this length in bytes.
    Whole(HttpRequest, usize),
    /// The bytes are not a valid request, and this is the error response. Where the next request begins is unknown.
    Wrong(HttpResponse),
}

/// HTTP response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// Status code (RFC 9110 section 15).
    pub status: u16,
    /// Value of the field `Content-Type`.
    pub content_type: &'static str,
    /// Value of the field `Allow`: the methods of the resource, for status 405.
    pub allow: Option<String>,
    /// Body of the response.
    pub body: Vec<u8>,
}

/// Limit on the size of a request's head (request line and fields), in bytes.
const HEAD: usize = 8 << 10;

/// Limit on the number of header fields of a request.
const FIELDS: usize = 64;

/// Limit on the size of a request's body in bytes: the longest policy in JSON fits.
pub const BODY: usize = 256 << 10;

/// Limit on the size of a request in bytes.
pub(crate) const LONGEST: usize = HEAD + BODY;

/// Interim response to a request with `Expect: 100-continue` (RFC 9110 section 10.1.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Parses the request at the front of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let head_len = match head.parse(bytes) {
        Ok(Status::Complete(len)) if len <= HEAD => len,
        Ok(Status::Partial) if bytes.len() <= HEAD => {
            return Parsed::Partial {
                expects_continue: false,
            };
        }
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return wrong(431, "the request's head is too long"),
        Err(error) => return wrong(400, error),
    };
    let values = |name: &'static str| {
        let named = move |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
        head.headers.iter().filter(named).map(|field| field.value)
    };
    if values("transfer-encoding").next().is_some() {
        return wrong(501, "a request body needs a Content-Length");
    }
    let mut lengths = values("content-length").map(length);
    let body_len = match (lengths.next(), lengths.next()) {
        (None, _) => 0,
        (Some(Some(len)), None) if len <= BODY => len,
        (Some(Some(_)), None) => {
            return wrong(413, format_args!("the body exceeds the limit of {BODY} bytes"));
        }
        (Some(_), _) => return wrong(400, "invalid Content-Length"),
    };
    let Some(body) = bytes.get(head_len..head_len + body_len) else {
        return Parsed::Partial {
            expects_continue: values("expect").any(|value| value.eq_ignore_ascii_case(b"100-continue")),
        };
    };
    let (Some(method), Some(path)) = (head.method, head.path) else {
        return wrong(400, "missing request line");
    };
    let mut hosts = values("host").map(|host| String::from_utf8_lossy(host).into_owned());
    let (host, None) = (hosts.next(), hosts.next()) else {
        return wrong(400, "several hosts");
    };
    let (authority, path) = split_target(path);
    let wants_end = |value: &[u8]| {
        value
            .split(|byte| *byte == b',')
            .any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let request = HttpRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        host: authority.map(str::to_owned).or(host),
        body: body.to_vec(),
        close: head.version == Some(0) || values("connection").any(wants_end),
        role: Role::Measure,
    };
    Parsed::Whole(request, head_len + body_len)
}

/// Splits a request target in absolute form into authority and path. The authority replaces the `Host` field (RFC 9112
/// section 3.2.2).
fn split_target(target: &str) -> (Option<&str>, &str) {
    const SCHEME: &str = "http://";
    match target.split_at_checked(SCHEME.len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(SCHEME) => {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            (Some(authority), if path.is_empty() { "/" } else { path })
        }
        _ => (None, target),
    }
}

fn length(value: &[u8]) -> Option<usize> {
    let text = str::from_utf8(value).ok()?;
    // `str::parse` alone would accept a sign.
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

fn wrong(status: u16, why: impl Display) -> Parsed {
    Parsed::Wrong(HttpResponse::problem(status, why))
}

impl HttpRequest {
    /// Returns the last segment of the path.
    #[must_use]
    pub fn id(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Parses the body of the request, which is a JSON object.
    ///
    /// # Errors
    /// The text describes the mistake in the body.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, String> {
        // serde would accept an array as the values of an object's fields.
        if !self.body.trim_ascii_start().starts_with(b"{") {
            return Err("the body is not a JSON object".to_owned());
        }
        serde_json::from_slice(&self.body).map_err(|error| error.to_string())
    }
}

impl HttpResponse {
    /// Returns a response whose body is the JSON text `json`.
    pub fn document(json: &str) -> Self {
        Self::ok(JSON, json.to_owned())
    }

    /// Returns a response whose body is metrics in Prometheus' text format.
    pub fn metrics(text: String) -> Self {
        Self::ok(METRICS, text)
    }

    fn ok(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            content_type,
            allow: None,
            body: body.into(),
        }
    }

    /// Returns a response whose body is `value` serialized as JSON.
    pub fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::ok(JSON, body),
            Err(error) => Self::problem(500, error),
        }
    }

    /// Returns an error response with the reason `why`.
    pub fn problem(status: u16, why: impl Display) -> Self {
        // The reason may contain text of the client.
        let problem = Problem {
            error: one_line(&why.to_string()),
        };
        Self {
            status,
            ..Self::json(&problem)
        }
    }

    /// Appends the encoded response to `to`. The response to a HEAD request has no body.
    pub fn write(&self, to: &mut VecDeque<u8>, close: bool, head_only: bool) {
        let allow = self
            .allow
            .as_ref()
            .map_or_else(String::new, |allow| format!("Allow: {allow}\r\n"));
        let close = if close { "Connection: close\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}{close}\r\n",
            self.status,
            phrase(self.status),
            self.content_type,
            self.body.len(),
        );
        to.extend(head.into_bytes());
        if !head_only {
            to.extend(&self.body);
        }
    }
}

/// Appends the head of a response whose body, lines of JSON, ends when the connection is closed (RFC 9112 section 6.3).
pub(crate) fn write_stream_head(to: &mut VecDeque<u8>) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {JSON_LINES}\r\nConnection: close\r\n\r\n");
    to.extend(head.into_bytes());
}

/// Returns the reason phrase of a status code (RFC 9110 section 15).
fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

const JSON: &str = "application/json";
const JSON_LINES: &str = "application/x-ndjson";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_phrases_are_those_of_rfc_9110_and_6585() {
        let phrases = [400, 403, 421, 431].map(phrase);
        assert_eq!(
            phrases,
            [
                "Bad Request",
                "Forbidden",
                "Misdirected Request",
                "Request Header Fields Too Large"
            ]
        );
    }
}
