//! Messages between the supervisor and a relay worker. Some messages to the worker carry a descriptor.
//!
//! The first message is [`Start`](RelayUpdate::Start). Inputs and outputs are added and removed singly. Changes of rules
//! take effect together at the next [`Commit`](RelayUpdate::Commit).

use std::net::IpAddr;
use std::time::Duration;

use pontoon_ipc::{Channel, ChannelMessage, Descriptor, ProcessReport, ReportKind, text};
use pontoon_relay::Rule;
use pontoon_relay::membership::{MAX_SOURCES, SourceFilter};
use pontoon_sys::packet::Size;
use serde::{Deserialize, Serialize};

/// Limit on the size of a message to a worker in bytes.
pub const MAX_LEN: usize = 16 << 10;

/// Limit on the size of a report in bytes: a line of text, or a group with its sources.
pub const MAX_REPORT: usize = 4096;

/// Limit on the text of an error in a report in bytes; escaped characters make the report longer.
const MAX_ERROR: usize = 512;

/// Worker's end of its channel to the supervisor.
pub type WorkerChannel = Channel<RelayReport, RelayUpdate>;

/// Supervisor's end of its channel to a worker.
pub type ControlChannel = Channel<RelayUpdate, RelayReport>;

/// Message of the supervisor to a relay worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayUpdate {
    /// First message, with the settings and the memory of the counters.
    Start(Settings, Descriptor),
    /// Receive from this ring or socket.
    Input(InputConfig, Descriptor),
    /// Stop receiving from the input with this number.
    RemoveInput(u32),
    /// Send through this socket. It replaces the socket of the same number.
    Output(OutputConfig, Descriptor),
    /// Remove the output with this number.
    RemoveOutput(u32),
    /// Add a rule at the next commit.
    Rule(Box<RuleEntry>),
    /// Remove the rule with this row of counters at the next commit.
    RemoveRule(u32),
    /// Apply the changes of rules since the last commit.
    Commit,
    /// Run an IGMP/MLD querier on this packet socket.
    Querier(QuerierConfig, Descriptor),
    /// Change the source address of the queries of the querier with this number; without an address it sends none.
    QuerierAddress(u32, Option<IpAddr>),
    /// Stop the querier with this number.
    RemoveQuerier(u32),
    /// Restore the source filter of a group, which a predecessor of the worker has reported.
    Member(Member),
}

/// Report of a relay worker to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayReport {
    /// The worker has entered the sandbox.
    Ready,
    /// The source filter of a group has changed. The supervisor restores it in the worker's successor.
    Member(Member),
    /// The worker exits because of this error.
    Failed(String),
}

/// Configuration of an IGMP/MLD querier of one interface and family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuerierConfig {
    /// Number of the querier.
    pub id: u32,
    /// Index of the interface on which the querier runs.
    pub interface: u32,
    /// Source address of queries.
    pub address: IpAddr,
    /// Time until the querier's restored memberships expire unless hosts report them.
    pub restored_for: Duration,
}

/// Source filter of a multicast group at a querier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Number of the querier.
    pub querier: u32,
    /// Address of the multicast group.
    pub group: IpAddr,
    /// Senders from which hosts want to receive the group (RFC 3376 section 3).
    #[serde(with = "SourceFilterVariants")]
    pub filter: SourceFilter,
}

/// Variants of [`SourceFilter`], for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "SourceFilter", rename_all = "snake_case")]
enum SourceFilterVariants {
    Any,
    Sources(Vec<IpAddr>),
}

/// Settings of a relay worker that do not change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Limit on the time for which a datagram waits for others, to be sent with them.
    pub max_delay: Duration,
    /// True if several datagrams are sent by one system call (`UDP_SEGMENT`).
    pub segment: bool,
}

/// Configuration of a ring or socket to receive from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputConfig {
    /// Number of the input, by which it is removed.
    pub id: u32,
    /// Number of the table of rules in which datagrams are looked up.
    pub table: u32,
    /// Row of counters in which the input counts.
    pub row: u32,
    /// Kind of socket of the input.
    pub kind: InputKind,
}

/// Kind of socket of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// Packet socket with a ring.
    Ring {
        /// Size of the ring.
        #[serde(with = "size")]
        size: Size,
        /// True if another process has received from the ring before.
        used: bool,
    },
    /// UDP socket that is bound to this port.
    Socket(u16),
}

/// Configuration of a socket to send through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    /// Number of the output, to which rules refer.
    pub id: u32,
    /// True if the socket is an IPv6 socket.
    pub v6: bool,
    /// True if the destination is a multicast group.
    pub multicast: bool,
}

/// Rule with its rows of counters and the numbers of its outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleEntry {
    /// Number of the table that the rule is added to.
    pub table: u32,
    /// Row of counters in which the rule counts.
    pub row: u32,
    /// Row of counters and number of each output of the rule.
    pub outputs: Vec<(u32, u32)>,
    /// Rule that is added.
    #[serde(with = "text")]
    pub rule: Rule,
}

impl RelayUpdate {
    fn descriptor(&self) -> Option<&Descriptor> {
        match self {
            Self::Start(_, descriptor)
            | Self::Input(_, descriptor)
            | Self::Output(_, descriptor)
            | Self::Querier(_, descriptor) => Some(descriptor),
            _ => None,
        }
    }

    fn descriptor_mut(&mut self) -> Option<&mut Descriptor> {
        match self {
            Self::Start(_, descriptor)
            | Self::Input(_, descriptor)
            | Self::Output(_, descriptor)
            | Self::Querier(_, descriptor) => Some(descriptor),
            _ => None,
        }
    }
}

impl ChannelMessage for RelayUpdate {
    const MAX_LEN: usize = MAX_LEN;

    fn descriptors(&self) -> Vec<&Descriptor> {
        self.descriptor().into_iter().collect()
    }

    fn descriptors_mut(&mut self) -> Vec<&mut Descriptor> {
        self.descriptor_mut().into_iter().collect()
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Rule(entry) => entry.outputs.len() == entry.rule.outputs.len(),
            Self::Member(member) => member.is_valid(),
            _ => true,
        }
    }
}

impl ProcessReport for RelayReport {
    const MAX_ERROR: usize = MAX_ERROR;

    fn failure(text: String) -> Self {
        Self::Failed(text)
    }

    fn classify(self) -> ReportKind<Self> {
        match self {
            Self::Ready => ReportKind::Ready,
            Self::Failed(text) => ReportKind::Failed(text),
            other => ReportKind::Other(other),
        }
    }
}

impl ChannelMessage for RelayReport {
    const MAX_LEN: usize = MAX_REPORT;

    fn is_valid(&self) -> bool {
        match self {
            Self::Ready => true,
            Self::Member(member) => member.is_valid(),
            Self::Failed(text) => text.len() <= MAX_ERROR,
        }
    }
}

impl Member {
    fn is_valid(&self) -> bool {
        !matches!(&self.filter, SourceFilter::Sources(sources) if sources.len() > MAX_SOURCES)
    }
}

/// Serialization of [`Size`] as its parts, which are checked when they are received.
mod size {
    use pontoon_sys::packet::Size;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(size: &Size, serializer: S) -> Result<S::Ok, S::Error> {
        size.parts().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        let parts = <[u32; 2]>::deserialize(deserializer)?;
        Size::from_parts(parts).ok_or_else(|| D::Error::custom("impossible size of a ring"))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::OwnedFd;

    use pontoon_ipc::{decode, encode};

    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn member(filter: SourceFilter) -> Member {
        Member {
            querier: u32::MAX,
            group: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap(),
            filter,
        }
    }

    /// Returns the IPv6 address with the longest text, for the test of the longest message.
    fn source() -> IpAddr {
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe".parse().unwrap()
    }

    #[test]
    fn decoded_updates_equal_the_encoded_ones() {
        let rule: Rule = "a 239.1.1.1:1 from 10.0.0.1 -> b 239.1.1.2:2 ttl 3, c *:*"
            .parse()
            .unwrap();
        let descriptor = Descriptor::default;
        let input = |kind| {
            let config = InputConfig {
                id: 1,
                table: 2,
                row: 3,
                kind,
            };
            RelayUpdate::Input(config, descriptor())
        };
        for update in [
            RelayUpdate::Start(
                Settings {
                    max_delay: Duration::from_micros(100),
                    segment: true,
                },
                descriptor(),
            ),
            input(InputKind::Ring {
                size: Size::new(4000, 1514),
                used: true,
            }),
            input(InputKind::Socket(65535)),
            RelayUpdate::RemoveInput(7),
            RelayUpdate::Output(
                OutputConfig {
                    id: 4,
                    v6: true,
                    multicast: false,
                },
                descriptor(),
            ),
            RelayUpdate::RemoveOutput(0),
            RelayUpdate::Rule(Box::new(RuleEntry {
                table: 1,
                row: 2,
                outputs: vec![(3, 4), (5, 6)],
                rule,
            })),
            RelayUpdate::RemoveRule(9),
            RelayUpdate::Commit,
            RelayUpdate::Querier(
                QuerierConfig {
                    id: 1,
                    interface: 2,
                    address: "fe80::1".parse().unwrap(),
                    restored_for: Duration::from_millis(260_000),
                },
                descriptor(),
            ),
            RelayUpdate::QuerierAddress(3, "10.0.0.1".parse().ok()),
            RelayUpdate::QuerierAddress(3, None),
            RelayUpdate::RemoveQuerier(4),
            RelayUpdate::Member(member(SourceFilter::Any)),
        ] {
            let has_descriptor = update.descriptor().is_some();
            let descriptors = has_descriptor.then(null).into_iter().collect();
            let bytes = encode(&update).unwrap();
            let mut decoded: RelayUpdate = decode(&bytes, descriptors).unwrap();
            if let Some(descriptor) = decoded.descriptor_mut() {
                assert!(descriptor.borrow().is_some());
                *descriptor = Descriptor::default();
            }
            assert_eq!(decoded, update);
            // Each message is refused with a descriptor too few or too many.
            let other = (!has_descriptor).then(null).into_iter().collect();
            assert!(decode::<RelayUpdate>(&bytes, other).is_err());
        }
    }

    #[test]
    fn decoded_reports_equal_the_encoded_ones() {
        for report in [
            RelayReport::Ready,
            RelayReport::Member(member(SourceFilter::Any)),
            RelayReport::Member(member(SourceFilter::Sources(Vec::new()))),
            RelayReport::Member(member(SourceFilter::Sources(vec![source(); MAX_SOURCES]))),
            RelayReport::failed(&io::Error::other("\u{1}".repeat(MAX_REPORT))),
        ] {
            let decoded: RelayReport = decode(&encode(&report).unwrap(), Vec::new()).unwrap();
            assert_eq!(decoded, report);
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        for message in [
            "",
            r#"{"start":[{"max_delay":100,"segment":true},null]}"#,
            r#"{"input":[{"id":1,"table":2,"row":3,"kind":{"ring":{"size":[100,2048],"used":false}}},null]}"#,
            r#"{"input":[{"id":1,"table":2,"row":3,"kind":{"ring":{"size":[128,2048]}}},null]}"#,
            r#"{"input":[{"id":1,"table":2,"row":3,"kind":{"socket":65536}},null]}"#,
            r#"{"output":[{"id":-1,"v6":false,"multicast":false},null]}"#,
            r#"{"remove_output":-1}"#,
            r#"{"rule":{"table":1,"row":2,"outputs":[],"rule":"a 239.1.1.1:1"}}"#,
            r#"{"rule":{"table":1,"row":2,"outputs":[],"rule":"a 239.1.1.1:1 -> b 239.1.1.2:2"}}"#,
            r#"{"commit":1}"#,
            r#"{"querier":[{"id":1,"interface":2},null]}"#,
            r#"{"querier_address":[1,"x"]}"#,
            r#"{"remove_querier":null}"#,
            r#"{"member":{"querier":1,"group":"239.1.1.1"}}"#,
            r#"{"member":{"querier":1,"group":"239.1.1.1","filter":"some"}}"#,
            r#"{"member":{"querier":1,"group":"239.1.1.1","filter":{"sources":["x"]}}}"#,
            r#""end""#,
        ] {
            for descriptors in [Vec::new(), vec![null()]] {
                let decoded = decode::<RelayUpdate>(message.as_bytes(), descriptors);
                assert!(decoded.is_err(), "{message}: {decoded:?}");
            }
        }
        let sources = SourceFilter::Sources(vec!["::1".parse().unwrap(); MAX_SOURCES + 1]);
        let bytes = encode(&RelayReport::Member(member(sources))).unwrap();
        assert!(decode::<RelayReport>(&bytes, Vec::new()).is_err());
        assert!(decode::<RelayReport>(b"\"commit\"", Vec::new()).is_err());
        assert!(decode::<RelayReport>(b"\"ready\"", vec![null()]).is_err());
    }
}
