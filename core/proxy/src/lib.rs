//! Handshakes with upstream proxies: HTTP CONNECT and SOCKS 5, and the text of a proxy's address and credentials.
//!
//! This crate reads no clock, opens no socket, starts no thread and has no unsafe code. A [`Handshake`] composes the
//! requests for one connection and reads the answers of the proxy, whose octets may arrive in any segments. The octets
//! behind the last answer belong to the connection.
//!
//! Credentials appear in the requests only: not in the text of an error, and not in the debug format of any type.
#![forbid(unsafe_code)]
#![deny(clippy::iter_over_hash_type)]
#![deny(missing_docs)]

mod credentials;
mod http;
mod refusal;
mod socks5;
mod url;

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use pontoon_names::HostName;

pub use credentials::{Credentials, CredentialsError};
pub use refusal::{AuthenticationScheme, Refusal};
pub use url::{ProxyUrl, UrlError};

/// Maximum number of octets of the answers to one HTTP CONNECT request.
pub const LIMIT: usize = 16_384;

/// Protocol between a client and a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP CONNECT (RFC 9110 section 9.3.6) without TLS to the proxy.
    Http,
    /// SOCKS 5 (RFC 1928).
    Socks5,
}

/// A host: its name, or its address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// The name of the host, which is resolved when it is used.
    Name(HostName),
    /// The address of the host.
    Address(IpAddr),
}

/// The destination of a connection through a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host. The proxy resolves its name.
    pub host: Host,
    /// The TCP port.
    pub port: u16,
}

/// The progress of a [`Handshake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// All octets belong to the handshake, which continues. [`Handshake::take_request`] may have a request now.
    NeedMore,
    /// The connection is established. The first `consumed` octets of the last call belong to the handshake, and the others
    /// to the connection.
    Done {
        /// Number of octets of the handshake in the last call.
        consumed: usize,
    },
    /// The proxy has refused the connection, or does not comply with the protocol.
    Refused(Refusal),
}

/// A handshake with a proxy about one connection.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    /// The result after the handshake has ended.
    end: Option<Result<(), Refusal>>,
}

#[derive(Debug)]
enum State {
    Http(http::Connect),
    Socks5(socks5::Client),
}

impl Handshake {
    /// Creates the handshake for a connection to `target`.
    #[must_use]
    pub fn new(protocol: Protocol, target: &Target, credentials: Option<&Credentials>) -> Self {
        let state = match protocol {
            Protocol::Http => State::Http(http::Connect::new(target, credentials)),
            Protocol::Socks5 => State::Socks5(socks5::Client::new(target, credentials)),
        };
        Self { state, end: None }
    }

    /// Returns and removes the next request, which has less than 2 KiB. There is one before the first answer, and with
    /// SOCKS 5 there are further ones after answers. Every request has to be sent before the octets of the connection.
    pub fn take_request(&mut self) -> Option<Vec<u8>> {
        match &mut self.state {
            State::Http(connect) => connect.take_request(),
            State::Socks5(client) => client.take_request(),
        }
    }

    /// Reads the next octets from the proxy. After the end of the handshake the result does not change, and no octet
    /// belongs to the handshake.
    pub fn read(&mut self, octets: &[u8]) -> Progress {
        for (index, octet) in octets.iter().enumerate() {
            if self.end.is_some() {
                break;
            }
            let read = match &mut self.state {
                State::Http(connect) => connect.read(*octet),
                State::Socks5(client) => client.read(*octet),
            };
            match read {
                Ok(false) => {}
                Ok(true) => {
                    self.end = Some(Ok(()));
                    return Progress::Done { consumed: index + 1 };
                }
                Err(refusal) => self.end = Some(Err(refusal)),
            }
        }
        match self.end {
            None => Progress::NeedMore,
            Some(Ok(())) => Progress::Done { consumed: 0 },
            Some(Err(refusal)) => Progress::Refused(refusal),
        }
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Address(address.ip()),
            port: address.port(),
        }
    }
}

/// The form of an authority: `NAME`, `IPV4` or `[IPV6]`.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name}"),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// The form of an authority: `NAME:PORT`, `IPV4:PORT` or `[IPV6]:PORT`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
