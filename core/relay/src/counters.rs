//! Counters of the multicast relay, and the sums that hold between them.
//!
//! The unit is datagrams unless a name states another. For each interface and family, `datagrams` = `matched` +
//! `unmatched` + `malformed` + `checksum` + `fragment` + `cut`. For each rule and each of its outputs, the rule's
//! `datagrams` = `sent` + `expired` + `down` + `refused` + `busy`. The `matched` of an interface is the sum of the
//! `datagrams` of its rules. The kernel's own counters are in packets, and several datagrams of one flow can be one
//! packet. Packets dropped before they reached the packet ring or socket are in the counters of the device, and in
//! `softnet_dropped` of all devices together.

use serde::{Deserialize, Serialize};

use crate::rates::Rate;

/// Number of counters in a row of the counter memory that supervisor and relay workers share. An interface, rule or
/// output has one row in each worker.
pub const ROW_LEN: usize = 16;

/// A copy of the values of one row of counters.
pub type Row = [u64; ROW_LEN];

/// Index of the row of the worker's own totals ([`WorkerCounter`]). All other rows are allocated to interfaces, rules
/// and outputs.
pub const WORKER_ROW: u32 = 0;

/// Adds counters of a [`Row`] to the fields of the same names.
macro_rules! add {
    ($to:ident, $row:ident, $of:ident, $($field:ident $number:ident),+) => {
        // Saturating, because the worker that wrote the row may be compromised.
        $( $to.$field = $to.$field.saturating_add($row[$of::$number as usize]); )+
    };
}

/// Counters of a worker for an interface and address family; the discriminant is the index in the [`Row`].
#[derive(Clone, Copy, Debug)]
pub enum InterfaceCounter {
    /// Not a counter: index of the ring slot in which the worker expects the next packet. Its successor continues
    /// there.
    Position,
    /// Packets received from the ring or socket. One packet can contain several datagrams of a flow (GRO).
    Packets,
    /// UDP datagrams received from the ring or socket.
    Datagrams,
    /// Datagrams that matched a rule.
    Matched,
    /// Datagrams that matched no rule.
    Unmatched,
    /// Packets dropped because they were not complete UDP packets, or were sent to port 0.
    Malformed,
    /// Packets dropped because of a wrong IPv4 header checksum or UDP checksum.
    Checksum,
    /// Packets dropped because they were IP fragments.
    Fragment,
    /// Datagrams dropped because they were longer than a ring slot and the kernel had no memory for them beside the
    /// ring.
    Cut,
}

/// Counters of a worker for a rule; the discriminant is the index in the [`Row`].
#[derive(Clone, Copy, Debug)]
pub enum RuleCounter {
    /// Datagrams that matched the rule.
    Datagrams,
    /// Bytes of UDP payload in datagrams that matched the rule.
    Bytes,
}

/// Counters of a worker for an output of a rule; the discriminant is the index in the [`Row`].
#[derive(Clone, Copy, Debug)]
pub enum OutputCounter {
    /// Datagrams that the kernel accepted for sending.
    Sent,
    /// Bytes of UDP payload that the kernel accepted for sending.
    Bytes,
    /// System calls that sent at least one datagram to the output.
    Sends,
    /// Datagrams not sent because their TTL or hop limit was too low to be forwarded.
    Expired,
    /// Datagrams not sent because the output's interface was down or its socket not open.
    Down,
    /// Datagrams not sent because the kernel refused the send with an error.
    Refused,
    /// Datagrams not sent because the socket's send queue was full.
    Busy,
}

/// Totals of a relay worker; the discriminant is the index in the [`Row`].
#[derive(Clone, Copy, Debug)]
pub enum WorkerCounter {
    /// Polls of the rings and sockets that returned at least one packet.
    Batches,
    /// Packets received from all rings and sockets.
    Packets,
    /// Datagrams that the worker received and that matched a rule.
    Datagrams,
    /// Bytes of UDP payload in datagrams that matched a rule.
    Bytes,
    /// Copies of datagrams that the kernel accepted for sending; a datagram has one copy for each output of its rule.
    Sent,
    /// Bytes of UDP payload in copies that the kernel accepted for sending.
    SentBytes,
    /// Copies that were not sent: the sum of `expired`, `down`, `refused` and `busy` of all outputs.
    Lost,
    /// System calls of the worker that its seccomp filter refused.
    Refusals,
    /// Reports of new groups that a querier ignored because of its limit on groups.
    MembershipsIgnored,
    /// Groups that a querier removed for a group of a host with fewer groups, because of its limit on groups.
    MembershipsEvicted,
}

/// All counters of a relay, as the control socket and the metrics report them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Milliseconds since the relay's start. The difference between two replies gives the interval of a rate.
    pub time_ms: u64,
    /// Counters of each interface and address family, summed over the workers.
    pub interfaces: Vec<InterfaceStats>,
    /// The kernel's counters of each existing network device that a rule names.
    pub devices: Vec<DeviceStats>,
    /// Packets that the kernel dropped before it processed them, on every CPU and from every device, since boot
    /// (`/proc/net/softnet_stat`).
    pub softnet_dropped: u64,
    /// Counters of each rule, summed over the workers.
    pub rules: Vec<RuleStats>,
    /// Number of rules derived from group memberships (`--proxy`) or the kernel's multicast routes that were not
    /// installed because no row of counters was free.
    pub left_out: u64,
    /// Number of group memberships and receive sockets that are not open because the descriptor limit has been reached.
    pub refused_sockets: u64,
    /// Totals of each worker that forwards datagrams.
    pub workers: Vec<WorkerStats>,
    /// Totals of the worker that runs the IGMP/MLD queriers, if the relay has proxies. It forwards no datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub querier: Option<WorkerStats>,
}

/// Counters of packets and datagrams received on one interface in one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStats {
    /// Name of the interface on which the packets were received.
    pub interface: String,
    /// Address family of the received packets: `ipv4` or `ipv6`.
    pub family: String,
    /// `ring`, `socket`, or the reason why nothing can be received on the interface.
    pub state: String,
    /// Packets that the kernel's packet rings counted for the relay, dropped ones included (`PACKET_STATISTICS`). Zero
    /// for sockets.
    pub kernel_packets: u64,
    /// Packets that the kernel dropped because the ring or the socket's receive buffer was full.
    pub kernel_dropped: u64,
    /// Number of times that the rings were reopened because the kernel had stopped one of them.
    pub reopened: u64,
    /// Packets received from the ring or socket. One packet can contain several datagrams of a flow (GRO).
    pub packets: u64,
    /// UDP datagrams received from the ring or socket.
    pub datagrams: u64,
    /// Datagrams that matched a rule.
    pub matched: u64,
    /// Datagrams that matched no rule.
    pub unmatched: u64,
    /// Packets dropped because they were not complete UDP packets, or were sent to port 0.
    pub malformed: u64,
    /// Packets dropped because of a wrong IPv4 header checksum or UDP checksum.
    pub checksum: u64,
    /// Packets dropped because they were IP fragments.
    pub fragment: u64,
    /// Datagrams dropped because they were longer than a ring slot and the kernel had no memory for them beside the
    /// ring.
    pub cut: u64,
}

/// The kernel's counters of a network device, in packets, since the device was created (ip(8), `ip -s link`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStats {
    /// Name of the network device.
    pub interface: String,
    /// Packets that the device received.
    pub rx_packets: u64,
    /// Received packets that the kernel dropped.
    pub rx_dropped: u64,
    /// Packets that the device dropped for lack of receive buffers.
    pub rx_missed: u64,
    /// Packets that the device sent.
    pub tx_packets: u64,
    /// Packets that the kernel dropped before the device sent them.
    pub tx_dropped: u64,
}

/// Counters of one rule and its outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStats {
    /// Text of the rule, as in the configuration.
    pub rule: String,
    /// Datagrams that matched the rule.
    pub datagrams: u64,
    /// Bytes of UDP payload in datagrams that matched the rule.
    pub bytes: u64,
    /// Datagrams and bytes per second that matched the rule; set only if two snapshots were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Counters of the outputs, in the order of the rule.
    pub outputs: Vec<OutputStats>,
}

/// Counters of one output of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputStats {
    /// Text of the output, as in the rule.
    pub output: String,
    /// `up`, or the reason why nothing can be sent to the output.
    pub state: String,
    /// Datagrams that the kernel accepted for sending.
    pub sent: u64,
    /// Bytes of UDP payload that the kernel accepted for sending.
    pub bytes: u64,
    /// System calls that sent at least one datagram to the output.
    pub sends: u64,
    /// Datagrams not sent because their TTL or hop limit was too low to be forwarded.
    pub expired: u64,
    /// Datagrams not sent because the output's interface was down or its socket not open.
    pub down: u64,
    /// Datagrams not sent because the kernel refused the send with an error.
    pub refused: u64,
    /// Datagrams not sent because the socket's send queue was full.
    pub busy: u64,
    /// Datagrams and bytes per second sent to the output; set only if two snapshots were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// Totals of a worker process, including those of its predecessors before a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Process id of the worker; 0 while it is not running.
    pub pid: u32,
    /// Number of times that the process was restarted.
    pub restarts: u64,
    /// Polls of the rings and sockets that returned at least one packet.
    pub batches: u64,
    /// Packets received from all rings and sockets.
    pub packets: u64,
    /// Datagrams that the worker received and that matched a rule.
    pub datagrams: u64,
    /// Bytes of UDP payload in datagrams that matched a rule.
    pub bytes: u64,
    /// Copies of datagrams that the kernel accepted for sending; a datagram has one copy for each output of its rule.
    pub sent: u64,
    /// Bytes of UDP payload in copies that the kernel accepted for sending.
    pub sent_bytes: u64,
    /// Copies that were not sent: the sum of `expired`, `down`, `refused` and `busy` of all outputs.
    pub lost: u64,
    /// System calls of the worker that its seccomp filter refused.
    pub sandbox_refused: u64,
    /// New memberships that hosts reported and the queriers ignored, because of their limit on memberships; 0 in workers that
    /// forward datagrams.
    #[serde(default)]
    pub memberships_ignored: u64,
    /// Memberships that the queriers removed for one of a host with fewer memberships, because of their limit; 0 in workers
    /// that forward datagrams.
    #[serde(default)]
    pub memberships_evicted: u64,
    /// Datagrams and bytes per second that matched a rule; set only if two snapshots were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl InterfaceStats {
    /// Adds the interface's row of one worker.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, InterfaceCounter, packets Packets, datagrams Datagrams, matched Matched, unmatched Unmatched,
            malformed Malformed, checksum Checksum, fragment Fragment, cut Cut);
    }
}

impl RuleStats {
    /// Adds the rule's row of one worker.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, RuleCounter, datagrams Datagrams, bytes Bytes);
    }
}

impl OutputStats {
    /// Adds the output's row of one worker.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, OutputCounter, sent Sent, bytes Bytes, sends Sends, expired Expired, down Down, refused Refused,
            busy Busy);
    }
}

impl WorkerStats {
    /// Adds the row of the worker's own totals.
    pub fn add(&mut self, row: &Row) {
        add!(self, row, WorkerCounter, batches Batches, packets Packets, datagrams Datagrams, bytes Bytes, sent Sent,
            sent_bytes SentBytes, lost Lost, sandbox_refused Refusals, memberships_ignored MembershipsIgnored,
            memberships_evicted MembershipsEvicted);
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
