//! Messages between supervisor and engine. Each is text: a word on the first line and a value on each further line.
//! Descriptors are passed with SCM_RIGHTS.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::str::FromStr;

use ipnet::IpNet;
use pontoon_engine::Histogram;
use pontoon_engine::egress::EgressRule;
use pontoon_sys::seqpacket::MAX_DESCRIPTORS;
use tracing::level_filters::LevelFilter;

mod capture;
mod door;
mod flows;
mod owned;
mod total;

pub use capture::{Captured, Order, Start};
pub use door::{Descriptor, Door, Refused};
pub use flows::{Flows, Turn};
pub use owned::{Gathered, SomeOwned};

/// Bytes of the longest message.
pub const MAX_LEN: usize = 64 << 10;

/// A message of the supervisor to a running engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The host's resolvers changed.
    Resolvers(Vec<SocketAddr>),
    /// The host's own addresses changed, or ranges of which it takes every address for its own. See [`Update::owned`].
    Owned(Vec<IpNet>),
    /// Some of them, if one message has no room for all.
    SomeOwned(SomeOwned),
    /// The host has got, or lost, its IPv6 default route.
    Ipv6Route(bool),
    /// The user's rules changed.
    Rules(Vec<EgressRule>),
    /// Published ports changed: [`Update::MOST_DOORS`] at most, in order. The other variants are states, of which the last
    /// one counts; this one is an event.
    Published(Vec<Door>),
    /// The level of the engine's log.
    LogLevel(LevelFilter),
    /// Requests a [`Report::Stats`] with this number from each worker.
    Ask(u64),
    /// Requests some of a worker's flows: [`Report::Flows`].
    Flows(Turn),
    /// A capture starts or stops: an event, too. [`Report::Captured`] reports its end.
    Capture(Order),
}

/// A message of the engine to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Privileges are dropped and the loop runs.
    Ready,
    /// The counters and state of a worker.
    Stats(Stats),
    /// Some of a worker's flows.
    Flows(Flows),
    /// A capture has ended, and its file is whole.
    Captured(Captured),
}

/// The counters and state of a worker.
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
    /// The number of packets for each egress rule, then for no allow rule, then for other resolvers.
    pub rules: Vec<u64>,
    /// Published ports that it could not take over: [`Refused::MOST`] at most.
    pub refused: Vec<Refused>,
    /// Measured values since its start.
    pub histograms: Vec<Distribution>,
    /// Counters since its start.
    pub counters: Vec<(String, u64)>,
}

/// The name of the durations of successful connects, in nanoseconds: [`pontoon_engine::histogram::CONNECT_TIMES`].
pub const CONNECT_TIMES: &str = "connect_times";

/// The name of the numbers of frames in the guest's bursts: [`BURSTS`](crate::link::BURSTS).
pub const BATCHES: &str = "batches";

/// A histogram of measured values, with bounds that both sides know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// The name of the measured quantity.
    pub name: String,
    /// The sum of all values.
    pub sum: u64,
    /// The number of values above one bound and not above the next; the last is the number above all bounds.
    pub counts: Vec<u64>,
}

const RESOLVERS: &str = "resolvers";
const OWNED: &str = "owned";
const SOME_OWNED: &str = "some owned";
const IPV6_ROUTE: &str = "ipv6 route";
const RULES: &str = "rules";
const PUBLISHED: &str = "published";
const LOG_LEVEL: &str = "log level";
const ASK: &str = "ask";
const FLOWS: &str = "flows";
const CAPTURE: &str = "capture";
const CAPTURED: &str = "captured";
const STATS: &str = "stats";
const HITS: &str = "hits";
const REFUSED: &str = "refused ";
const HISTOGRAM: &str = "histogram ";
const READY: &str = "engine ready";

impl Update {
    /// Published ports in one message, each of which may have a socket.
    pub const MOST_DOORS: usize = MAX_DESCRIPTORS;

    /// Returns true if this message makes `older` obsolete, which has not been sent yet.
    #[must_use]
    pub fn replaces(&self, older: &Self) -> bool {
        match self {
            Self::Published(_) | Self::Capture(_) => false,
            Self::SomeOwned(part) if part.from > 0 => false,
            Self::Owned(_) | Self::SomeOwned(_) => matches!(older, Self::Owned(_) | Self::SomeOwned(_)),
            Self::Resolvers(_)
            | Self::Ipv6Route(_)
            | Self::Rules(_)
            | Self::LogLevel(_)
            | Self::Ask(_)
            | Self::Flows(_) => std::mem::discriminant(self) == std::mem::discriminant(older),
        }
    }

    /// Returns the messages, in order, for a changed list of the host's own addresses, of any length.
    #[must_use]
    pub fn owned(list: Vec<IpNet>) -> Vec<Self> {
        if list.len() <= SomeOwned::MOST {
            return vec![Self::Owned(list)];
        }
        SomeOwned::split(&list).map(Self::SomeOwned).collect()
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Resolvers(list) => lines(RESOLVERS, list),
            Self::Owned(list) => lines(OWNED, list),
            Self::SomeOwned(part) => lines(SOME_OWNED, &part.encode()),
            Self::Ipv6Route(exists) => lines(IPV6_ROUTE, &[exists]),
            Self::Rules(list) => lines(RULES, list),
            Self::Published(doors) => lines(PUBLISHED, &doors.iter().map(Door::encode).collect::<Vec<_>>()),
            Self::LogLevel(level) => lines(LOG_LEVEL, &[level]),
            Self::Ask(round) => lines(ASK, &[round]),
            Self::Flows(turn) => lines(FLOWS, &turn.encode()),
            Self::Capture(order) => lines(CAPTURE, &[order.encode()]),
        }
    }

    /// Returns the descriptors that are passed with the message.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Published(doors) => doors.iter().filter_map(Door::descriptor).collect(),
            Self::Capture(order) => order.descriptor().into_iter().collect(),
            Self::Resolvers(_)
            | Self::Owned(_)
            | Self::SomeOwned(_)
            | Self::Ipv6Route(_)
            | Self::Rules(_)
            | Self::LogLevel(_)
            | Self::Ask(_)
            | Self::Flows(_) => Vec::new(),
        }
    }

    /// Reads a message, and what came along with it.
    ///
    /// # Errors
    /// `InvalidData`: it is none.
    pub fn decode(message: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let text = std::str::from_utf8(message).map_err(|_| unknown(message))?;
        let mut lines = text.lines();
        let mut descriptors = descriptors.into_iter();
        match lines.next() {
            Some(RESOLVERS) => values(lines).map(Self::Resolvers),
            Some(OWNED) => values(lines).map(Self::Owned),
            Some(SOME_OWNED) => SomeOwned::decode(lines).map(Self::SomeOwned),
            Some(IPV6_ROUTE) => only(lines).map(Self::Ipv6Route),
            Some(RULES) => values(lines).map(Self::Rules),
            Some(PUBLISHED) => {
                let doors = lines.map(|line| Door::decode(line, &mut descriptors));
                doors.collect::<Option<_>>().map(Self::Published)
            }
            Some(LOG_LEVEL) => only(lines).map(Self::LogLevel),
            Some(ASK) => only(lines).map(Self::Ask),
            Some(FLOWS) => {
                let numbers: Option<Vec<u64>> = values(lines);
                numbers
                    .and_then(|numbers| Turn::decode(&numbers))
                    .map(Self::Flows)
            }
            Some(CAPTURE) => {
                let order = lines
                    .next()
                    .and_then(|line| Order::decode(line, &mut descriptors));
                order.filter(|_| lines.next().is_none()).map(Self::Capture)
            }
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
            Self::Flows(flows) => lines(FLOWS, &flows.encode()),
            Self::Captured(captured) => lines(CAPTURED, &captured.encode()),
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
        let mut lines = text.lines();
        match lines.next() {
            Some(STATS) => Stats::decode(lines).map(Self::Stats),
            Some(FLOWS) => Flows::decode(lines).map(Self::Flows),
            Some(CAPTURED) => Captured::decode(lines).map(Self::Captured),
            _ => None,
        }
        .ok_or_else(|| unknown(message))
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
        let refused = self.refused.iter().take(Refused::MOST);
        let refused = refused.map(|refused| format!("{REFUSED}{}", refused.encode()));
        let histograms = self.histograms.iter().map(Distribution::encode);
        let lists = refused.chain(histograms).chain(counters);
        let all: Vec<_> = head.into_iter().chain(lists).collect();
        lines(STATS, &all)
    }

    fn decode(lines: std::str::Lines<'_>) -> Option<Self> {
        let mut lines = lines.peekable();
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
            refused: std::iter::from_fn(|| lines.next_if(|line| line.starts_with(REFUSED)))
                .map(|line| Refused::decode(line.strip_prefix(REFUSED)?))
                .collect::<Option<_>>()?,
            histograms: std::iter::from_fn(|| lines.next_if(|line| line.starts_with(HISTOGRAM)))
                .map(Distribution::decode)
                .collect::<Option<_>>()?,
            counters: lines
                .map(|line| {
                    let (name, count) = line.split_once(' ')?;
                    Some((plain(name)?, count.parse().ok()?))
                })
                .collect::<Option<_>>()?,
        })
    }
}

impl Distribution {
    /// Returns the counts of `histogram`.
    #[must_use]
    pub fn of<const N: usize>(name: &str, histogram: &Histogram<N>) -> Self {
        Self {
            name: name.to_owned(),
            sum: histogram.sum(),
            counts: histogram.counts().collect(),
        }
    }

    fn encode(&self) -> String {
        let counts: String = self.counts.iter().map(|count| format!(" {count}")).collect();
        format!("{HISTOGRAM}{} {}{counts}", self.name, self.sum)
    }

    fn decode(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(HISTOGRAM)?.split(' ');
        Some(Self {
            name: plain(words.next()?)?,
            sum: words.next()?.parse().ok()?,
            counts: words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
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

/// The name of something that is counted. It is shown as it is: no terminal and no other format finds more in it.
fn plain(name: &str) -> Option<String> {
    let plain = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    (!name.is_empty() && name.bytes().all(plain)).then(|| name.to_owned())
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
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::Arc;
    use std::time::Duration;

    use pontoon_engine::config::{Protocol, Published};
    use pontoon_engine::flow_dump::{Flow, Page, Phase, Traffic};
    use pontoon_engine::{FlowId, Kind, WorkerId, egress};

    use super::*;

    #[test]
    fn out_and_back() {
        for update in [
            Update::Resolvers(vec![
                "192.0.2.1:53".parse().unwrap(),
                "[fe80::1%2]:53".parse().unwrap(),
            ]),
            Update::Resolvers(Vec::new()),
            Update::Owned(vec![
                "192.0.2.1/32".parse().unwrap(),
                "2001:db8::/64".parse().unwrap(),
            ]),
            Update::Rules(vec![
                "deny [2001:db8::/32]:25-26/tcp".parse().unwrap(),
                "allow *.example.org".parse().unwrap(),
            ]),
            Update::SomeOwned(SomeOwned {
                from: 7,
                of: 9,
                list: vec![
                    "192.0.2.0/24".parse().unwrap(),
                    "2001:db8::1/128".parse().unwrap(),
                ],
            }),
            Update::Ipv6Route(true),
            Update::LogLevel(LevelFilter::WARN),
            Update::Ask(u64::MAX),
            Update::Capture(Order::Stop(7)),
            Update::Flows(Turn {
                number: 7,
                worker: 3,
                from: u64::MAX,
            }),
        ] {
            assert_eq!(Update::decode(&update.encode(), Vec::new()).unwrap(), update);
        }
        let stats = Stats {
            round: 7,
            worker: 3,
            flows: 12,
            pool_bytes: 65_536,
            rules: vec![0, 5],
            refused: vec![Refused {
                port: Published {
                    protocol: Protocol::Udp,
                    host: "[::1]:53".parse().unwrap(),
                    guest_port: 5353,
                },
                why: "no more room".to_owned(),
            }],
            histograms: vec![Distribution {
                name: "connect_times".to_owned(),
                sum: u64::MAX,
                counts: vec![0, 7, 1],
            }],
            counters: vec![("frames_up".to_owned(), 9), ("frames_down".to_owned(), 0)],
        };
        let flow = |remote: Option<&str>| Flow {
            id: FlowId {
                kind: Kind::Udp,
                worker: WorkerId(3),
                index: 70_000,
                generation: 9,
            },
            protocol: egress::EgressProtocol::Udp,
            guest: "[fd70:6f6e:746f::15]:53".parse().unwrap(),
            remote: remote.map(|remote| remote.parse().unwrap()),
            came_in: remote.is_some(),
            phase: Phase::TimeWait,
            age: Duration::from_millis(1_234),
            traffic: Traffic {
                up: 5,
                down: u64::MAX,
            },
        };
        let page = |next| Page {
            flows: vec![flow(None), flow(Some("192.0.2.1:999"))],
            next,
        };
        for report in [
            Report::Flows(Flows {
                number: 7,
                page: page(Some(u64::MAX)),
            }),
            Report::Flows(Flows {
                number: 8,
                page: page(None),
            }),
            Report::Ready,
            Report::Captured(Captured {
                number: 3,
                frames: 9,
                dropped: 1,
                bytes: 4096,
                failed: true,
                why: "cannot write: no space".to_owned(),
            }),
            Report::Captured(Captured {
                number: 4,
                frames: 0,
                dropped: 0,
                bytes: 0,
                failed: false,
                why: "it was stopped".to_owned(),
            }),
            Report::Stats(stats),
            Report::Stats(Stats::default()),
        ] {
            assert_eq!(Report::decode(&report.encode()).unwrap(), report);
        }
    }

    #[test]
    fn sockets_go_along_with_their_ports() {
        let published = |host: &str, guest_port| Published {
            protocol: Protocol::Udp,
            host: host.parse().unwrap(),
            guest_port,
        };
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let (sent, received) = (Arc::new(null()), null());
        let number = received.as_raw_fd();
        let update = Update::Published(vec![
            Door::Close(published("127.0.0.1:80", 80)),
            Door::Open(published("[::]:81", 8081), sent.into()),
            Door::Lead(published("0.0.0.0:82", 8082)),
        ]);
        assert_eq!(update.descriptors().len(), 1);
        // A port without its socket is decoded as another variant.
        let lost = Update::decode(&update.encode(), Vec::new()).unwrap();
        assert!(
            matches!(&lost, Update::Published(doors) if doors[1] == Door::Lost(published("[::]:81", 8081))),
            "{lost:?}"
        );
        let Update::Published(doors) = Update::decode(&update.encode(), vec![received]).unwrap() else {
            panic!("another update");
        };
        let [Door::Close(_), Door::Open(opened, socket), Door::Lead(_)] = &doors[..] else {
            panic!("{doors:?}");
        };
        assert_eq!(
            (*opened, socket.as_fd().as_raw_fd()),
            (published("[::]:81", 8081), number)
        );
    }

    #[test]
    fn a_file_goes_along_with_its_capture() {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        for (size, time) in [(None, None), (Some(9), Some(Duration::from_millis(7)))] {
            let start = |file: OwnedFd| Start {
                number: 2,
                file: Arc::new(file).into(),
                snap: 96,
                size,
                time,
            };
            let update = Update::Capture(Order::Start(start(null())));
            let received = null();
            let number = received.as_raw_fd();
            let decoded = Update::decode(&update.encode(), vec![received]).unwrap();
            let Update::Capture(Order::Start(got)) = decoded else {
                panic!("{decoded:?}");
            };
            assert_eq!((got.number, got.snap, got.size, got.time), (2, 96, size, time));
            assert_eq!(got.file.as_fd().as_raw_fd(), number);
        }
    }

    #[test]
    fn refuses_everything_else() {
        for message in [
            "",
            "owned\n192.0.2",
            "resolvers\n192.0.2.1",
            "owned 192.0.2.1",
            "some owned\n0\n192.0.2.1",
            "some owned\n0\n1\n192.0.2",
            "rules\nallow",
            "log level\nloud",
            "ask",
            "ask\n1\n2",
            "published\nclose sctp 0.0.0.0:80 80",
            "published\nclose tcp 0.0.0.0:80 80 80",
            "flows\n1\n256\n3",
            "flows\n1\n2",
            "capture\nstart 1 96 - -",
            "capture\nstop 1 2",
            "capture\nstop 1\nstop 2",
            "engine ready",
        ] {
            assert!(
                Update::decode(message.as_bytes(), Vec::new()).is_err(),
                "{message:?}"
            );
        }
        assert!(Update::decode(b"owned\n\xff", Vec::new()).is_err());
        for message in [
            "engine ready\n",
            "stats\n1\n2\n3\n4",
            "stats\n1\n256\n3\n4\nhits",
            "stats\n1\n2\n3\n4\nhits\nname",
            "stats\n1\n2\n3\n4\nhits\nrefused tcp 0.0.0.0:80 80",
            "stats\n1\n2\n3\n4\nhits\nhistogram a",
            "stats\n1\n2\n3\n4\nhits\nhistogram a 1 x",
            "stats\n1\n2\n3\n4\nhits\nname 1\nhistogram a 1 2",
            "stats\n1\n2\n3\n4\nhits\n 1",
            "stats\n1\n2\n3\n4\nhits\n\u{1b}[2J 1",
            "stats\n1\n2\n3\n4\nhits\nname\"} 1",
            "stats\n1\n2\n3\n4\nhits\nhistogram a\r 1 2",
            "captured\n1\n2\n3\n4",
            "flows\n1",
            "flows\n1\n-\n0 tcp 10.0.2.15:1 - out open 0 0",
            "flows\n1\n-\n0 tcp 10.0.2.15:1 - out opened 0 0 0",
        ] {
            assert!(Report::decode(message.as_bytes()).is_err(), "{message:?}");
        }
    }
}
