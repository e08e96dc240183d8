//! Counters of the relay, and the sums that hold between them.
//!
//! The unit is datagrams unless a name says otherwise. For each interface and family, `datagrams` = `matched` + `unmatched` +
//! `malformed` + `checksum` + `fragment` + `cut`. For each rule and each of its outputs, the rule's `datagrams` =
//! `sent` + `expired` + `down` + `refused` + `busy`. The `matched` of an interface is the sum of the `datagrams` of its rules.
//! The kernel's own counters are in packets, and several datagrams of one flow can be one packet. What was dropped before it
//! reached the ring or socket is in the counters of the device, and of all devices together (`softnet_dropped`).

use serde::{Deserialize, Serialize};

use crate::rates::Rate;

/// Counters in a row. All counters of one thing are one row.
pub const ROW_LEN: usize = 16;

/// A snapshot of a row.
pub type Row = [u64; ROW_LEN];

/// The row of the worker itself. All other rows are allocated to interfaces, rules and outputs.
pub const WORKER_ROW: u32 = 0;

/// Adds counters of a row to fields of the same meaning.
macro_rules! add {
    ($to:ident, $row:ident, $of:ident, $($field:ident $number:ident),+) => {
        // The worker that wrote the row may be compromised.
        $( $to.$field = $to.$field.saturating_add($row[$of::$number as usize]); )+
    };
}

/// Counters of an interface and family.
#[derive(Clone, Copy, Debug)]
pub enum InterfaceCounter {
    /// Not a counter: the ring slot in which the next packet is expected.
    Position,
    /// Packets received.
    Packets,
    /// Datagrams received.
    Datagrams,
    /// Datagrams that a rule matched.
    Matched,
    /// Datagrams that no rule matched.
    Unmatched,
    /// Packets that were not UDP, not complete, or to port 0.
    Malformed,
    /// Packets with a wrong checksum.
    Checksum,
    /// Fragments.
    Fragment,
    /// Datagrams longer than a ring slot, for which there was no memory beside the ring.
    Cut,
}

/// Counters of a rule.
#[derive(Clone, Copy, Debug)]
pub enum RuleCounter {
    /// Datagrams received.
    Datagrams,
    /// Bytes of payload received.
    Bytes,
}

/// Counters of an output.
#[derive(Clone, Copy, Debug)]
pub enum OutputCounter {
    /// Datagrams that the kernel accepted.
    Sent,
    /// Bytes of payload that the kernel accepted.
    Bytes,
    /// System calls that sent at least one datagram.
    Sends,
    /// Datagrams whose TTL ended here.
    Expired,
    /// Datagrams that arrived while the output was down.
    Down,
    /// Datagrams that the kernel refused.
    Refused,
    /// Datagrams that found the send queue full.
    Busy,
}

/// Totals of a worker.
#[derive(Clone, Copy, Debug)]
pub enum WorkerCounter {
    /// Polls that returned at least one packet.
    Batches,
    /// Packets received.
    Packets,
    /// Datagrams that a rule matched.
    Datagrams,
    /// Bytes of payload of those.
    Bytes,
    /// Copies that the kernel accepted.
    Sent,
    /// Bytes of payload of those.
    SentBytes,
    /// Copies that were not sent, for any of an output's reasons.
    Lost,
    /// System calls that the sandbox refused.
    Refusals,
}

/// All counters of a relay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Milliseconds since the relay's start. The difference of two answers gives a rate.
    pub time_ms: u64,
    /// Counters of each interface and family.
    pub interfaces: Vec<InterfaceStats>,
    /// Counters of each existing device that a rule names.
    pub devices: Vec<DeviceStats>,
    /// Packets that the kernel dropped before it processed them, on every CPU and from every device, since boot
    /// (`/proc/net/softnet_stat`).
    pub softnet_dropped: u64,
    /// Counters of each rule.
    pub rules: Vec<RuleStats>,
    /// Derived rules that were not installed, as there were no counters left for them.
    pub left_out: u64,
    /// Group memberships and receive sockets that are not open, as the descriptor limit leaves no room for them.
    pub refused_sockets: u64,
    /// Totals of each worker.
    pub workers: Vec<WorkerStats>,
    /// Totals of the process that runs the IGMP/MLD queriers of proxies, if there are any. It forwards nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub querier: Option<WorkerStats>,
}

/// Packets and datagrams received on an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStats {
    /// The interface's name.
    pub interface: String,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// `ring`, `socket`, or the reason why nothing can be received.
    pub state: String,
    /// Packets that the kernel had for the relay, the dropped ones included. Zero for sockets.
    pub kernel_packets: u64,
    /// Packets that the kernel dropped because the ring, or the socket's buffer, was full.
    pub kernel_dropped: u64,
    /// Times that the rings were reopened, as the kernel had stopped one of them.
    pub reopened: u64,
    /// See [`InterfaceCounter::Packets`].
    pub packets: u64,
    /// See [`InterfaceCounter::Datagrams`].
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

/// The kernel's counters of a device, in packets, since the device was created (ip(8), `ip -s link`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStats {
    /// The device's name.
    pub interface: String,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets received and dropped by the kernel.
    pub rx_dropped: u64,
    /// Packets dropped by the device for lack of buffers.
    pub rx_missed: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets dropped before the device sent them.
    pub tx_dropped: u64,
}

/// Counters of a rule and its outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStats {
    /// The rule, as text.
    pub rule: String,
    /// See [`RuleCounter::Datagrams`].
    pub datagrams: u64,
    /// See [`RuleCounter::Bytes`].
    pub bytes: u64,
    /// Datagrams and bytes a second, where two snapshots were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Counters of the outputs, in the rule's order.
    pub outputs: Vec<OutputStats>,
}

/// Counters of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputStats {
    /// The output, as text.
    pub output: String,
    /// `up`, or the reason why nothing can be sent.
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
    /// Datagrams and bytes a second, where two snapshots were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// Totals of a worker and of its predecessors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Process id; 0 while none is running.
    pub pid: u32,
    /// Times that the process was restarted.
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
    /// See [`WorkerCounter::Refusals`].
    pub sandbox_refused: u64,
    /// Datagrams and bytes a second, where two snapshots were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl InterfaceStats {
    /// Adds a worker's row.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, InterfaceCounter, packets Packets, datagrams Datagrams, matched Matched, unmatched Unmatched,
            malformed Malformed, checksum Checksum, fragment Fragment, cut Cut);
    }
}

impl RuleStats {
    /// Adds a worker's row.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, RuleCounter, datagrams Datagrams, bytes Bytes);
    }
}

impl OutputStats {
    /// Adds a worker's row.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, OutputCounter, sent Sent, bytes Bytes, sends Sends, expired Expired, down Down, refused Refused,
            busy Busy);
    }
}

impl WorkerStats {
    /// Adds a worker's row.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, WorkerCounter, batches Batches, packets Packets, datagrams Datagrams, bytes Bytes, sent Sent,
            sent_bytes SentBytes, lost Lost, sandbox_refused Refusals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_rows_of_a_compromised_worker_does_not_overflow() {
        let mut stats = RuleStats::default();
        for _ in 0..2 {
            stats.add(&[u64::MAX; ROW_LEN]);
        }
        assert_eq!((stats.datagrams, stats.bytes), (u64::MAX, u64::MAX));
    }
}
