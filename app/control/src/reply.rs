//! JSON types of the replies of the control socket.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Body of the response to `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Statistics of each worker, by index.
    pub workers: Vec<WorkerStats>,
    /// Sum of the statistics of all workers.
    pub total: WorkerStats,
}

/// Statistics of a worker. Counters continue when the engine is restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Number of current flows.
    pub flows: u64,
    /// Bytes of memory, in blocks of 64 KiB, that hold data which remote hosts have not accepted yet, or which arrived out
    /// of order.
    pub pool_bytes: u64,
    /// Values of the counters by their name.
    pub counters: BTreeMap<String, u64>,
}

/// Body of `GET` and `PUT /v1/policy`: the egress rules and their hits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Egress rules, in order.
    pub rules: Vec<Rule>,
    /// Number of flows that were refused because no allow rule matches their destination.
    pub unlisted: u64,
    /// Number of flows to resolvers other than the DNS forwarder that were refused because rules name domains.
    pub resolvers: u64,
}

/// Egress rule and the number of its hits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Action of the rule: `allow` or `deny`.
    pub action: String,
    /// Destinations, in the syntax of the options `--allow` and `--deny`.
    pub to: String,
    /// Number of packets that the rule has matched.
    pub hits: u64,
}

/// Body of the response to `GET /v1/publish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Published ports in the syntax of the option `--publish`, one entry for each host socket.
    pub published: Vec<String>,
    /// Values of `--publish` with `auto`, which publish the ports on which the guest listens.
    #[serde(default)]
    pub auto: Vec<String>,
    /// Ports that these values publish now, one entry for each host socket.
    #[serde(default)]
    pub found: Vec<String>,
}

/// Body of the response to `GET /v1/guest-forward`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestForwards {
    /// Values of `--guest-forward` that name ports.
    pub forwards: Vec<String>,
    /// Values with `auto`, which forward to the ports on which the host listens.
    pub auto: Vec<String>,
    /// Ports that these values forward now.
    pub found: Vec<String>,
}

/// Body of the responses to `POST /v1/publish` and `POST /v1/guest-forward`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishChange {
    /// Ports or values that are new, and ports whose destination has changed.
    pub added: Vec<String>,
    /// Ports or values that were removed.
    pub removed: Vec<String>,
}

/// Body of the response to `GET /v1/flows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// Current flows, in no particular order.
    pub flows: Vec<Flow>,
}

/// Body of the responses to `DELETE /v1/flows/{id}` and `POST /v1/flows/kill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsEnded {
    /// Number of flows that were ended.
    pub ended: u64,
}

/// Current flow: a TCP connection, a UDP endpoint of the guest, or an ICMP echo identifier of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Identifier of the flow, unique among current flows.
    pub id: String,
    /// Index of the worker that owns the flow.
    pub worker: u8,
    /// Protocol of the flow: `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// Address and port of the guest; for ICMP echo, the port is the echo identifier.
    pub guest: SocketAddr,
    /// Address and port of the remote host as the guest sees them; for UDP, those of the last datagram.
    pub remote: Option<SocketAddr>,
    /// Direction of the flow: `out`, or `in` if it was opened through a published port.
    pub direction: String,
    /// State of the flow: `connecting`, `handshake`, `open`, `unanswered`, `closing`, `time-wait` or `failed`.
    pub state: String,
    /// Age of the flow in milliseconds.
    pub age_ms: u64,
    /// Number of payload bytes from the guest.
    pub bytes_up: u64,
    /// Number of payload bytes to the guest.
    pub bytes_down: u64,
}

/// Line of the response to `GET /v1/decisions`: a request for a decision about a new flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Number of the request.
    pub token: u64,
    /// Protocol of the flow: `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// Direction of the flow: `out`, or `in` for a client of a published port.
    pub direction: String,
    /// Address and port of the guest's end; for ICMP echo, the port is the echo identifier.
    pub guest: SocketAddr,
    /// Destination as the guest has sent it; `null` for a client. The port is 0 for ICMP echo.
    pub destination: Option<SocketAddr>,
    /// Host address and port of the published port; `null` unless the direction is `in`.
    pub published: Option<SocketAddr>,
    /// Address and port on the host's side: the destination after translation, or the client.
    pub remote: SocketAddr,
    /// The egress rule that allows the flow; `null` if there are no allow rules.
    pub rule: Option<String>,
    /// Time within which the verdict has to arrive, in milliseconds.
    pub deadline_ms: u64,
}

/// Body of the response to `GET /v1/relay/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRules {
    /// Rules of the relay, in the order in which they were added.
    pub rules: Vec<RelayRule>,
}

/// Rule of a relay, and whether it is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRule {
    /// The rule in the syntax of the option `--rule`.
    pub rule: String,
    /// Interfaces for which the rule waits, each with the reason.
    pub waits: Vec<String>,
}

/// Body of the response to `POST /v1/relay/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayChange {
    /// Rules that were added.
    pub added: Vec<RelayRule>,
    /// Rules that were removed.
    pub removed: Vec<String>,
}

/// Body of the responses to `GET`, `POST` and `DELETE /v1/capture`: the capture that runs, or ran last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// True while the capture runs.
    pub running: bool,
    /// Path of the capture's file; `None` if there was no capture.
    pub file: Option<String>,
    /// Number of frames in the file since the engine's start, once the capture has ended.
    pub frames: u64,
    /// Number of frames that were dropped because they arrived faster than they could be written, once the capture has
    /// ended.
    pub dropped: u64,
    /// Size of the file in bytes, once the capture has ended.
    pub bytes: u64,
    /// Reason why the capture has ended.
    pub ended: Option<String>,
}

/// Body of `GET` and `PUT /v1/log-level`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// Least severe level of log lines that are written.
    pub level: Level,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Failures of Pontoon.
    Error,
    /// Conditions that the user should know of, such as a restart of the engine.
    Warn,
    /// Normal events; the default level.
    Info,
    /// Details that `-v` adds.
    Debug,
    /// Details that `-vv` adds.
    Trace,
}

impl Level {
    /// All levels, with the most severe first.
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

/// Body of each response whose status is not 200.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Description of the error in one line.
    pub error: String,
}
