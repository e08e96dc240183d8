//! The report file of `pontoon bench`: JSON, version [`VERSION`].
//!
//! A reader must refuse a file with another version. Within a version fields are only added. The first level also
//! contains a run's headline figures under void-box's names, so that its comparison scripts can read a report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub const VERSION: u32 = 1;

/// The report of a run: the machine, the plan, the stacks and all samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkReport {
    pub version: u32,
    /// Name and version of the program that wrote the report.
    pub generator: String,
    /// Start of the run in seconds since 1970.
    pub began: u64,
    /// End of the last sample in seconds since 1970.
    pub ended: u64,
    /// The command line of the run, quoted for a shell.
    #[serde(default)]
    pub command: String,
    pub plan: Plan,
    pub machine: Machine,
    pub calibration: Calibration,
    pub stacks: Vec<StackDescription>,
    pub cells: Vec<Cell>,
    /// Samples in the order in which they were taken.
    pub samples: Vec<Sample>,
    /// For each stack, medians under void-box's field names; see `report::void_box`.
    #[serde(default)]
    pub backends: Vec<BTreeMap<String, serde_json::Value>>,
}

/// The requested rounds, cells and durations. A run is resumed only with the same plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub rounds: u32,
    /// Duration of one measurement in seconds.
    pub duration: f64,
    pub scenarios: Vec<String>,
    pub stacks: Vec<String>,
}

/// The machine that a run was measured on. The comparison of reports warns if their machines differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    pub virtual_machine: Option<String>,
    pub congestion_control: String,
    /// Values by sysctl name: `net.core.{r,w}mem_max`, `net.ipv4.tcp_{r,w}mem`, and other limits.
    pub sysctls: BTreeMap<String, String>,
    pub descriptors_hard: u64,
    pub user_id: u32,
}

/// Time that the load generator itself needs for its operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Nanoseconds to read the monotonic clock.
    pub clock_ns: f64,
    /// Nanoseconds to write and check the position stamps of 1 MiB.
    pub stamp_ns_per_mib: f64,
    /// Nanoseconds to record a value in a histogram.
    pub record_ns: f64,
}

/// A stack of a run, as described in the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackDescription {
    /// Name as given to `--against` or `--variant`.
    pub name: String,
    #[serde(default)]
    pub role: StackRole,
    pub version: String,
    /// The command that started the stack, with `CLIENT` in the place of the client's command.
    pub command: String,
    /// The reason why the stack is not installed or cannot run, and so has no samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The role of a stack in a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StackRole {
    /// The kernel's own path, `direct` or `veth`, to which others are compared.
    Kernel,
    /// Pontoon, with some flags or of some revision.
    Pontoon,
    /// A stack of another project, such as pasta.
    #[default]
    Peer,
}

impl StackRole {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel's own path",
            Self::Pontoon => "pontoon",
            Self::Peer => "peer",
        }
    }
}

/// A scenario with values of its parameters, the unit that is measured and compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Scenario and parameters, such as `tcp-up/1/cubic/best`.
    pub name: String,
    pub scenario: String,
    pub parameters: BTreeMap<String, String>,
    /// The name of the metric by which stacks are compared.
    pub figure: String,
    /// True if the cell is measured in the first round only.
    #[serde(default)]
    pub once: bool,
}

/// The result of one measurement: one stack in one cell in one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub cell: String,
    pub stack: String,
    /// Number of the round, from 0.
    pub round: u32,
    /// Milliseconds from the start of the run to the start of the sample.
    pub at_ms: u64,
    pub outcome: SampleOutcome,
    pub values: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, Histogram>,
    /// Trials of the search for the highest lossless rate, in order; empty for other scenarios.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trial>,
    pub conditions: Conditions,
}

/// The send rate of a trial, and its loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Number of datagrams that the client has sent per second.
    pub sent_per_s: f64,
    /// Share (0 to 1) of the sent datagrams that were not received.
    pub loss: f64,
}

/// The outcome of a measurement: measured, or the reason why there is no figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum SampleOutcome {
    Measured,
    /// No byte or transaction was completed within the timeout, so that the measurement reached its deadline.
    Stalled {
        at_byte: u64,
    },
    /// The measurement is impossible: the stack lacks the feature, or this user or machine the resources.
    Unreachable {
        why: String,
    },
    /// An error: a wrong byte, a lost connection, an early end.
    Failed {
        why: String,
    },
}

/// State of the machine and of the sockets during a sample, by which a reader can judge the sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// TCP congestion control of the client's sockets and of those that the server accepted.
    pub congestion_control: Option<[String; 2]>,
    /// MTU of the guest's interface in bytes.
    pub mtu: Option<u32>,
    /// Transmit queue length (`txqueuelen`) of the guest's interface in packets.
    pub queue_length: Option<u32>,
    /// Number of CPUs busy with other work in the 50 ms before the sample.
    pub busy_before: f64,
    /// Share (0 to 1) of the CPU time that the hypervisor took during the sample (steal).
    pub steal: f64,
    /// Drift between the monotonic clock and the wall clock during the sample, in microseconds.
    pub clock_drift_us: f64,
}

/// A histogram of transaction times. Values are rounded to two significant decimal digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    pub unit: String,
    /// Pairs of value and count, by ascending value.
    pub counts: Vec<(f64, u64)>,
}

/// The unit, direction and label of a metric, which is a name in [`Sample::values`].
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub unit: &'static str,
    /// The better direction, or `None` if neither is better.
    pub better: Option<Better>,
    /// Title of a table row or plot, with the unit.
    pub label: &'static str,
    pub meaning: &'static str,
}

impl Metric {
    /// Returns the metric of this name, or `None` for names that only newer versions know.
    #[must_use]
    pub fn of(name: &str) -> Option<&'static Self> {
        METRICS.iter().find(|metric| metric.name == name)
    }

    /// Returns the label of a metric, or its name if this version does not know it.
    #[must_use]
    pub fn label_of(name: &str) -> &str {
        Self::of(name).map_or(name, |metric| metric.label)
    }
}

/// The better direction of a metric's values.
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

/// All metrics, in the order in which reports show them.
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
