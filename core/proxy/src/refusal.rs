//! Reasons why a proxy does not establish a connection.

use core::fmt;

use thiserror::Error;

/// The reason why a handshake with a proxy has failed. Its text contains no octets from the proxy, which might repeat the
/// credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The proxy has answered a CONNECT request with a status other than 2xx and 407.
    #[error("the proxy answered with status {0}{phrase}", phrase = Phrase(*.0))]
    Status(u16),
    /// The proxy requires credentials, and there are none.
    #[error("the proxy requires credentials")]
    CredentialsRequired,
    /// The proxy has not accepted the credentials.
    #[error("the proxy did not accept the credentials")]
    CredentialsRefused,
    /// The proxy accepts only a way of authentication that is not supported.
    #[error("the proxy requires {0} authentication, which is not supported")]
    Authentication(AuthenticationScheme),
    /// The SOCKS proxy accepts none of the offered methods of authentication.
    #[error("the proxy accepts none of the offered authentication methods")]
    Methods,
    /// The SOCKS proxy has answered with a code of RFC 1928 section 6.
    #[error("the proxy answered with code {0}{meaning}", meaning = Meaning(*.0))]
    Reply(u8),
    /// The answer is not one of HTTP, or not one of SOCKS 5.
    #[error("the answer of the proxy is not {0}")]
    Malformed(&'static str),
    /// The head of the answer has more than [`crate::LIMIT`] octets.
    #[error("the head of the proxy's answer has more than 16 KiB")]
    TooLong,
    /// The proxy has closed the connection before its answer was complete.
    #[error("the proxy closed the connection without an answer")]
    Closed,
}

/// Refusals without a number, in the order of their codes.
const PLAIN: [Refusal; 11] = [
    Refusal::CredentialsRequired,
    Refusal::CredentialsRefused,
    Refusal::Authentication(AuthenticationScheme::Ntlm),
    Refusal::Authentication(AuthenticationScheme::Negotiate),
    Refusal::Authentication(AuthenticationScheme::Digest),
    Refusal::Authentication(AuthenticationScheme::Unknown),
    Refusal::Methods,
    Refusal::Malformed(HTTP_ANSWER),
    Refusal::Malformed(SOCKS_ANSWER),
    Refusal::TooLong,
    Refusal::Closed,
];

/// The forms of answers that [`Refusal::Malformed`] names.
pub(crate) const HTTP_ANSWER: &str = "a response of HTTP/1.1";
pub(crate) const SOCKS_ANSWER: &str = "an answer of SOCKS 5";

/// First codes of [`Refusal::Reply`] and of [`PLAIN`]; a status has its number, which is below 1,000.
const FIRST_REPLY: u16 = 0x400;
const FIRST_PLAIN: u16 = 0x500;

impl Refusal {
    /// Returns the refusal as a number below 4,096 for memory and files.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Status(status) => status.min(FIRST_REPLY - 1),
            Self::Reply(code) => FIRST_REPLY + u16::from(code),
            plain => {
                let codes = (FIRST_PLAIN..).zip(PLAIN);
                let mut found = codes.filter(|(_, refusal)| *refusal == plain);
                found.next().map_or(FIRST_PLAIN, |(code, _)| code)
            }
        }
    }

    /// Returns the refusal that [`Self::code`] has encoded; `None` if there is no such refusal.
    #[must_use]
    pub fn of_code(code: u16) -> Option<Self> {
        match code {
            ..FIRST_REPLY => Some(Self::Status(code)),
            FIRST_REPLY..FIRST_PLAIN => u8::try_from(code - FIRST_REPLY).ok().map(Self::Reply),
            _ => PLAIN.get(usize::from(code - FIRST_PLAIN)).copied(),
        }
    }
}

/// A way of authentication to an HTTP proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthenticationScheme {
    /// NTLM, of Microsoft.
    Ntlm,
    /// Negotiate (RFC 4559): Kerberos or NTLM.
    Negotiate,
    /// Digest (RFC 7616).
    Digest,
    /// One that this program does not know.
    Unknown,
}

impl fmt::Display for AuthenticationScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ntlm => "NTLM",
            Self::Negotiate => "Negotiate",
            Self::Digest => "Digest",
            Self::Unknown => "an unknown kind of",
        })
    }
}

/// Reason phrase of a status of HTTP (RFC 9110 section 15); empty for those that proxies do not use.
struct Phrase(u16);

impl fmt::Display for Phrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            301 => " (Moved Permanently)",
            302 => " (Found)",
            400 => " (Bad Request)",
            401 => " (Unauthorized)",
            403 => " (Forbidden)",
            404 => " (Not Found)",
            405 => " (Method Not Allowed)",
            408 => " (Request Timeout)",
            429 => " (Too Many Requests)",
            500 => " (Internal Server Error)",
            501 => " (Not Implemented)",
            502 => " (Bad Gateway)",
            503 => " (Service Unavailable)",
            504 => " (Gateway Timeout)",
            _ => "",
        })
    }
}

/// Meaning of a reply code of SOCKS 5 (RFC 1928 section 6); empty for unassigned ones.
struct Meaning(u8);

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => " (general SOCKS server failure)",
            2 => " (connection not allowed by ruleset)",
            3 => " (network unreachable)",
            4 => " (host unreachable)",
            5 => " (connection refused)",
            6 => " (TTL expired)",
            7 => " (command not supported)",
            8 => " (address type not supported)",
            _ => "",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_refusals_are_decoded() {
        let numbered = [
            Refusal::Status(100),
            Refusal::Status(999),
            Refusal::Reply(0),
            Refusal::Reply(255),
        ];
        for refusal in PLAIN.into_iter().chain(numbered) {
            assert!(refusal.code() < 0x1000);
            assert_eq!(Refusal::of_code(refusal.code()), Some(refusal));
        }
        assert_eq!(Refusal::of_code(FIRST_PLAIN + 11), None);
        assert_eq!(Refusal::of_code(u16::MAX), None);
    }
}
