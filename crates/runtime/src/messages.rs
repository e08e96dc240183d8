//! What supervisor and engine say to each other: one message of text each, a word on the first line and a value on each
//! line after it.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use pontoon_engine::egress::Rule;

/// Bytes of the longest message.
pub const MAX_LEN: usize = 64 << 10;

/// What the supervisor tells a running engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The host's resolvers changed.
    Resolvers(Vec<SocketAddr>),
    /// The host's own addresses changed.
    Owned(Vec<IpAddr>),
    /// The user's rules changed.
    Rules(Vec<Rule>),
}

/// What the engine tells the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Privileges are dropped and the loop runs.
    Ready,
}

const RESOLVERS: &str = "resolvers";
const OWNED: &str = "owned";
const RULES: &str = "rules";
const READY: &str = "engine ready";

impl Update {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Resolvers(list) => lines(RESOLVERS, list),
            Self::Owned(list) => lines(OWNED, list),
            Self::Rules(list) => lines(RULES, list),
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// `InvalidData`: it is none.
    pub fn decode(message: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(message).map_err(|_| unknown(message))?;
        let mut lines = text.lines();
        match lines.next() {
            Some(RESOLVERS) => values(lines).map(Self::Resolvers),
            Some(OWNED) => values(lines).map(Self::Owned),
            Some(RULES) => values(lines).map(Self::Rules),
            _ => None,
        }
        .ok_or_else(|| unknown(message))
    }
}

impl Report {
    /// The message.
    #[must_use]
    pub fn encode(self) -> &'static [u8] {
        match self {
            Self::Ready => READY.as_bytes(),
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// `InvalidData`: it is none.
    pub fn decode(message: &[u8]) -> io::Result<Self> {
        if message == READY.as_bytes() {
            Ok(Self::Ready)
        } else {
            Err(unknown(message))
        }
    }
}

fn lines(word: &str, list: &[impl Display]) -> Vec<u8> {
    let mut text = word.to_owned();
    for value in list {
        text.push('\n');
        text.push_str(&value.to_string());
    }
    text.into_bytes()
}

fn values<T: FromStr>(lines: std::str::Lines<'_>) -> Option<Vec<T>> {
    lines.map(|line| line.parse().ok()).collect()
}

fn unknown(message: &[u8]) -> io::Error {
    let begin = String::from_utf8_lossy(message.get(..64).unwrap_or(message)).into_owned();
    io::Error::new(io::ErrorKind::InvalidData, format!("unknown message {begin:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_and_back() {
        for update in [
            Update::Resolvers(vec![
                "192.0.2.1:53".parse().unwrap(),
                "[fe80::1%2]:53".parse().unwrap(),
            ]),
            Update::Resolvers(Vec::new()),
            Update::Owned(vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]),
            Update::Rules(vec![
                "deny [2001:db8::/32]:25-26/tcp".parse().unwrap(),
                "allow *.example.org".parse().unwrap(),
            ]),
        ] {
            assert_eq!(Update::decode(&update.encode()).unwrap(), update);
        }
        assert_eq!(Report::decode(Report::Ready.encode()).unwrap(), Report::Ready);
    }

    #[test]
    fn refuses_everything_else() {
        for message in [
            "",
            "owned\n192.0.2",
            "resolvers\n192.0.2.1",
            "owned 192.0.2.1",
            "rules\nallow",
            "engine ready",
        ] {
            assert!(Update::decode(message.as_bytes()).is_err(), "{message:?}");
        }
        assert!(Update::decode(b"owned\n\xff").is_err());
        assert!(Report::decode(b"engine ready\n").is_err());
    }
}
