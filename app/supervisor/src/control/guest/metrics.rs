//! Metrics in OpenMetrics' text format, which Prometheus reads: counters, gauges and histograms of each worker, and hits of
//! each rule.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use pontoon_engine::{Counters, histogram};
use pontoon_runtime::link::BURSTS;
use pontoon_runtime::messages::{BATCHES, CONNECT_TIMES, Distribution, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::Api;
use crate::control::http::{Request, Response};
use crate::control::server::Answer;

pub(super) fn get(api: &mut Api, _: &Request, now: Instant) -> Answer<Api> {
    api.report(now, |api, said| {
        // What no rule names, and other resolvers, come after the rules.
        let texts = api.rules.iter().map(ToString::to_string);
        let texts: Vec<String> = texts.chain(["unlisted", "resolvers"].map(String::from)).collect();
        let mut rules = BTreeMap::new();
        for stats in &said {
            for (text, hits) in texts.iter().zip(&stats.rules) {
                let sum: &mut u64 = rules.entry(text.clone()).or_default();
                *sum = sum.saturating_add(*hits);
            }
        }
        Response::metrics(render(said, rules))
    })
}

/// The metrics of what the workers said, and of rules by their text.
///
/// # Errors
/// None but those of a bug in how names are put together.
fn render(workers: Vec<Stats>, rules: BTreeMap<String, u64>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("pontoon");
    registry.register_collector(Box::new(Snapshot { workers, rules }));
    let mut metrics = String::new();
    text::encode(&mut metrics, &registry)?;
    Ok(metrics)
}

#[derive(Debug)]
struct Snapshot {
    workers: Vec<Stats>,
    rules: BTreeMap<String, u64>,
}

/// What a worker has now, by what it said.
type Gauge = (&'static str, &'static str, fn(&Stats) -> u64);

const GAUGES: [Gauge; 2] = [
    ("flows", "Flows that there are.", |stats| stats.flows),
    (
        "pool_bytes",
        "Memory that holds what hosts have not taken yet, and what came out of order.",
        |stats| stats.pool_bytes,
    ),
];

/// What a worker has measured: by which name it tells of it, between which bounds, and what one of the unit is in that.
struct Measured {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    told: &'static str,
    bounds: &'static [u64],
    one: f64,
}

const MEASURED: [Measured; 2] = [
    Measured {
        name: "tcp_connect",
        unit: Some(Unit::Seconds),
        help: "How long the guest's TCP connections took to stand on the host's side.",
        told: CONNECT_TIMES,
        bounds: &histogram::CONNECT_TIMES,
        one: 1e9,
    },
    Measured {
        name: "batch_frames",
        unit: None,
        help: "Frames that were taken from the guest together.",
        told: BATCHES,
        bounds: &BURSTS,
        one: 1.0,
    },
];

/// Counted beside the engine.
const BESIDE: [(&str, &str); 6] = [
    ("capture_frames", "Frames that were captured into files."),
    (
        "capture_dropped",
        "Frames that are missing in a capture, as they came faster than they could be written.",
    ),
    (
        "link_malformed",
        "Frames that the link dropped for meaningless offload metadata.",
    ),
    (
        "link_queue_faults",
        "Queues in shared memory that were given up, for what the guest did to them.",
    ),
    (
        "link_withdrawals",
        "Times that frames went on by the tap, as vhost-net had failed.",
    ),
    ("sandbox_refused", "System calls that the sandbox refused."),
];

/// What the names of a sandbox's layers begin with.
const LAYER: &str = "sandbox_layer_";

impl Measured {
    /// The sum in the unit, how many there are, and how many up to each bound but above the one before.
    #[expect(
        clippy::cast_precision_loss,
        reason = "bounds are short numbers, and a sum may be rounded"
    )]
    fn read(&self, told: &Distribution) -> (f64, u64, Vec<(f64, u64)>) {
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / self.one);
        let bounds = bounds.chain([f64::INFINITY]);
        // An engine may say anything: what is more than can be counted in all is left out.
        let mut all = 0;
        let counts = told.counts.iter().map(|count| {
            let count = (*count).min(u64::MAX - all);
            all += count;
            count
        });
        let buckets = bounds.zip(counts).collect();
        (told.sum as f64 / self.one, all, buckets)
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help) in Counters::describe().chain(BESIDE) {
            let mut metric = encoder.encode_descriptor(name, help.trim(), None, MetricType::Counter)?;
            for stats in &self.workers {
                let counted = stats.counters.iter().find(|(counter, _)| counter == name);
                if let Some((_, count)) = counted {
                    let labels = [("worker", stats.worker.to_string())];
                    metric
                        .encode_family(&labels)?
                        .encode_counter::<NoLabelSet, _, u64>(count, None)?;
                }
            }
        }
        for (name, help, of) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for stats in &self.workers {
                let labels = [("worker", stats.worker.to_string())];
                metric.encode_family(&labels)?.encode_gauge(&of(stats))?;
            }
        }
        for measured in &MEASURED {
            let Measured { name, unit, help, .. } = measured;
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Histogram)?;
            for stats in &self.workers {
                if let Some(told) = stats.histograms.iter().find(|told| told.name == measured.told) {
                    let labels = [("worker", stats.worker.to_string())];
                    let (sum, count, buckets) = measured.read(told);
                    metric
                        .encode_family(&labels)?
                        .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        let help = "Whether a layer of the sandbox stands.";
        let mut metric = encoder.encode_descriptor("sandbox_layer", help, None, MetricType::Gauge)?;
        for (name, stands) in self.workers.iter().flat_map(|stats| &stats.counters) {
            if let Some(layer) = name.strip_prefix(LAYER) {
                metric.encode_family(&[("layer", layer)])?.encode_gauge(stands)?;
            }
        }
        let help = "Packets that an egress rule was about.";
        let mut metric = encoder.encode_descriptor("egress_hits", help, None, MetricType::Counter)?;
        for (rule, hits) in &self.rules {
            let labels = [("rule", rule.as_str())];
            metric
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(hits, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rendered() -> String {
        let stats = |worker, count| Stats {
            worker,
            flows: 3,
            histograms: vec![Distribution {
                name: CONNECT_TIMES.to_owned(),
                sum: 1_500_000_000,
                counts: vec![0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4],
            }],
            counters: vec![("frames_up".to_owned(), count), ("link_malformed".to_owned(), 0)],
            ..Stats::default()
        };
        let mut first = stats(0, 7);
        let layer = |name: &str, stands| (format!("{LAYER}{name}"), stands);
        first.counters.extend([layer("root", 1), layer("landlock", 0)]);
        let rules = [("deny 10.0.0.0/8".to_owned(), 4), ("no rule".to_owned(), 0)];
        render(vec![first, stats(1, 8)], rules.into_iter().collect()).unwrap()
    }

    #[test]
    fn each_workers_counts_and_rules() {
        let text = rendered();
        for line in [
            "# HELP pontoon_frames_up Frames received from the guest.",
            "# TYPE pontoon_frames_up counter",
            "pontoon_frames_up_total{worker=\"0\"} 7",
            "pontoon_frames_up_total{worker=\"1\"} 8",
            "# TYPE pontoon_flows gauge",
            "pontoon_flows{worker=\"1\"} 3",
            "# TYPE pontoon_tcp_connect_seconds histogram",
            "# UNIT pontoon_tcp_connect_seconds seconds",
            "pontoon_tcp_connect_seconds_sum{worker=\"0\"} 1.5",
            "pontoon_tcp_connect_seconds_count{worker=\"0\"} 7",
            "pontoon_tcp_connect_seconds_bucket{le=\"0.0001\",worker=\"0\"} 0",
            "pontoon_tcp_connect_seconds_bucket{le=\"0.00025\",worker=\"0\"} 2",
            "pontoon_tcp_connect_seconds_bucket{le=\"30.0\",worker=\"0\"} 3",
            "pontoon_tcp_connect_seconds_bucket{le=\"+Inf\",worker=\"0\"} 7",
            "pontoon_sandbox_layer{layer=\"root\"} 1",
            "pontoon_sandbox_layer{layer=\"landlock\"} 0",
            "pontoon_egress_hits_total{rule=\"deny 10.0.0.0/8\"} 4",
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }

    /// What `promtool check metrics` asks for, as far as it concerns names, help and order.
    #[test]
    fn names_follow_the_conventions() {
        let text = rendered();
        let mut seen = BTreeSet::new();
        for line in text.lines().filter(|line| line.starts_with("# HELP ")) {
            let (name, help) = line["# HELP ".len()..].split_once(' ').unwrap();
            assert!(seen.insert(name.to_owned()), "{name} comes twice");
            assert!(
                name.starts_with("pontoon_") && !name.ends_with("_total"),
                "{name}"
            );
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
                "{name}"
            );
            assert!(
                help.len() > 10 && help.ends_with('.') && !help.contains("  "),
                "{name}: {help}"
            );
        }
        let all = Counters::describe().count() + BESIDE.len() + GAUGES.len() + MEASURED.len() + 2;
        assert_eq!(seen.len(), all);
    }
}
