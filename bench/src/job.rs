//! The interface of the load client: jobs and messages.
//!
//! The harness runs `pontoon-bench load-client SERVER JOB` inside the stack under test, with JOB as JSON. The
//! client writes one [`JobMessage`] per line, as JSON, to its standard output. It begins to measure when it
//! has written `Begin`. After `End` it waits for the end of its standard input, so that the harness can read
//! counters of exactly the interval between the two messages.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::schema::Histogram;

/// Traffic of the load client in one measurement. Sizes are in bytes, times in nanoseconds, rates per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Job {
    /// Bulk transfer in one direction over `streams` TCP connections, with one thread for each. Every block
    /// of 512 bytes begins with its position in the stream, which the receiver checks.
    Stream { direction: Direction, streams: u16 },
    /// Transfer of `bytes` bytes over one TCP connection, untimed. Both ends hash all bytes and the hashes
    /// are compared.
    Hash { direction: Direction, bytes: u64 },
    /// Round trips of one byte over one TCP connection: the client sends a byte, and the server echoes it.
    RoundTrip,
    /// TCP connections one after the other: connect, one byte to the server and back, close. `clients`
    /// processes do so in parallel.
    Connect { clients: u16 },
    /// TCP connections from the server into the guest: connect to `address`, where the guest's port `port` is
    /// published, one byte to the client and back, close. The server measures the times.
    PublishConnect { address: IpAddr, port: u16 },
    /// Round trips of one byte over one TCP connection from the server into the guest, as for `PublishConnect`.
    PublishRoundTrip { address: IpAddr, port: u16 },
    /// `Stream` over connections from the server into the guest, as for `PublishConnect`.
    PublishStream {
        address: IpAddr,
        port: u16,
        direction: Direction,
        streams: u16,
    },
    /// UDP datagrams of `size` bytes from client to server, at `rate` per second; `None` is as fast as
    /// possible.
    Datagrams { size: u16, rate: Option<f64> },
    /// UDP datagrams of `size` bytes from client to server, `segments` in each send (`UDP_SEGMENT`). With
    /// `gro` the server receives them by `UDP_GRO`, otherwise one by one.
    SegmentedDatagrams { size: u16, segments: u16, gro: bool },
    /// Round trips of one UDP datagram, which the server echoes.
    DatagramRoundTrip,
    /// `RoundTrip` while `pending` TCP connections to `address`, which never answers, are in SYN-SENT.
    Blackhole { pending: u32, address: IpAddr },
    /// `RoundTrip` while `flows` idle TCP connections to the server are open. Opening them may take one
    /// millisecond for each in addition to the timeout.
    IdleFlows { flows: u32 },
    /// DNS queries to `resolver`, one after the other, for names that no cache contains.
    Names { resolver: IpAddr },
    /// ICMP echo requests to `address`, one after the other.
    Echo { address: IpAddr },
    /// No traffic, while the harness measures the CPU time and memory of the idle stack.
    Idle,
}

/// Direction of a transfer: `Up` is from guest to host, `Down` from host to guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Up,
    Down,
}

/// A job, its duration, and the ports of the load server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    pub job: Job,
    pub ports: ServerPorts,
    /// Seconds of traffic before the measurement begins; their results are discarded.
    pub warm_up: f64,
    /// Duration of the measurement in seconds.
    pub duration: f64,
    /// Seconds without progress after which the job ends with `Stalled`.
    pub timeout: f64,
}

/// Ports of the load server, which its kernel has chosen. The server writes them as one line of JSON to its
/// standard output when it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerPorts {
    /// TCP port of the control connection ([`crate::load`]), which exists as long as the job.
    pub control: u16,
    /// TCP port that receives the session's number (eight bytes) and then stamped bytes, which it checks and
    /// counts.
    pub sink: u16,
    /// TCP port that receives the session's number (eight bytes), then sends stamped bytes until the peer
    /// closes.
    pub source: u16,
    /// TCP port that echoes bytes until the peer closes.
    pub echo: u16,
    /// TCP port that echoes one byte and closes; the accepting thread serves the connection.
    pub connect: u16,
    /// TCP ports that keep idle connections open while a job needs them. There are several, as a client has
    /// fewer source ports towards one destination port than the job opens connections.
    pub idle: [u16; Self::IDLE],
    /// UDP port that counts datagrams by the session's number in their first eight bytes.
    pub datagram_sink: u16,
    /// UDP port that counts datagrams likewise, with `UDP_GRO` on its socket.
    pub datagram_run_sink: u16,
    /// UDP port of the load server that echoes datagrams.
    pub datagram_echo: u16,
}

impl ServerPorts {
    /// Number of TCP ports for idle connections.
    pub const IDLE: usize = 8;
}

/// A line of JSON that the load client writes to the harness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum JobMessage {
    /// The warm-up is over, and the measurement begins.
    Begin,
    /// The measurement is over; contains its figures.
    End(JobResults),
    /// No byte or transaction was completed within the job's timeout; `at_byte` is the number of those
    /// completed before.
    Stalled { at_byte: u64 },
    /// The job cannot run here, by a limit of descriptors or ports, or because the kernel refuses a socket
    /// option.
    Unreachable { why: String },
    /// The job failed: a wrong byte, a wrong hash, a lost connection.
    Failed { why: String },
}

/// Figures of a finished job by metric name; [`crate::schema::METRICS`] lists the names with their units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobResults {
    pub values: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, Histogram>,
    /// TCP congestion control of the client's sockets and of those that the server accepted; `None` for jobs
    /// without TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<[String; 2]>,
}
