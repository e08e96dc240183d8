//! SOCKS 5 (RFC 1928) with user name and password (RFC 1929).

use core::fmt;
use core::net::IpAddr;

use crate::refusal::{Refusal, SOCKS_ANSWER};
use crate::{Credentials, Host, Target};

/// The client's side of a negotiation.
pub(crate) struct Client {
    request: Option<Vec<u8>>,
    /// The message with user name and password, until it was sent.
    authentication: Option<Vec<u8>>,
    /// The CONNECT request, until it was sent.
    connect: Vec<u8>,
    /// Meaning of the next octet.
    next: Field,
}

/// A field in the messages of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// Version in the selection of a method (RFC 1928 section 3).
    MethodVersion,
    /// Selected method.
    Method,
    /// Version in the answer about credentials (RFC 1929 section 2).
    CredentialsVersion,
    /// Result in the answer about credentials.
    CredentialsStatus,
    /// Version in the reply (RFC 1928 section 6).
    ReplyVersion,
    /// Reply code.
    ReplyCode,
    /// Reserved octet.
    Reserved,
    /// Type of the address.
    AddressType,
    /// Length of the name in place of an address.
    NameLength,
    /// Octets of address and port; the value is their number.
    Bound(usize),
}

impl Client {
    pub(crate) fn new(target: &Target, credentials: Option<&Credentials>) -> Self {
        let methods = match credentials {
            None => vec![VERSION, 1, NO_AUTHENTICATION],
            Some(_) => vec![VERSION, 2, NO_AUTHENTICATION, USER_AND_PASSWORD],
        };
        Self {
            request: Some(methods),
            authentication: credentials.map(authentication),
            connect: connect(target),
            next: Field::MethodVersion,
        }
    }

    pub(crate) fn take_request(&mut self) -> Option<Vec<u8>> {
        self.request.take()
    }

    /// Reads the next octet. Returns true if the connection is established behind it.
    pub(crate) fn read(&mut self, octet: u8) -> Result<bool, Refusal> {
        self.next = match (self.next, octet) {
            (Field::MethodVersion, VERSION) => Field::Method,
            (Field::Method, NO_AUTHENTICATION) => {
                self.authentication = None;
                self.request(|client| core::mem::take(&mut client.connect));
                Field::ReplyVersion
            }
            (Field::Method, USER_AND_PASSWORD) => {
                let Some(authentication) = self.authentication.take() else {
                    // The method was not offered.
                    return Err(Refusal::CredentialsRequired);
                };
                self.request(|_| authentication);
                Field::CredentialsVersion
            }
            (Field::Method, NO_METHOD) => return Err(Refusal::Methods),
            // Some servers answer with the version of SOCKS.
            (Field::CredentialsVersion, CREDENTIALS_VERSION | VERSION) => Field::CredentialsStatus,
            (Field::CredentialsStatus, 0) => {
                self.request(|client| core::mem::take(&mut client.connect));
                Field::ReplyVersion
            }
            (Field::CredentialsStatus, _) => return Err(Refusal::CredentialsRefused),
            (Field::ReplyVersion, VERSION) => Field::ReplyCode,
            (Field::ReplyCode, 0) => Field::Reserved,
            // Nothing else is needed, and some servers close the connection here.
            (Field::ReplyCode, code) => return Err(Refusal::Reply(code)),
            (Field::Reserved, _) => Field::AddressType,
            (Field::AddressType, IPV4) => Field::Bound(4 + PORT),
            (Field::AddressType, IPV6) => Field::Bound(16 + PORT),
            (Field::AddressType, NAME) => Field::NameLength,
            (Field::NameLength, length) => Field::Bound(usize::from(length) + PORT),
            (Field::Bound(1), _) => return Ok(true),
            (Field::Bound(rest), _) => Field::Bound(rest - 1),
            (
                Field::MethodVersion
                | Field::Method
                | Field::CredentialsVersion
                | Field::ReplyVersion
                | Field::AddressType,
                _,
            ) => return Err(MALFORMED),
        };
        Ok(false)
    }

    /// Adds a message to those that have to be sent. There is more than one only if the proxy does not wait for them.
    fn request(&mut self, message: impl FnOnce(&mut Self) -> Vec<u8>) {
        let message = message(self);
        self.request.get_or_insert_default().extend(message);
    }
}

/// The requests may contain credentials.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// Returns the message with user name and password (RFC 1929 section 2).
fn authentication(credentials: &Credentials) -> Vec<u8> {
    let mut message = vec![CREDENTIALS_VERSION];
    push_text(&mut message, credentials.user());
    push_text(&mut message, credentials.password());
    message
}

/// Returns the CONNECT request (RFC 1928 section 4).
fn connect(target: &Target) -> Vec<u8> {
    let mut message = vec![VERSION, CONNECT, 0];
    match &target.host {
        Host::Address(IpAddr::V4(address)) => {
            message.push(IPV4);
            message.extend(address.octets());
        }
        Host::Address(IpAddr::V6(address)) => {
            message.push(IPV6);
            message.extend(address.octets());
        }
        Host::Name(name) => {
            message.push(NAME);
            push_text(&mut message, name.as_str());
        }
    }
    message.extend(target.port.to_be_bytes());
    message
}

/// Appends the length of `text` in one octet, and `text`. Names have at most 253 octets, and parts of credentials 255.
fn push_text(message: &mut Vec<u8>, text: &str) {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    message.push(length);
    message.extend(&text.as_bytes()[..usize::from(length)]);
}

const MALFORMED: Refusal = Refusal::Malformed(SOCKS_ANSWER);

const VERSION: u8 = 5;
const CREDENTIALS_VERSION: u8 = 1;
const CONNECT: u8 = 1;

/// Methods of authentication (RFC 1928 section 3).
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;

/// Types of addresses (RFC 1928 section 5).
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Number of octets of a port.
const PORT: usize = 2;
