//! What is said over the control socket, in JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Of each worker.
    pub workers: Vec<Worker>,
    /// Of all together.
    pub total: Worker,
}

/// What happened in a worker since its engine's start, and what it has now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Flows that there are.
    pub flows: u64,
    /// Bytes that hosts have not taken yet, and what came out of order, in blocks of 64 KiB.
    pub pool_bytes: u64,
    /// Counts, by name.
    pub counters: BTreeMap<String, u64>,
}

/// `GET /v1/policy`, and what `PUT /v1/policy` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// Destinations refused as no allow rule names them.
    pub unlisted: u64,
    /// Other resolvers refused as rules name domains.
    pub resolvers: u64,
}

/// An egress rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// `allow` or `deny`.
    pub action: String,
    /// What, as the options `--allow` and `--deny` take it.
    pub to: String,
    /// How often it was met.
    pub hits: u64,
}

/// `GET /v1/publish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Each as the option `--publish` takes it, one host socket each.
    pub published: Vec<String>,
}

/// What `POST /v1/publish` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishChange {
    /// What was not published before.
    pub added: Vec<String>,
    /// What is published no more.
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
    /// Its name, which no other flow has while it is there.
    pub id: String,
    /// Who has it.
    pub worker: u8,
    /// `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// The guest's end. Of echo requests, the port is the id.
    pub guest: SocketAddr,
    /// The other end as the guest knows it. Of UDP, who sent or was sent to last.
    pub remote: Option<SocketAddr>,
    /// `out`, or `in` by a published port.
    pub direction: String,
    /// `connecting`, `handshake`, `open`, `unanswered`, `closing`, `time-wait` or `failed`.
    pub state: String,
    /// Milliseconds since it began.
    pub age_ms: u64,
    /// Bytes of data from the guest.
    pub bytes_up: u64,
    /// Bytes of data to the guest.
    pub bytes_down: u64,
}

/// `GET /v1/relay/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRules {
    /// In the order in which they came.
    pub rules: Vec<RelayRule>,
}

/// A rule of a relay's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRule {
    /// As the option `--rule` takes it.
    pub rule: String,
    /// What it waits for: interfaces, and what is wrong with each.
    pub waits: Vec<String>,
}

/// What `POST /v1/relay/rules` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayChange {
    /// What was not there before.
    pub added: Vec<RelayRule>,
    /// What is there no more.
    pub removed: Vec<String>,
}

/// `GET`, `POST` and `DELETE /v1/capture`: the capture that runs, or ran last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// It runs.
    pub running: bool,
    /// Its file; none: there was no capture.
    pub file: Option<String>,
    /// Frames in the file since the engine's start, once it has ended.
    pub frames: u64,
    /// Frames that came faster than they could be written, once it has ended.
    pub dropped: u64,
    /// Bytes of the file, once it has ended.
    pub bytes: u64,
    /// Why it has ended.
    pub ended: Option<String>,
}

/// `GET` and `PUT /v1/log-level`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// What is said, and whatever is more urgent.
    pub level: Level,
}

/// How urgent something is that is said of what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// We failed.
    Error,
    /// Somebody should see to it.
    Warn,
    /// What `pontoon` says by itself.
    Info,
    /// What `-v` adds.
    Debug,
    /// What `-vv` adds.
    Trace,
}

impl Level {
    /// All of them, the most urgent first.
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

/// What every status but 200 has for a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong, in one line.
    pub error: String,
}
