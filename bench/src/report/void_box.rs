//! Figures of a run under the field names of void-box, so that its `bench-compare-pasta.py` reads a report.
//!
//! Only the names are void-box's. The measurements have one server and one client program, a blocking accept, and
//! round trips that wait for the answer.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::schema::{BenchmarkReport, StackDescription, StackRole};
use crate::stats;

use super::summary::measured;

/// A field of void-box's report, and the cell and metric from which it is computed.
pub struct VoidBoxField {
    pub name: &'static str,
    /// Name of the cell and of the metric; `None` if no scenario measures it.
    pub source: Option<(&'static str, &'static str)>,
    pub meaning: &'static str,
}

const fn field(
    name: &'static str,
    cell: &'static str,
    metric: &'static str,
    meaning: &'static str,
) -> VoidBoxField {
    VoidBoxField {
        name,
        source: Some((cell, metric)),
        meaning,
    }
}

/// void-box's fields in the order of its report. A value is the median over the rounds.
pub const VOID_BOX_FIELDS: &[VoidBoxField] = &[
    VoidBoxField {
        name: "tcp_bulk_throughput_g2h_mbps",
        source: None,
        meaning: "always null: no scenario measures a transfer into a receive buffer of 4 KiB",
    },
    field(
        "tcp_throughput_g2h_mbps",
        "tcp-up/1/cubic/best",
        "mbps",
        "Mbit/s from guest to host, one connection, the content checked",
    ),
    field(
        "tcp_throughput_h2g_mbps",
        "tcp-down/1/cubic/best",
        "mbps",
        "Mbit/s from host to guest, one connection, the content checked",
    ),
    field(
        "tcp_rr_latency_us_p50",
        "rr",
        "p50_us",
        "microseconds for a byte to the server and back; void-box does not wait for the answer",
    ),
    field(
        "tcp_rr_latency_us_p99",
        "rr",
        "p99_us",
        "the same, 99th percentile",
    ),
    field(
        "tcp_crr_latency_us_p50",
        "crr/1",
        "p50_us",
        "microseconds to connect, send a byte, receive it back and close; void-box's figure contains the 10 ms sleep of its server",
    ),
    field(
        "udp_dns_qps",
        "dns",
        "per_s",
        "names resolved per second, one after the other",
    ),
    field(
        "icmp_rr_latency_us_p50",
        "icmp-rr",
        "p50_us",
        "microseconds for an ICMP echo and its reply",
    ),
    field(
        "tcp_rx_latency_us_p50",
        "publish-crr/1",
        "p50_us",
        "microseconds for an inbound connection through a published port: connect, a byte to the guest and back, close",
    ),
];

/// Returns one object for each stack: `backend` with the stack's name, and void-box's fields, null where nothing was
/// measured.
pub fn void_box(report: &BenchmarkReport) -> Vec<BTreeMap<String, Value>> {
    let present = report.stacks.iter().filter(|stack| stack.missing.is_none());
    present.map(|stack| backend(report, stack)).collect()
}

/// Returns the object of the first stack with the role pontoon, or else of the first stack.
pub(super) fn headline(report: &BenchmarkReport) -> BTreeMap<String, Value> {
    let mut present = report.stacks.iter().filter(|stack| stack.missing.is_none());
    let first = present.clone().next();
    let about = present.find(|stack| stack.role == StackRole::Pontoon).or(first);
    about.map(|stack| backend(report, stack)).unwrap_or_default()
}

fn backend(report: &BenchmarkReport, stack: &StackDescription) -> BTreeMap<String, Value> {
    let median = |(cell, metric)| {
        let samples = measured(report, cell, &stack.name);
        let values: Vec<f64> = samples
            .filter_map(|sample| sample.values.get(metric).copied())
            .collect();
        stats::median(&values)
    };
    let field = |field: &VoidBoxField| (field.name.to_owned(), json!(field.source.and_then(median)));
    let mut object: BTreeMap<_, _> = VOID_BOX_FIELDS.iter().map(field).collect();
    object.insert("backend".to_owned(), json!(stack.name));
    object
}
