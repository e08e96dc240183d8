//! What the load client is asked to do, and what it says.
//!
//! The client is `pontoon bench-client SERVER JOB` inside the stack under test, with JOB as JSON. On its standard output
//! it says one [`Message`] per line, as JSON; it begins to measure when it has said `Begin`, and after `End` it waits for the
//! end of its standard input, so that whoever started it can read counters of the very interval.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::schema::Histogram;

/// One measurement's work. Sizes are in bytes, times in nanoseconds, rates per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Job {
    /// Bytes one way over `streams` connections, a thread each; every 512 bytes carry their position, which the
    /// receiver checks.
    Stream { direction: Direction, streams: u16 },
    /// `bytes` one way over one connection, untimed; both ends hash all of them.
    Hash { direction: Direction, bytes: u64 },
    /// One byte there, one byte back, on one connection.
    RoundTrip,
    /// Connect, one byte there, one byte back, close: `clients` processes.
    Connect { clients: u16 },
    /// The server connects to `address`, where the guest's port `port` is published, and the client answers: connect,
    /// one byte there, one byte back, close. Times are the server's.
    PublishConnect { address: IpAddr, port: u16 },
    /// Datagrams of `size`, as fast as `rate` says, or flat out.
    Datagrams { size: u16, rate: Option<f64> },
    /// `segments` datagrams of `size` in each send (`UDP_SEGMENT`); the receiver takes them with `UDP_GRO` or one by one.
    SegmentedDatagrams { size: u16, segments: u16, gro: bool },
    /// A datagram there, a datagram back.
    DatagramRoundTrip,
    /// `RoundTrip` while `pending` connections to `address`, which never answers, are being made.
    Blackhole { pending: u32, address: IpAddr },
    /// `RoundTrip` while `flows` connections to the server are open and silent. Opening them may take a millisecond
    /// each beside the deadline of everything.
    IdleFlows { flows: u32 },
    /// Names that no cache knows, asked of `resolver`, one after the other.
    Names { resolver: IpAddr },
    /// ICMP echo to `address`, one after the other.
    Echo { address: IpAddr },
    /// Nothing: the client only stays, so that the stack's idle cost can be read.
    Idle,
}

/// Up is from the guest to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Up,
    Down,
}

/// How long to work, and where the server is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    pub job: Job,
    pub ports: Ports,
    /// Before the measurement, in seconds; its results are thrown away.
    pub warm_up: f64,
    /// In seconds.
    pub duration: f64,
}

/// The server's ports, all chosen by its kernel. It says them in a line of JSON on its standard output when it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    /// TCP: the conversation about a job; it begins with the job and lasts as long.
    pub control: u16,
    /// TCP: takes the job's number from the conversation (eight bytes), then stamped bytes, which it checks and counts.
    pub sink: u16,
    /// TCP: takes the job's number, then sends stamped bytes until the peer closes.
    pub source: u16,
    /// TCP: sends back what comes.
    pub echo: u16,
    /// TCP: takes a byte, sends it back, closes; served in the accepting thread.
    pub connect: u16,
    /// TCP: keep silent connections while a job wants them. Several, as one has fewer than a client has ports.
    pub idle: [u16; Self::IDLE],
    /// UDP: counts datagrams that begin with the job's number.
    pub datagram_sink: u16,
    /// UDP: the same, taking runs of them (`UDP_GRO`).
    pub datagram_run_sink: u16,
    /// UDP: sends datagrams back.
    pub datagram_echo: u16,
}

impl Ports {
    /// Ports for silent connections.
    pub const IDLE: usize = 8;
}

/// What a client says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "kebab-case")]
pub enum Message {
    /// The warm-up is over; the measurement begins.
    Begin,
    /// The measurement is over.
    End(JobResults),
    /// No progress within the deadline.
    Stalled { at_byte: u64 },
    /// The job cannot be done here: a limit of descriptors or ports, a refused socket option.
    Unreachable { why: String },
    /// Something that should not happen: a wrong byte, a wrong hash, a lost connection.
    Failed { why: String },
}

/// Results by name; [`crate::schema::METRICS`] lists the names with their units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobResults {
    pub values: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, Histogram>,
    /// Congestion control of the client's sockets and of the server's accepted ones, where the job has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<[String; 2]>,
}
