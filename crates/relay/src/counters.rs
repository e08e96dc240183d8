//! What is counted, and what must add up.
//!
//! Datagrams, unless a name says otherwise. For each interface and family, `datagrams` = `matched` + `unmatched` +
//! `malformed` + `checksum` + `fragment` + `cut`. For each rule and each of its outputs, the rule's `datagrams` =
//! `sent` + `expired` + `down` + `refused` + `busy`. What an interface has `matched` is what its rules have received.
//! The kernel's own counts are of packets, and several datagrams of one flow can be one packet. What never came as far as
//! our ring or socket is in what it counts for the device, and for all devices together (`softnet_dropped`).

use serde::{Deserialize, Serialize};

use crate::rates::Rate;

/// Numbers in a row: all that one thing counts.
pub const ROW_LEN: usize = 16;

/// A row as it was read.
pub type Row = [u64; ROW_LEN];

/// The row of the worker itself; all others are given away.
pub const WORKER_ROW: u32 = 0;

/// Adds numbers of a row to the fields that show them.
macro_rules! add {
    ($to:ident, $row:ident, $of:ident, $($field:ident $number:ident),+) => {
        $( $to.$field += $row[$of::$number as usize]; )+
    };
}

/// What an interface counts.
#[derive(Clone, Copy, Debug)]
pub enum InterfaceCounter {
    /// Not a count: where in the ring the next packet is expected.
    Position,
    /// Packets taken.
    Packets,
    /// Datagrams taken.
    Datagrams,
    /// That a rule wanted.
    Matched,
    /// That no rule wanted.
    Unmatched,
    /// That were no UDP, or not whole.
    Malformed,
    /// That were damaged.
    Checksum,
    /// That were pieces of one.
    Fragment,
    /// Too long for the ring, and no memory to keep them beside it.
    Cut,
}

/// What a rule counts.
#[derive(Clone, Copy, Debug)]
pub enum RuleCounter {
    /// Received.
    Datagrams,
    /// Bytes of payload received.
    Bytes,
}

/// What an output counts.
#[derive(Clone, Copy, Debug)]
pub enum OutputCounter {
    /// Taken by the kernel.
    Sent,
    /// Bytes of payload taken by the kernel.
    Bytes,
    /// Sends: calls of the kernel that took something.
    Sends,
    /// That had come to the end of their TTL.
    Expired,
    /// While the output could not be used.
    Down,
    /// That the kernel refused.
    Refused,
    /// That found its queue full.
    Busy,
}

/// What a worker counts, of all that goes through it.
#[derive(Clone, Copy, Debug)]
pub enum WorkerCounter {
    /// Looks that found something.
    Batches,
    /// Packets taken.
    Packets,
    /// Datagrams that a rule received.
    Datagrams,
    /// Bytes of their payload.
    Bytes,
    /// Copies taken by the kernel.
    Sent,
    /// Bytes of their payload.
    SentBytes,
    /// Copies that were not sent, for any of an output's reasons.
    Lost,
    /// System calls that the sandbox refused.
    Refusals,
}

/// Everything that a relay counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Milliseconds since the relay's start. Two answers and their difference are a rate.
    pub time_ms: u64,
    /// By interface and family.
    pub interfaces: Vec<InterfaceStats>,
    /// By interface, of those that a rule names and that are there.
    pub devices: Vec<DeviceStats>,
    /// Packets that the kernel dropped before it had looked at them, on every CPU and from every device, since it started
    /// (`/proc/net/softnet_stat`).
    pub softnet_dropped: u64,
    /// By rule.
    pub rules: Vec<RuleStats>,
    /// What hosts behind proxies and the kernel's routes want, and there is no room for.
    pub left_out: u64,
    /// By worker.
    pub workers: Vec<WorkerStats>,
    /// The process that runs the IGMP/MLD queriers of proxies, if there are any. It forwards nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub querier: Option<WorkerStats>,
}

/// What came in on an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStats {
    /// Its name.
    pub interface: String,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// `ring`, `socket`, or why nothing can be received.
    pub state: String,
    /// Packets that the kernel had for us, the dropped ones included. Only a ring knows.
    pub kernel_packets: u64,
    /// Packets that the kernel dropped because the ring, or the socket's buffer, was full.
    pub kernel_dropped: u64,
    /// How often the kernel had stopped a ring for good, so that all of them were opened anew.
    pub reopened: u64,
    /// Packets taken.
    pub packets: u64,
    /// Datagrams taken.
    pub datagrams: u64,
    /// See [`InterfaceCounter::Matched`].
    pub matched: u64,
    /// See [`InterfaceCounter::Unmatched`].
    pub unmatched: u64,
    /// See [`InterfaceCounter::Malformed`].
    pub malformed: u64,
    /// See [`InterfaceCounter::Checksum`].
    pub checksum: u64,
    /// See [`InterfaceCounter::Fragment`].
    pub fragment: u64,
    /// See [`InterfaceCounter::Cut`].
    pub cut: u64,
}

/// What the kernel counts for a device, in packets, since there is that device (ip(8), `ip -s link`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStats {
    /// Its name.
    pub interface: String,
    /// Received.
    pub rx_packets: u64,
    /// Received and dropped by the kernel.
    pub rx_dropped: u64,
    /// Dropped by the device, which had no room.
    pub rx_missed: u64,
    /// Sent.
    pub tx_packets: u64,
    /// Dropped on the way to the device.
    pub tx_dropped: u64,
}

/// What became of a rule's datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStats {
    /// The rule, as text.
    pub rule: String,
    /// Received.
    pub datagrams: u64,
    /// Bytes of payload received.
    pub bytes: u64,
    /// Where two looks were taken: how much of it in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// In the rule's order.
    pub outputs: Vec<OutputStats>,
}

/// What was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputStats {
    /// The output, as text.
    pub output: String,
    /// `up`, or why nothing can be sent.
    pub state: String,
    /// See [`OutputCounter::Sent`].
    pub sent: u64,
    /// See [`OutputCounter::Bytes`].
    pub bytes: u64,
    /// See [`OutputCounter::Sends`].
    pub sends: u64,
    /// See [`OutputCounter::Expired`].
    pub expired: u64,
    /// See [`OutputCounter::Down`].
    pub down: u64,
    /// See [`OutputCounter::Refused`].
    pub refused: u64,
    /// See [`OutputCounter::Busy`].
    pub busy: u64,
    /// Where two looks were taken: how much of it in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// A worker's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Its process id; 0 while there is none.
    pub pid: u32,
    /// How often another took its place.
    pub restarts: u64,
    /// See [`WorkerCounter::Batches`].
    pub batches: u64,
    /// See [`WorkerCounter::Packets`].
    pub packets: u64,
    /// See [`WorkerCounter::Datagrams`].
    pub datagrams: u64,
    /// See [`WorkerCounter::Bytes`].
    pub bytes: u64,
    /// See [`WorkerCounter::Sent`].
    pub sent: u64,
    /// See [`WorkerCounter::SentBytes`].
    pub sent_bytes: u64,
    /// See [`WorkerCounter::Lost`].
    pub lost: u64,
    /// System calls of its own and its predecessors' that the sandbox refused.
    pub sandbox_refused: u64,
    /// Where two looks were taken: how much of it in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl InterfaceStats {
    /// Adds what a worker counted.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, InterfaceCounter, packets Packets, datagrams Datagrams, matched Matched, unmatched Unmatched,
            malformed Malformed, checksum Checksum, fragment Fragment, cut Cut);
    }
}

impl RuleStats {
    /// Adds what a worker counted.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, RuleCounter, datagrams Datagrams, bytes Bytes);
    }
}

impl OutputStats {
    /// Adds what a worker counted.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, OutputCounter, sent Sent, bytes Bytes, sends Sends, expired Expired, down Down, refused Refused,
            busy Busy);
    }
}

impl WorkerStats {
    /// Adds what it counted.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, WorkerCounter, batches Batches, packets Packets, datagrams Datagrams, bytes Bytes, sent Sent,
            sent_bytes SentBytes, lost Lost, sandbox_refused Refusals);
    }
}
