//! The interface of the load client: jobs and messages.
//!
//! The client is `pontoon-bench load-client SERVER JOB` inside the stack under test, with JOB as JSON. On its standard
//! output it writes one [`JobMessage`] per line, as JSON. It begins to measure when it has written `Begin`, and after
//! `End` it waits for the end of its standard input, so that the harness can read counters of exactly that interval.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::schema::Histogram;

/// The work of one measurement. Sizes are in bytes, times in nanoseconds, rates per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Job {
    /// Bytes one way over `streams` connections, a thread each. Every 512 bytes carry their position, which the
    /// receiver checks.
    Stream { direction: Direction, streams: u16 },
    /// `bytes` one way over one connection, untimed. Both ends hash all of them.
    Hash { direction: Direction, bytes: u64 },
    /// One byte to the server and back, on one connection.
    RoundTrip,
    /// Connect, one byte to the server and back, close, by `clients` processes.
    Connect { clients: u16 },
    /// The server connects to `address`, where the guest's port `port` is published, and the client answers: connect,
    /// one byte to the client and back, close. Times are the server's.
    PublishConnect { address: IpAddr, port: u16 },
    /// Datagrams of `size`, at `rate`, or as fast as possible without one.
    Datagrams { size: u16, rate: Option<f64> },
    /// `segments` datagrams of `size` in each send (`UDP_SEGMENT`); the server receives them with `UDP_GRO` or one by
    /// one.
    SegmentedDatagrams { size: u16, segments: u16, gro: bool },
    /// A datagram to the server and back.
    DatagramRoundTrip,
    /// `RoundTrip` with `pending` connections to `address`, which never answers, in SYN-SENT.
    Blackhole { pending: u32, address: IpAddr },
    /// `RoundTrip` with `flows` idle connections to the server open. Opening them may take a millisecond each beyond
    /// the usual deadline.
    IdleFlows { flows: u32 },
    /// DNS queries to `resolver` for names that no cache knows, one after the other.
    Names { resolver: IpAddr },
    /// ICMP echo requests to `address`, one after the other.
    Echo { address: IpAddr },
    /// No work: the stack's idle cost is read meanwhile.
    Idle,
}

/// The direction of a transfer. Up is from the guest to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Up,
    Down,
}

/// A job, its duration, and the server's ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    pub job: Job,
    pub ports: ServerPorts,
    /// Seconds of the job before the measurement, whose results are discarded.
    pub warm_up: f64,
    /// Seconds of the measurement.
    pub duration: f64,
    /// Seconds without progress after which the job ends with `Stalled`.
    pub timeout: f64,
}

/// The server's ports, all chosen by its kernel. It writes them as a line of JSON to its standard output when it is
/// ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerPorts {
    /// TCP: the control connection of a job, which lasts as long as the job.
    pub control: u16,
    /// TCP: receives the session's number (eight bytes), then stamped bytes, which it checks and counts.
    pub sink: u16,
    /// TCP: receives the session's number, then sends stamped bytes until the peer closes.
    pub source: u16,
    /// TCP: echoes bytes.
    pub echo: u16,
    /// TCP: echoes one byte and closes; served in the accepting thread.
    pub connect: u16,
    /// TCP: keep idle connections while a job wants them. There are several, as one port of the server has room for
    /// fewer connections than the job may open: one for each port of the client.
    pub idle: [u16; Self::IDLE],
    /// UDP: counts datagrams that begin with the session's number.
    pub datagram_sink: u16,
    /// UDP: the same with `UDP_GRO`.
    pub datagram_run_sink: u16,
    /// UDP: echoes datagrams.
    pub datagram_echo: u16,
}

impl ServerPorts {
    /// The number of ports for idle connections.
    pub const IDLE: usize = 8;
}

/// A message of the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum JobMessage {
    /// The warm-up is over, and the measurement begins.
    Begin,
    /// The measurement is over.
    End(JobResults),
    /// There was no progress within the deadline.
    Stalled { at_byte: u64 },
    /// The job is not possible here: a limit of descriptors or ports, a refused socket option.
    Unreachable { why: String },
    /// An error: a wrong byte, a wrong hash, a lost connection.
    Failed { why: String },
}

/// Figures by name; [`crate::schema::METRICS`] lists the names with their units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobResults {
    pub values: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, Histogram>,
    /// Congestion control of the client's sockets and of the server's accepted ones, if the job has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<[String; 2]>,
}
