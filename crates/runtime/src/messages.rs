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
    /// The host has got, or lost, its IPv6 default route.
    Ipv6Route(bool),
    /// The user's rules changed.
    Rules(Vec<Rule>),
    /// Each worker is to say what it knows: [`Report::Stats`], with this number.
    Ask(u64),
}

/// What the engine tells the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Privileges are dropped and the loop runs.
    Ready,
    /// What a worker knows of itself.
    Stats(Stats),
}

/// What a worker knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of the question.
    pub round: u64,
    /// The worker.
    pub worker: u8,
    /// Flows that it has.
    pub flows: u64,
    /// Bytes of pool memory that they hold.
    pub pool_bytes: u64,
    /// How often each egress rule was met, then what no allow rule names, then other resolvers.
    pub rules: Vec<u64>,
    /// What happened since its start.
    pub counters: Vec<(String, u64)>,
}

const RESOLVERS: &str = "resolvers";
const OWNED: &str = "owned";
const IPV6_ROUTE: &str = "ipv6 route";
const RULES: &str = "rules";
const ASK: &str = "ask";
const STATS: &str = "stats";
const HITS: &str = "hits";
const READY: &str = "engine ready";

impl Update {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Resolvers(list) => lines(RESOLVERS, list),
            Self::Owned(list) => lines(OWNED, list),
            Self::Ipv6Route(exists) => lines(IPV6_ROUTE, &[exists]),
            Self::Rules(list) => lines(RULES, list),
            Self::Ask(round) => lines(ASK, &[round]),
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
            Some(IPV6_ROUTE) => only(lines).map(Self::Ipv6Route),
            Some(RULES) => values(lines).map(Self::Rules),
            Some(ASK) => only(lines).map(Self::Ask),
            _ => None,
        }
        .ok_or_else(|| unknown(message))
    }
}

impl Report {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready => READY.into(),
            Self::Stats(stats) => stats.encode(),
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// `InvalidData`: it is none.
    pub fn decode(message: &[u8]) -> io::Result<Self> {
        if message == READY.as_bytes() {
            return Ok(Self::Ready);
        }
        let text = std::str::from_utf8(message).map_err(|_| unknown(message))?;
        let stats = Stats::decode(text).ok_or_else(|| unknown(message))?;
        Ok(Self::Stats(stats))
    }
}

impl Stats {
    fn encode(&self) -> Vec<u8> {
        let hits: String = self.rules.iter().map(|hits| format!(" {hits}")).collect();
        let head = [
            self.round.to_string(),
            self.worker.to_string(),
            self.flows.to_string(),
            self.pool_bytes.to_string(),
            format!("{HITS}{hits}"),
        ];
        let counters = self
            .counters
            .iter()
            .map(|(name, count)| format!("{name} {count}"));
        let all: Vec<_> = head.into_iter().chain(counters).collect();
        lines(STATS, &all)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(STATS) {
            return None;
        }
        Some(Self {
            round: lines.next()?.parse().ok()?,
            worker: lines.next()?.parse().ok()?,
            flows: lines.next()?.parse().ok()?,
            pool_bytes: lines.next()?.parse().ok()?,
            rules: lines
                .next()?
                .strip_prefix(HITS)?
                .split_whitespace()
                .map(|hits| hits.parse().ok())
                .collect::<Option<_>>()?,
            counters: lines
                .map(|line| {
                    let (name, count) = line.split_once(' ')?;
                    Some((name.to_owned(), count.parse().ok()?))
                })
                .collect::<Option<_>>()?,
        })
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

fn only<T: FromStr>(mut lines: std::str::Lines<'_>) -> Option<T> {
    let value = lines.next()?.parse().ok();
    value.filter(|_| lines.next().is_none())
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
            Update::Ipv6Route(true),
            Update::Ask(u64::MAX),
        ] {
            assert_eq!(Update::decode(&update.encode()).unwrap(), update);
        }
        let stats = Stats {
            round: 7,
            worker: 3,
            flows: 12,
            pool_bytes: 65_536,
            rules: vec![0, 5],
            counters: vec![("frames_up".to_owned(), 9), ("frames_down".to_owned(), 0)],
        };
        for report in [
            Report::Ready,
            Report::Stats(stats),
            Report::Stats(Stats::default()),
        ] {
            assert_eq!(Report::decode(&report.encode()).unwrap(), report);
        }
    }

    #[test]
    fn refuses_everything_else() {
        for message in [
            "",
            "owned\n192.0.2",
            "resolvers\n192.0.2.1",
            "owned 192.0.2.1",
            "rules\nallow",
            "ask",
            "ask\n1\n2",
            "engine ready",
        ] {
            assert!(Update::decode(message.as_bytes()).is_err(), "{message:?}");
        }
        assert!(Update::decode(b"owned\n\xff").is_err());
        for message in [
            "engine ready\n",
            "stats\n1\n2\n3\n4",
            "stats\n1\n256\n3\n4\nhits",
            "stats\n1\n2\n3\n4\nhits\nname",
        ] {
            assert!(Report::decode(message.as_bytes()).is_err(), "{message:?}");
        }
    }
}
