//! Messages between supervisor and worker, as text. Some carry a descriptor to the worker.
//!
//! The first one is [`Start`](Message::Start). Inputs and outputs are added and removed one by one. Changes of rules take
//! effect together at the next [`Commit`](Message::Commit).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::time::Duration;

use pontoon_relay::Rule;
use pontoon_relay::membership::{MAX_SOURCES, SourceFilter};
use pontoon_sys::packet::Size;

/// Limit on the bytes of a message.
pub const MAX_LEN: usize = 16 << 10;

/// The report of a worker that has entered the sandbox. A worker that fails reports the reason as text and exits.
pub const READY: &str = "ready";

/// A message, without its descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// First message, with the memory of the counters.
    Start(Settings),
    /// Receives from a ring or socket, whose descriptor comes along.
    Input(Input),
    /// Stops receiving from an input.
    RemoveInput(u32),
    /// Sends through a socket, which comes along. It replaces the socket of the same number.
    Output(Output),
    /// Removes an output.
    RemoveOutput(u32),
    /// Adds a rule at the next commit.
    Rule(Box<RuleEntry>),
    /// Removes the rule of this row of counters at the next commit.
    RemoveRule(u32),
    /// Applies the changes of rules since the last commit.
    Commit,
    /// Runs an IGMP/MLD querier on a packet socket, whose descriptor comes along.
    Querier(Querier),
    /// Changes the source address of a querier's queries; without one it sends none.
    QuerierAddress(u32, Option<IpAddr>),
    /// Stops a querier.
    RemoveQuerier(u32),
    /// Sets the source filter of a group. The worker reports it to the supervisor, which restores it in the worker's successor.
    Member(Member),
}

/// An IGMP/MLD querier of one interface and family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Querier {
    /// Number of the querier.
    pub id: u32,
    /// Index of the interface.
    pub interface: u32,
    /// Source address of queries.
    pub address: IpAddr,
    /// Time until its restored memberships expire unless hosts report them. The unit on the wire is milliseconds.
    pub restored_for: Duration,
}

/// The source filter of a group at a querier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of the querier.
    pub querier: u32,
    /// The group.
    pub group: IpAddr,
    /// The senders from which it is wanted.
    pub filter: SourceFilter,
}

/// Settings that do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time that a datagram may wait for others.
    pub max_delay: Duration,
    /// Send several datagrams by one call (`UDP_SEGMENT`).
    pub segment: bool,
}

/// A ring or socket to receive from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Number of the input.
    pub id: u32,
    /// Number of the table of rules in which datagrams are looked up.
    pub table: u32,
    /// Row of counters.
    pub row: u32,
    /// Kind of the input.
    pub kind: Kind,
}

/// Kind of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A packet socket with a ring.
    Ring {
        /// Size of the ring.
        size: Size,
        /// Another process has received from it before.
        used: bool,
    },
    /// A UDP socket that is bound to this port.
    Socket(u16),
}

/// A socket to send through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Number of the output.
    pub id: u32,
    /// True for IPv6.
    pub v6: bool,
    /// True if the destination is a group.
    pub multicast: bool,
}

/// A rule with its rows of counters and the numbers of its outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEntry {
    /// Number of the table.
    pub table: u32,
    /// Row of counters of the rule.
    pub row: u32,
    /// For each output of the rule its row of counters and its number.
    pub outputs: Vec<(u32, u32)>,
    /// The rule.
    pub rule: Rule,
}

impl Message {
    /// Encodes the message as text.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let text = match self {
            Self::Start(settings) => {
                let (delay, segment) = (settings.max_delay.as_micros(), u8::from(settings.segment));
                format!("begin {delay} {segment}")
            }
            Self::Input(Input { id, table, row, kind }) => match kind {
                Kind::Ring { size, used } => {
                    let ([slots, bytes], used) = (size.parts(), u8::from(*used));
                    format!("ring {id} {table} {row} {slots} {bytes} {used}")
                }
                Kind::Socket(port) => format!("socket {id} {table} {row} {port}"),
            },
            Self::RemoveInput(id) => format!("no-input {id}"),
            Self::Output(Output { id, v6, multicast }) => {
                format!("output {id} {} {}", u8::from(*v6), u8::from(*multicast))
            }
            Self::RemoveOutput(id) => format!("no-output {id}"),
            Self::Rule(entry) => {
                let mut text = format!("rule {} {}", entry.table, entry.row);
                for (row, output) in &entry.outputs {
                    text.push_str(&format!(" {row} {output}"));
                }
                format!("{text}\n{}", entry.rule)
            }
            Self::RemoveRule(row) => format!("no-rule {row}"),
            Self::Commit => "commit".to_owned(),
            Self::Querier(Querier {
                id,
                interface,
                address,
                restored_for,
            }) => format!("querier {id} {interface} {address} {}", restored_for.as_millis()),
            Self::QuerierAddress(id, address) => match address {
                Some(address) => format!("querier-address {id} {address}"),
                None => format!("querier-address {id}"),
            },
            Self::RemoveQuerier(id) => format!("no-querier {id}"),
            Self::Member(member) => member.encode(),
        };
        text.into_bytes()
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// `InvalidData`: the text is not a message.
    pub fn decode(message: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(message).ok();
        text.and_then(decode).ok_or_else(|| {
            let begin = String::from_utf8_lossy(message.get(..64).unwrap_or(message)).into_owned();
            io::Error::new(io::ErrorKind::InvalidData, format!("unknown message {begin:?}"))
        })
    }

    /// Returns true if a descriptor comes with the message.
    #[must_use]
    pub fn has_descriptor(&self) -> bool {
        match self {
            Self::Start(_) | Self::Input(_) | Self::Output(_) | Self::Querier(_) => true,
            Self::RemoveInput(_)
            | Self::RemoveOutput(_)
            | Self::Rule(_)
            | Self::RemoveRule(_)
            | Self::Commit
            | Self::QuerierAddress(..)
            | Self::RemoveQuerier(_)
            | Self::Member(_) => false,
        }
    }
}

fn decode(text: &str) -> Option<Message> {
    let (line, rest) = text
        .split_once('\n')
        .map_or((text, None), |(line, rest)| (line, Some(rest)));
    let (word, arguments) = line.split_once(' ').unwrap_or((line, ""));
    if let Some(message) = decode_querier(word, arguments) {
        return Some(message);
    }
    let mut numbers = arguments.split_whitespace().map(u32::from_str);
    let mut next = || numbers.next()?.ok();
    let message = match word {
        "begin" => Message::Start(Settings {
            max_delay: Duration::from_micros(next()?.into()),
            segment: next()? == 1,
        }),
        "ring" => Message::Input(Input {
            id: next()?,
            table: next()?,
            row: next()?,
            kind: Kind::Ring {
                size: Size::from_parts([next()?, next()?])?,
                used: next()? == 1,
            },
        }),
        "socket" => Message::Input(Input {
            id: next()?,
            table: next()?,
            row: next()?,
            kind: Kind::Socket(next()?.try_into().ok()?),
        }),
        "no-input" => Message::RemoveInput(next()?),
        "output" => Message::Output(Output {
            id: next()?,
            v6: next()? == 1,
            multicast: next()? == 1,
        }),
        "no-output" => Message::RemoveOutput(next()?),
        "rule" => {
            let rule: Rule = rest?.parse().ok()?;
            Message::Rule(Box::new(RuleEntry {
                table: next()?,
                row: next()?,
                outputs: rule
                    .outputs
                    .iter()
                    .map(|_| Some((next()?, next()?)))
                    .collect::<Option<_>>()?,
                rule,
            }))
        }
        "no-rule" => Message::RemoveRule(next()?),
        "commit" => Message::Commit,
        _ => return None,
    };
    numbers.next().is_none().then_some(message)
}

/// Decodes messages about queriers, whose arguments are a number and addresses.
fn decode_querier(word: &str, arguments: &str) -> Option<Message> {
    if word == "member" {
        return Member::decode_arguments(arguments).map(Message::Member);
    }
    let mut words = arguments.split_whitespace();
    let id: u32 = words.next()?.parse().ok()?;
    let message = match word {
        "querier" => Message::Querier(Querier {
            id,
            interface: words.next()?.parse().ok()?,
            address: words.next()?.parse().ok()?,
            restored_for: Duration::from_millis(words.next()?.parse::<u32>().ok()?.into()),
        }),
        "querier-address" => {
            let address = words.next().map(str::parse).transpose().ok()?;
            Message::QuerierAddress(id, address)
        }
        "no-querier" => Message::RemoveQuerier(id),
        _ => return None,
    };
    words.next().is_none().then_some(message)
}

impl Member {
    /// Decodes a worker's report of a membership; `None` if the report is another one.
    #[must_use]
    pub fn decode(report: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(report).ok()?;
        Self::decode_arguments(text.strip_prefix("member ")?)
    }

    fn decode_arguments(arguments: &str) -> Option<Self> {
        let mut words = arguments.split_whitespace();
        let querier = words.next()?.parse().ok()?;
        let group = words.next()?.parse().ok()?;
        let filter = match words.next()? {
            "any" => SourceFilter::Any,
            "from" => {
                let sources = words.by_ref().take(MAX_SOURCES);
                let sources = sources.map(|word| word.parse().ok());
                SourceFilter::Sources(sources.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        words.next().is_none().then_some(Self {
            querier,
            group,
            filter,
        })
    }

    fn encode(&self) -> String {
        let Self {
            querier,
            group,
            filter,
        } = self;
        match filter {
            SourceFilter::Any => format!("member {querier} {group} any"),
            SourceFilter::Sources(sources) => {
                let mut text = format!("member {querier} {group} from");
                for source in sources {
                    text.push_str(&format!(" {source}"));
                }
                text
            }
        }
    }
}

/// Decodes a message and checks that it has come with a descriptor if it needs one.
pub(crate) fn received(
    bytes: &[u8],
    mut descriptors: Vec<OwnedFd>,
) -> io::Result<(Message, Option<OwnedFd>)> {
    let message = Message::decode(bytes)?;
    let descriptor = descriptors.pop();
    if descriptor.is_some() != message.has_descriptor() || !descriptors.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "wrong number of descriptors",
        ));
    }
    Ok((message, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(filter: SourceFilter) -> Message {
        Message::Member(Member {
            querier: 5,
            group: "239.1.1.1".parse().unwrap(),
            filter,
        })
    }

    #[test]
    fn decodes_what_it_encodes() {
        let rule: Rule = "a 239.1.1.1:1 from 10.0.0.1 -> b 239.1.1.2:2 ttl 3, c *:*"
            .parse()
            .unwrap();
        for message in [
            Message::Start(Settings {
                max_delay: Duration::from_micros(100),
                segment: true,
            }),
            Message::Input(Input {
                id: 1,
                table: 2,
                row: 3,
                kind: Kind::Ring {
                    size: Size::new(4000, 1514),
                    used: true,
                },
            }),
            Message::Input(Input {
                id: 1,
                table: 2,
                row: 3,
                kind: Kind::Socket(65535),
            }),
            Message::RemoveInput(7),
            Message::Output(Output {
                id: 4,
                v6: true,
                multicast: false,
            }),
            Message::RemoveOutput(0),
            Message::Rule(Box::new(RuleEntry {
                table: 1,
                row: 2,
                outputs: vec![(3, 4), (5, 6)],
                rule,
            })),
            Message::RemoveRule(9),
            Message::Commit,
            Message::Querier(Querier {
                id: 1,
                interface: 2,
                address: "fe80::1".parse().unwrap(),
                restored_for: Duration::from_millis(260_000),
            }),
            Message::QuerierAddress(3, "10.0.0.1".parse().ok()),
            Message::QuerierAddress(3, None),
            Message::RemoveQuerier(4),
            member(SourceFilter::Any),
            member(SourceFilter::Sources(Vec::new())),
            member(SourceFilter::Sources(vec![
                "2001:db8::1".parse().unwrap();
                MAX_SOURCES
            ])),
        ] {
            assert!(message.encode().len() <= MAX_LEN);
            assert_eq!(Message::decode(&message.encode()).unwrap(), message);
        }
    }

    #[test]
    fn refuses_malformed_messages() {
        for message in [
            "",
            "begin 100",
            "begin 100 1 1",
            "ring 1 2 3 100 2048 0",
            "ring 1 2 3 128 2048",
            "socket 1 2 3 65536",
            "output -1 0 0",
            "rule 1 2 3 4",
            "rule 1 2 3\na 239.1.1.1:1 -> b 239.1.1.2:2",
            "commit 1",
            "querier 1 2",
            "querier 1 2 fe80::1",
            "querier 1 2 fe80::1 -1",
            "querier 1 2 fe80::1 3 4",
            "querier-address 1 x",
            "no-querier",
            "member 1 239.1.1.1",
            "member 1 239.1.1.1 some",
            "member 1 239.1.1.1 any 10.0.0.1",
            "member 1 239.1.1.1 from x",
            "end",
        ] {
            assert!(Message::decode(message.as_bytes()).is_err(), "{message:?}");
        }
        let sources = " 10.0.0.1".repeat(MAX_SOURCES + 1);
        let too_many = format!("member 1 239.1.1.1 from{sources}");
        assert!(Message::decode(too_many.as_bytes()).is_err());
        let wrong = |message: Message| received(&message.encode(), Vec::new()).is_err();
        assert!(wrong(Message::Output(Output {
            id: 0,
            v6: false,
            multicast: true
        })));
        assert!(!wrong(Message::Commit));
        assert_eq!(Member::decode(b"commit"), None);
    }
}
