//! JSON types of the replies of the control socket.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Each worker's.
    pub workers: Vec<WorkerStats>,
    /// The sum over all workers.
    pub total: WorkerStats,
}

/// Statistics of a worker. Counters continue when the engine is restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Current flows.
    pub flows: u64,
    /// Buffered bytes in blocks of 64 KiB: data that remote hosts have not accepted yet, and data received out of order.
    pub pool_bytes: u64,
    /// Counters, by name.
    pub counters: BTreeMap<String, u64>,
}

/// `GET` and `PUT /v1/policy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// Flows refused because no allow rule matches their destination.
    pub unlisted: u64,
    /// Flows to other resolvers that were refused because rules name domains.
    pub resolvers: u64,
}

/// An egress rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// `allow` or `deny`.
    pub action: String,
    /// Destinations, in the syntax of the options `--allow` and `--deny`.
    pub to: String,
    /// The number of matches.
    pub hits: u64,
}

/// `GET /v1/publish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Published ports in the syntax of the option `--publish`, one host socket each.
    pub published: Vec<String>,
}

/// The response to `POST /v1/publish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishChange {
    /// Newly published ports.
    pub added: Vec<String>,
    /// Ports that are no longer published.
    pub removed: Vec<String>,
}

/// `GET /v1/flows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// In no particular order.
    pub flows: Vec<Flow>,
}

/// A flow: a TCP connection, a UDP endpoint of the guest's, or an echo id of its.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Identifier, unique among current flows.
    pub id: String,
    /// Index of its worker.
    pub worker: u8,
    /// `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// The guest's address and port; for echo requests, the port is the identifier.
    pub guest: SocketAddr,
    /// The remote address and port as the guest sees them; for UDP, those of the last datagram.
    pub remote: Option<SocketAddr>,
    /// `out`, or `in` if it came through a published port.
    pub direction: String,
    /// `connecting`, `handshake`, `open`, `unanswered`, `closing`, `time-wait` or `failed`.
    pub state: String,
    /// Milliseconds since it began.
    pub age_ms: u64,
    /// Payload bytes from the guest.
    pub bytes_up: u64,
    /// Payload bytes to the guest.
    pub bytes_down: u64,
}

/// `GET /v1/relay/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRules {
    /// In the order in which they were added.
    pub rules: Vec<RelayRule>,
}

/// A rule of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRule {
    /// The rule in the syntax of the option `--rule`.
    pub rule: String,
    /// Interfaces that it waits for, each with the reason.
    pub waits: Vec<String>,
}

/// The response to `POST /v1/relay/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayChange {
    /// New rules.
    pub added: Vec<RelayRule>,
    /// Removed rules.
    pub removed: Vec<String>,
}

/// `GET`, `POST` and `DELETE /v1/capture`: the capture that runs or ran last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// True if it runs.
    pub running: bool,
    /// Path of its file; `None` if there was no capture.
    pub file: Option<String>,
    /// Frames in the file since the engine's start, once it has ended.
    pub frames: u64,
    /// Frames that were dropped because they arrived faster than they could be written, once it has ended.
    pub dropped: u64,
    /// Size of the file in bytes, once it has ended.
    pub bytes: u64,
    /// The reason why it has ended.
    pub ended: Option<String>,
}

/// `GET` and `PUT /v1/log-level`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// The least severe level that is logged.
    pub level: Level,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Failures of Pontoon.
    Error,
    /// Conditions that need attention.
    Warn,
    /// The default level.
    Info,
    /// Added by `-v`.
    Debug,
    /// Added by `-vv`.
    Trace,
}

impl Level {
    /// All levels, the most severe first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        })
    }
}

/// The body of every response with a status other than 200.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Description of the error in one line.
    pub error: String,
}
