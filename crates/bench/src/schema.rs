//! The report file: JSON, version [`VERSION`].
//!
//! A reader must refuse a file with another version. Fields are only added within a version. The first level carries
//! void-box's names for a run's headline figures beside ours, so that its comparison scripts can read a report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub const VERSION: u32 = 1;

/// A report: everything that was measured, and on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub version: u32,
    /// Program and version that wrote it.
    pub generator: String,
    /// Seconds since 1970.
    pub began: u64,
    /// Seconds since 1970, of the last sample.
    pub ended: u64,
    /// The command line that made it, quoted for a shell.
    #[serde(default)]
    pub command: String,
    pub plan: Plan,
    pub machine: Machine,
    pub calibration: Calibration,
    pub stacks: Vec<Stack>,
    pub cells: Vec<Cell>,
    /// In the order in which they were taken.
    pub samples: Vec<Sample>,
    /// Medians per stack under void-box's field names; see `report::void_box`.
    #[serde(default)]
    pub backends: Vec<BTreeMap<String, serde_json::Value>>,
}

/// What was asked for. A run is resumed only with the same plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub rounds: u32,
    /// Of one measurement, in seconds.
    pub duration: f64,
    pub scenarios: Vec<String>,
    pub stacks: Vec<String>,
}

/// Where it ran. Two reports that differ here are compared only with a warning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    pub virtual_machine: Option<String>,
    pub congestion_control: String,
    /// `net.core.{r,w}mem_max`, `net.ipv4.tcp_{r,w}mem`, and other limits, by sysctl name.
    pub sysctls: BTreeMap<String, String>,
    pub descriptors_hard: u64,
    pub user_id: u32,
}

/// What the harness itself costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Reading the clock, in nanoseconds.
    pub clock_ns: f64,
    /// Writing and checking the position stamps, in nanoseconds per MiB.
    pub stamp_ns_per_mib: f64,
    /// Recording a value in a histogram, in nanoseconds.
    pub record_ns: f64,
}

/// A stack of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// As in `--against`, or the name of a variant.
    pub name: String,
    #[serde(default)]
    pub role: Role,
    pub version: String,
    /// How it was started, with `CLIENT` in the client's place.
    pub command: String,
    /// Why it is not part of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// What a stack is in a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The kernel's own path, `direct` or `veth`: what others are measured against.
    Kernel,
    /// Pontoon, with some flags or of some revision.
    Pontoon,
    /// A stack of somebody else.
    #[default]
    Peer,
}

/// A scenario with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Say `tcp-up/1/cubic/best`.
    pub name: String,
    pub scenario: String,
    pub parameters: BTreeMap<String, String>,
    /// The name of the figure by which stacks are compared.
    pub figure: String,
    /// Asked in the first round only.
    #[serde(default)]
    pub once: bool,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub cell: String,
    pub stack: String,
    /// From 0.
    pub round: u32,
    /// Milliseconds since the report began, when it started.
    pub at_ms: u64,
    pub outcome: Outcome,
    pub values: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, Histogram>,
    /// What a search for the highest lossless rate tried, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trial>,
    pub conditions: Conditions,
}

/// A rate at which datagrams were sent, and what came of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Datagrams sent per second.
    pub sent_per_s: f64,
    /// Share of them that was not received.
    pub loss: f64,
}

/// How a measurement ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Outcome {
    Measured,
    /// No progress within the deadline, three times the duration.
    Stalled {
        at_byte: u64,
    },
    /// The stack or this user cannot do it here.
    Unreachable {
        why: String,
    },
    /// It went wrong: a wrong byte, a lost connection, an early end.
    Failed {
        why: String,
    },
}

/// What else was the case during a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Of the client's and of the server's sockets.
    pub congestion_control: Option<[String; 2]>,
    /// Of the guest's interface.
    pub mtu: Option<u32>,
    /// `txqueuelen` of the guest's interface.
    pub queue_length: Option<u32>,
    /// CPUs busy with something else in the 50 ms before the sample.
    pub busy_before: f64,
    /// Share of CPU time that the hypervisor took during the sample.
    pub steal: f64,
    /// How far the monotonic clock and the wall clock drifted apart during the sample, in microseconds.
    pub clock_drift_us: f64,
}

/// Values and how often each was seen; values are rounded to two significant decimal digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    pub unit: String,
    /// Ascending.
    pub counts: Vec<(f64, u64)>,
}

/// A name that may stand in [`Sample::values`].
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub unit: &'static str,
    /// Which way is better; none where neither is.
    pub better: Option<Better>,
    /// The title of a row or a plot, with the unit.
    pub label: &'static str,
    pub meaning: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

const fn higher(
    name: &'static str,
    unit: &'static str,
    label: &'static str,
    meaning: &'static str,
) -> Metric {
    Metric {
        name,
        unit,
        better: Some(Better::Higher),
        label,
        meaning,
    }
}

const fn lower(name: &'static str, unit: &'static str, label: &'static str, meaning: &'static str) -> Metric {
    Metric {
        name,
        unit,
        better: Some(Better::Lower),
        label,
        meaning,
    }
}

/// Every name, in the order in which reports show them.
pub const METRICS: &[Metric] = &[
    higher("mbps", "Mbit/s", "Mbit/s", "payload received"),
    lower("p50_us", "us", "median, µs", "median of one transaction"),
    lower(
        "p99_us",
        "us",
        "99th percentile, µs",
        "99th percentile of one transaction",
    ),
    higher(
        "per_s",
        "1/s",
        "per second",
        "transactions, connections or datagrams received per second",
    ),
    higher(
        "lossless_per_s",
        "1/s",
        "per second with under 0.1 % lost",
        "highest rate with under 0.1 % of the datagrams lost",
    ),
    Metric {
        name: "sent_per_s",
        unit: "1/s",
        better: None,
        label: "sent per second",
        meaning: "datagrams sent per second",
    },
    lower("loss", "ratio", "share lost", "datagrams sent and not received"),
    lower("errors", "count", "errors", "transactions that failed"),
    lower(
        "bytes_per_flow",
        "B",
        "bytes per connection",
        "the stack's resident memory for one idle flow",
    ),
    lower(
        "start_us",
        "us",
        "to the end of `true`, µs",
        "from the start of the stack to the end of `true` inside it",
    ),
    lower(
        "first_byte_us",
        "us",
        "to the first byte, µs",
        "from the start of the stack to the first byte back from the server",
    ),
    lower(
        "wakeups_per_s",
        "1/s",
        "wake-ups per second",
        "context switches of the stack while nothing happens",
    ),
    lower(
        "pss_bytes",
        "B",
        "proportional memory, bytes",
        "proportional memory of the stack's processes",
    ),
    lower(
        "rss_bytes",
        "B",
        "resident memory, bytes",
        "resident memory of the stack's processes",
    ),
    lower(
        "stack_cpu_s",
        "s",
        "CPU of the stack, s",
        "CPU time of the stack's processes",
    ),
    lower(
        "machine_cpu_s",
        "s",
        "CPU of the machine, s",
        "CPU time of the whole machine, with the kernel's interrupts",
    ),
    lower(
        "cpu_per_gbit_s",
        "s",
        "CPU of the stack per Gbit, s",
        "CPU time of the stack per Gbit",
    ),
    lower(
        "cpu_per_transaction_us",
        "us",
        "CPU of the stack per transaction, µs",
        "CPU time of the stack per transaction",
    ),
    lower(
        "cpu_per_datagram_us",
        "us",
        "CPU of the stack per datagram, µs",
        "CPU time of the stack per datagram received",
    ),
    lower(
        "machine_cpu_per_gbit_s",
        "s",
        "CPU of the machine per Gbit, s",
        "CPU time of the whole machine per Gbit",
    ),
    lower(
        "machine_cpu_per_transaction_us",
        "us",
        "CPU of the machine per transaction, µs",
        "CPU time of the whole machine per transaction",
    ),
    lower(
        "machine_cpu_per_datagram_us",
        "us",
        "CPU of the machine per datagram, µs",
        "CPU time of the whole machine per datagram received",
    ),
];
