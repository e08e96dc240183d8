//! HTTP CONNECT (RFC 9110 section 9.3.6).

use core::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::Status;

use crate::refusal::{AuthenticationScheme, HTTP_ANSWER, Refusal};
use crate::{Credentials, LIMIT, Target};

/// A CONNECT request, and its answers as far as they were read.
pub(crate) struct Connect {
    request: Option<Vec<u8>>,
    has_credentials: bool,
    /// Head of the current answer.
    head: Vec<u8>,
    /// Number of octets of the current line of the head, without a carriage return.
    line: usize,
    /// Number of octets of all answers.
    total: usize,
}

impl Connect {
    pub(crate) fn new(target: &Target, credentials: Option<&Credentials>) -> Self {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(credentials) = credentials {
            // RFC 7617 section 2.
            let pair = format!("{}:{}", credentials.user(), credentials.password());
            request.push_str("Proxy-Authorization: Basic ");
            STANDARD.encode_string(pair, &mut request);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        Self {
            request: Some(request.into_bytes()),
            has_credentials: credentials.is_some(),
            head: Vec::new(),
            line: 0,
            total: 0,
        }
    }

    pub(crate) fn take_request(&mut self) -> Option<Vec<u8>> {
        self.request.take()
    }

    /// Reads the next octet. Returns true if the connection is established behind it.
    pub(crate) fn read(&mut self, octet: u8) -> Result<bool, Refusal> {
        self.head.push(octet);
        self.total += 1;
        // Other protocols are detected at once, because their servers may wait for the client.
        let known = self.head.len().min(PREFIX.len());
        if self.head[..known] != PREFIX[..known] {
            return Err(MALFORMED);
        }
        match octet {
            b'\n' if self.line == 0 => {
                let is_final = self.read_head();
                self.head = Vec::new();
                return is_final;
            }
            b'\n' => self.line = 0,
            b'\r' => {}
            _ => self.line += 1,
        }
        if self.total >= LIMIT {
            return Err(Refusal::TooLong);
        }
        Ok(false)
    }

    /// Parses a complete head. Returns true if the connection is established, and false for an interim answer.
    fn read_head(&self) -> Result<bool, Refusal> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        let (Ok(Status::Complete(length)), Some(code)) = (response.parse(&self.head), response.code) else {
            return Err(MALFORMED);
        };
        if length != self.head.len() {
            return Err(MALFORMED);
        }
        match code {
            // Content-Length and Transfer-Encoding have no meaning in such an answer.
            200..=299 => Ok(true),
            // 101 would change the protocol.
            100 | 102..=199 if self.total < LIMIT => Ok(false),
            100 | 102..=199 => Err(Refusal::TooLong),
            407 => {
                let offers = |name: &str| offers(response.headers, name);
                Err(if offers("Basic") || !has_challenge(response.headers) {
                    match self.has_credentials {
                        true => Refusal::CredentialsRefused,
                        false => Refusal::CredentialsRequired,
                    }
                } else if offers("NTLM") {
                    Refusal::Authentication(AuthenticationScheme::Ntlm)
                } else if offers("Negotiate") {
                    Refusal::Authentication(AuthenticationScheme::Negotiate)
                } else if offers("Digest") {
                    Refusal::Authentication(AuthenticationScheme::Digest)
                } else {
                    Refusal::Authentication(AuthenticationScheme::Unknown)
                })
            }
            _ => Err(Refusal::Status(code)),
        }
    }
}

/// The request may contain credentials, and the proxy may repeat them.
impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

fn is_challenge(field: &&httparse::Header<'_>) -> bool {
    field.name.eq_ignore_ascii_case("Proxy-Authenticate")
}

fn has_challenge(fields: &[httparse::Header<'_>]) -> bool {
    fields.iter().any(|field| is_challenge(&field))
}

/// Returns true if the proxy offers the authentication scheme `name` (RFC 9110 section 11.7.1). A field may contain
/// several challenges behind commas, which also separate the parameters of a challenge.
fn offers(fields: &[httparse::Header<'_>], name: &str) -> bool {
    let is_named = |challenge: &[u8]| {
        let word = challenge.trim_ascii().split(u8::is_ascii_whitespace).next();
        word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    };
    let mut fields = fields.iter().filter(is_challenge);
    fields.any(|field| field.value.split(|octet| *octet == b',').any(is_named))
}

/// Start of each answer of HTTP/1.0 and HTTP/1.1.
const PREFIX: &[u8] = b"HTTP/1.";

const MALFORMED: Refusal = Refusal::Malformed(HTTP_ANSWER);

/// Maximum number of header fields of an answer.
const FIELDS: usize = 128;
