//! Host names in their normal form.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use thiserror::Error;

/// A host name in lower case without a trailing dot, for example `www.example.org`. Its labels consist of ASCII letters,
/// digits, hyphens (RFC 1123 section 2.1), and of underscores, because names in the DNS have them. An internationalized
/// name is in the form of A-labels (RFC 5890 section 2.3.2.1), such as `xn--mnchen-3ya.example`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(String);

/// The reason why a text is not a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HostNameError {
    /// The text is an IP address.
    #[error("it is an IP address")]
    Address,
    /// The text contains octets outside ASCII, such as a U-label.
    #[error("it contains characters outside ASCII (the form of an internationalized name is xn--...)")]
    NotAscii,
    /// A label is empty.
    #[error("it contains an empty label")]
    EmptyLabel,
    /// A label has more than 63 characters, or the name more than 253.
    #[error("it is too long")]
    TooLong,
    /// The text contains an ASCII character that host names do not contain.
    #[error("it contains a character that is not a letter, a digit, '-' or '_'")]
    Character,
    /// The last label contains no letter, as in a mistyped IPv4 address, or is a hexadecimal number: inet_aton(3) and browsers take
    /// `0x7f000001` for an IPv4 address (URL Standard, "ends in a number").
    #[error("its last label is a number")]
    NumericTop,
}

impl HostName {
    /// Parses a host name of octets, and converts it to the normal form.
    ///
    /// # Errors
    /// The reason why the octets are not a host name.
    pub fn from_octets(octets: &[u8]) -> Result<Self, HostNameError> {
        let text = match core::str::from_utf8(octets) {
            Ok(text) if text.is_ascii() => text,
            Ok(_) | Err(_) => return Err(HostNameError::NotAscii),
        };
        if text.parse::<IpAddr>().is_ok() {
            return Err(HostNameError::Address);
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.len() > LONGEST {
            return Err(HostNameError::TooLong);
        }
        for label in text.split('.') {
            match label.len() {
                0 => return Err(HostNameError::EmptyLabel),
                1..=63 => {}
                _ => return Err(HostNameError::TooLong),
            }
            let fits = |octet: u8| octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_';
            if !label.bytes().all(fits) {
                return Err(HostNameError::Character);
            }
        }
        let top = text.rsplit('.').next().unwrap_or_default();
        let hexadecimal = top.strip_prefix("0x").or_else(|| top.strip_prefix("0X"));
        let is_number = match hexadecimal {
            Some(digits) => digits.bytes().all(|octet| octet.is_ascii_hexdigit()),
            None => !top.bytes().any(|octet| octet.is_ascii_alphabetic()),
        };
        if is_number {
            return Err(HostNameError::NumericTop);
        }
        Ok(Self(text.to_ascii_lowercase()))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        Self::from_octets(text.as_bytes())
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

/// Longest host name in text form: RFC 1035 section 2.3.4 permits 255 bytes, including a length before each label and
/// the root.
const LONGEST: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_lower_case_without_a_trailing_dot() {
        for (text, name) in [
            ("www.example.org", "www.example.org"),
            ("WWW.Example.ORG.", "www.example.org"),
            ("xn--Mnchen-3ya.example", "xn--mnchen-3ya.example"),
            ("_443._tcp.a-b.example1", "_443._tcp.a-b.example1"),
            ("localhost", "localhost"),
            ("1.2.3.4.example", "1.2.3.4.example"),
        ] {
            assert_eq!(text.parse().as_ref().map(HostName::as_str), Ok(name), "{text}");
        }
    }

    #[test]
    fn text_that_is_not_a_host_name_is_refused_with_its_reason() {
        let long_label = "a".repeat(64);
        let long_name = ["a"; 127].join(".") + ".b";
        for (text, why) in [
            ("192.0.2.1", HostNameError::Address),
            ("2001:db8::1", HostNameError::Address),
            ("münchen.example", HostNameError::NotAscii),
            ("", HostNameError::EmptyLabel),
            (".", HostNameError::EmptyLabel),
            ("a..b", HostNameError::EmptyLabel),
            ("a.b..", HostNameError::EmptyLabel),
            (".a", HostNameError::EmptyLabel),
            (&long_label, HostNameError::TooLong),
            (&long_name, HostNameError::TooLong),
            ("a b", HostNameError::Character),
            ("*.example", HostNameError::Character),
            ("a\0.example", HostNameError::Character),
            ("a.example/", HostNameError::Character),
            ("192.0.2.256", HostNameError::NumericTop),
            ("0x7f.1", HostNameError::NumericTop),
        ] {
            assert_eq!(text.parse::<HostName>(), Err(why), "{text}");
        }
        assert_eq!(HostName::from_octets(b"a\xff"), Err(HostNameError::NotAscii));
        assert_eq!(
            ["a"; 127].join(".").parse::<HostName>().map(|name| name.0.len()),
            Ok(253)
        );
    }
}
