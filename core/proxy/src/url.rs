//! The text of a proxy's address: `http://HOST:PORT` or `socks5://HOST:PORT`.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use thiserror::Error;

use crate::{Credentials, CredentialsError, Host, Protocol};

/// The address of a proxy, and its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyUrl {
    /// The protocol of the proxy.
    pub protocol: Protocol,
    /// The proxy's name or address.
    pub host: Host,
    /// The proxy's TCP port.
    pub port: u16,
}

/// The reason why a text is not the address of a proxy. It contains no part of the text, in which there may be
/// credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    /// The scheme is not supported.
    #[error("the URL of a proxy begins with http:// or socks5://")]
    Scheme,
    /// The proxy is behind TLS.
    #[error("proxies over TLS (https://) are not supported")]
    Tls,
    /// The proxy has another version of SOCKS.
    #[error("SOCKS 4 is not supported (socks5:// is)")]
    Socks4,
    /// The scheme of curl(1) for SOCKS 5 with names.
    #[error("socks5h:// is not a scheme here: socks5:// passes names to the proxy with --proxy-dns")]
    Socks5h,
    /// The text is an argument and contains credentials.
    #[error(
        "the URL of a proxy must not contain credentials, because other users can read arguments: \
         put USER:PASSWORD into a file or an environment variable"
    )]
    Credentials,
    /// The text contains credentials that are not valid.
    #[error(transparent)]
    InvalidCredentials(#[from] CredentialsError),
    /// The host is neither a name nor an address.
    #[error("the host of the proxy is neither a name nor an IPv4 address nor an IPv6 address in brackets")]
    Host,
    /// The port is absent or invalid.
    #[error("the URL of a proxy ends with :PORT (1 to 65535)")]
    Port,
    /// There is a path, a query or a fragment.
    #[error("the URL of a proxy has no path")]
    Path,
}

impl ProxyUrl {
    /// Parses the content of a file or of an environment variable, which may contain credentials:
    /// `http://[USER[:PASSWORD]@]HOST:PORT`, or the same with `socks5`. User name and password are percent-encoded (RFC
    /// 3986 section 2.1).
    ///
    /// # Errors
    /// The text is not of this form.
    pub fn parse_with_credentials(text: &str) -> Result<(Self, Option<Credentials>), UrlError> {
        let (protocol, rest) = scheme(text)?;
        // A password may contain any character but '@', which is encoded, if the text is not quite correct.
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((user_info, rest)) => {
                let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
                (Some(Credentials::new(decode(user)?, decode(password)?)?), rest)
            }
            None => (None, rest),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(UrlError::Path);
        }
        let (host, port) = rest.rsplit_once(':').ok_or(UrlError::Port)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => {
                let inner = inner.strip_suffix(']').ok_or(UrlError::Host)?;
                let address: Ipv6Addr = inner.parse().map_err(|_| UrlError::Host)?;
                Host::Address(IpAddr::V6(address).to_canonical())
            }
            None => match host.parse::<Ipv4Addr>() {
                Ok(address) => Host::Address(address.into()),
                Err(_) => Host::Name(host.parse().map_err(|_| UrlError::Host)?),
            },
        };
        let is_number = port.bytes().all(|digit| digit.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port != 0);
        let port = port.ok_or(UrlError::Port)?;
        Ok((Self { protocol, host, port }, credentials))
    }
}

/// Splits a URL into the protocol of its scheme and the part behind `://`.
fn scheme(text: &str) -> Result<(Protocol, &str), UrlError> {
    let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Ok((Protocol::Http, rest)),
        "socks5" => Ok((Protocol::Socks5, rest)),
        "https" => Err(UrlError::Tls),
        "socks4" | "socks4a" => Err(UrlError::Socks4),
        "socks5h" => Err(UrlError::Socks5h),
        _ => Err(UrlError::Scheme),
    }
}

/// Decodes percent-encoded text.
fn decode(text: &str) -> Result<String, CredentialsError> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let ([high, low], after) = after.split_first_chunk().ok_or(CredentialsError::Form)?;
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(CredentialsError::Form);
            let octet = digit(*high)? << 4 | digit(*low)?;
            octets.extend(u8::try_from(octet));
            rest = after;
        } else {
            octets.push(*first);
        }
    }
    String::from_utf8(octets).map_err(|_| CredentialsError::Character)
}

/// Parses an argument, in which credentials are refused.
impl FromStr for ProxyUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        // Before anything else, because the text is not displayed then.
        if text.contains('@') {
            return Err(UrlError::Credentials);
        }
        Self::parse_with_credentials(text).map(|(url, _)| url)
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Http => "http",
            Protocol::Socks5 => "socks5",
        };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_of_proxies_are_parsed_and_displayed() {
        for (text, shown) in [
            ("http://proxy.example:3128", "http://proxy.example:3128"),
            ("HTTP://Proxy.Example.:3128/", "http://proxy.example:3128"),
            ("http://192.0.2.1:80", "http://192.0.2.1:80"),
            ("socks5://[2001:DB8::1]:1080", "socks5://[2001:db8::1]:1080"),
            ("socks5://[::ffff:127.0.0.1]:1080", "socks5://127.0.0.1:1080"),
            ("socks5://localhost:65535", "socks5://localhost:65535"),
        ] {
            let url: ProxyUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse(), Ok(url));
        }
    }

    #[test]
    fn argument_with_credentials_is_refused_without_repeating_them() {
        for text in [
            "http://user:secret@proxy.example:3128",
            "socks5://user:secret@192.0.2.1:1080",
            "http://secret@proxy.example:3128",
            "http://user:sec@secret@proxy.example",
            "user:secret@proxy.example:3128",
            "https://user:secret@proxy.example:3128",
        ] {
            let error = text.parse::<ProxyUrl>().unwrap_err();
            assert_eq!(error, UrlError::Credentials, "{text}");
            assert!(!error.to_string().contains("secret") && !error.to_string().contains('\n'));
        }
    }

    #[test]
    fn credentials_of_a_file_are_decoded_and_not_displayed() {
        for (text, user, password) in [
            ("http://user:secret@a.example:1", "user", "secret"),
            ("socks5://user@a.example:1", "user", ""),
            ("http://us%65r:s%40%3a%C3%9f@a.example:1", "user", "s@:ß"),
            ("http://user:se:cr@et@a.example:1/", "user", "se:cr@et"),
        ] {
            let (url, credentials) = ProxyUrl::parse_with_credentials(text).unwrap();
            assert_eq!(url.to_string().split("://").nth(1), Some("a.example:1"));
            let expected = Credentials::new(user.to_owned(), password.to_owned()).unwrap();
            assert_eq!(credentials.as_ref(), Some(&expected), "{text}");
            assert_eq!(format!("{credentials:?}"), "Some(Credentials(..))");
        }
        let plain = ProxyUrl::parse_with_credentials("http://a.example:1");
        assert_eq!(plain.unwrap().1, None);
    }

    #[test]
    fn each_syntax_error_has_its_own_reason() {
        for (text, why) in [
            ("", UrlError::Scheme),
            ("proxy.example:3128", UrlError::Scheme),
            ("ftp://proxy.example:3128", UrlError::Scheme),
            ("https://proxy.example:3128", UrlError::Tls),
            ("socks4a://proxy.example:1080", UrlError::Socks4),
            ("socks5h://proxy.example:1080", UrlError::Socks5h),
            ("http://proxy.example", UrlError::Port),
            ("http://proxy.example:", UrlError::Port),
            ("http://proxy.example:0", UrlError::Port),
            ("http://proxy.example:+1", UrlError::Port),
            ("http://proxy.example:65536", UrlError::Port),
            ("http://:3128", UrlError::Host),
            ("http://a b:3128", UrlError::Host),
            ("http://2001:db8::1:3128", UrlError::Host),
            ("http://[proxy.example]:3128", UrlError::Host),
            ("http://[fe80::1%1]:3128", UrlError::Host),
            ("http://[::1:3128", UrlError::Host),
            ("http://192.0.2.256:3128", UrlError::Host),
            ("http://proxy.example:3128/path", UrlError::Path),
            ("http://proxy.example:3128?query", UrlError::Path),
        ] {
            assert_eq!(text.parse::<ProxyUrl>(), Err(why), "{text}");
        }
        for (text, why) in [
            ("http://@a.example:1", CredentialsError::Form),
            ("http://u:%4@a.example:1", CredentialsError::Form),
            ("http://u:%zz@a.example:1", CredentialsError::Form),
            ("http://u%3av:p@a.example:1", CredentialsError::Form),
            ("http://u:%0a@a.example:1", CredentialsError::Character),
            ("http://u:%ff@a.example:1", CredentialsError::Character),
        ] {
            let parsed = ProxyUrl::parse_with_credentials(text);
            assert_eq!(parsed, Err(UrlError::InvalidCredentials(why)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn displayed_url_parses_back(text in "(http|socks5)://([a-z]{1,9}\\.[a-z]{1,9}|\\[[0-9a-f]{1,4}::\\]|[1-9]\\.0\\.2\\.1):[1-9][0-9]{0,3}") {
            let url: ProxyUrl = text.parse().unwrap();
            prop_assert_eq!(url.to_string().parse(), Ok(url));
        }

        #[test]
        fn random_text_never_panics(text in "(http://|socks5://)?\\PC{0,40}") {
            let _ = text.parse::<ProxyUrl>();
            let _ = ProxyUrl::parse_with_credentials(&text);
        }
    }
}
