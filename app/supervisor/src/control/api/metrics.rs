//! Route `/metrics` for Prometheus: counters, gauges and histograms of each worker, and hits of each egress rule.

use std::collections::BTreeMap;
use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::metrics_text::{MetricType, MetricsText};
use pontoon_control::server::Answer;
use pontoon_engine::{Counters, histogram};
use pontoon_link::BURSTS;
use pontoon_worker::messages::{BATCHES, CONNECT_TIMES, Distribution, Stats};

use super::Api;

pub(super) fn get(api: &mut Api, _: &HttpRequest, now: Instant) -> Answer<Api> {
    api.report(now, |api, reports| {
        // After the hits of the rules, the workers report the number of flows that match no allow rule, and of flows to
        // other resolvers.
        let texts = api.rules.iter().map(ToString::to_string);
        let texts: Vec<String> = texts.chain(["unlisted", "resolvers"].map(String::from)).collect();
        let mut rules = BTreeMap::new();
        for stats in &reports {
            for (text, hits) in texts.iter().zip(&stats.rules) {
                let sum: &mut u64 = rules.entry(text.clone()).or_default();
                *sum = sum.saturating_add(*hits);
            }
        }
        HttpResponse::metrics(render(&reports, &rules))
    })
}

/// Returns the Prometheus text of the workers' statistics, and of the hits of egress rules by the rules' text.
fn render(workers: &[Stats], rules: &BTreeMap<String, u64>) -> String {
    let mut text = MetricsText::new("pontoon");
    for (name, help) in Counters::describe().chain(BESIDE) {
        let mut family = text.family(MetricType::Counter, name, help.trim());
        for stats in workers {
            let counted = stats.counters.iter().find(|(counter, _)| counter == name);
            if let Some((_, count)) = counted {
                family.sample(&[("worker", &stats.worker.to_string())], *count);
            }
        }
    }
    for (name, help, of) in GAUGES {
        let mut family = text.family(MetricType::Gauge, name, help);
        for stats in workers {
            family.sample(&[("worker", &stats.worker.to_string())], of(stats));
        }
    }
    for measured in &MEASURED {
        let mut family = text.family(MetricType::Histogram, measured.name, measured.help);
        for stats in workers {
            if let Some(reported) = stats
                .histograms
                .iter()
                .find(|reported| reported.name == measured.report_name)
            {
                let (sum, buckets) = measured.read(reported);
                family.histogram(&[("worker", &stats.worker.to_string())], sum, &buckets);
            }
        }
    }
    let help = "1 if a layer of the sandbox is in force, else 0.";
    let mut family = text.family(MetricType::Gauge, "sandbox_layer", help);
    for (name, in_force) in workers.iter().flat_map(|stats| &stats.counters) {
        if let Some(layer) = name.strip_prefix(LAYER) {
            family.sample(&[("layer", layer)], *in_force);
        }
    }
    let help = "Packets that matched an egress rule.";
    let mut family = text.family(MetricType::Counter, "egress_hits", help);
    for (rule, hits) in rules {
        family.sample(&[("rule", rule)], *hits);
    }
    text.finish()
}

/// Name, help text and value of a gauge of a worker.
type Gauge = (&'static str, &'static str, fn(&Stats) -> u64);

const GAUGES: [Gauge; 2] = [
    ("flows", "Open flows.", |stats| stats.flows),
    (
        "pool_bytes",
        "Bytes of memory that hold data which the host has not accepted yet, or which arrived out of order.",
        |stats| stats.pool_bytes,
    ),
];

/// Histogram of a worker: `report_name` is its name in the worker's report, and `one` is the number of the report's units
/// in one unit of the metric.
struct Measured {
    name: &'static str,
    help: &'static str,
    report_name: &'static str,
    bounds: &'static [u64],
    one: f64,
}

const MEASURED: [Measured; 2] = [
    Measured {
        name: "tcp_connect_seconds",
        help: "Time to establish the guest's TCP connections on the host's side.",
        report_name: CONNECT_TIMES,
        bounds: &histogram::CONNECT_TIMES,
        one: 1e9,
    },
    Measured {
        name: "batch_frames",
        help: "Frames that were received from the guest in one batch.",
        report_name: BATCHES,
        bounds: &BURSTS,
        one: 1.0,
    },
];

/// Counters that the `worker` and `link` crates add to those of the engine, each with its help text.
const BESIDE: [(&str, &str); 6] = [
    ("capture_frames", "Frames that were written to captures."),
    (
        "capture_dropped",
        "Frames that are missing in a capture because they arrived faster than they could be written.",
    ),
    (
        "link_malformed",
        "Frames that the link dropped for meaningless offload metadata.",
    ),
    (
        "link_queue_faults",
        "Queues in shared memory that were closed because of invalid contents.",
    ),
    (
        "link_withdrawals",
        "Times that vhost-net failed and the tap was used instead.",
    ),
    ("sandbox_refused", "System calls that the sandbox refused."),
];

/// Prefix of the counters that report the layers of the sandbox.
const LAYER: &str = "sandbox_layer_";

impl Measured {
    /// Returns the sum of a histogram in the metric's unit, and for each bucket its upper bound and the number of values up
    /// to that bound.
    #[expect(
        clippy::cast_precision_loss,
        reason = "bounds are short numbers, and a sum may be rounded"
    )]
    fn read(&self, reported: &Distribution) -> (f64, Vec<(f64, u64)>) {
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / self.one);
        let bounds = bounds.chain([f64::INFINITY]);
        // The engine is not trusted: the sum of its counts saturates instead of overflowing.
        let mut all = 0_u64;
        let counts = reported.counts.iter().map(|count| {
            let count = (*count).min(u64::MAX - all);
            all += count;
            count
        });
        let buckets = bounds.zip(counts).collect();
        (reported.sum as f64 / self.one, buckets)
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
        render(&[first, stats(1, 8)], &rules.into_iter().collect())
    }

    #[test]
    fn text_has_the_counters_of_each_worker_and_rule() {
        let text = rendered();
        for line in [
            "# HELP pontoon_frames_up_total Frames received from the guest.",
            "# TYPE pontoon_frames_up_total counter",
            "pontoon_frames_up_total{worker=\"0\"} 7",
            "pontoon_frames_up_total{worker=\"1\"} 8",
            "# TYPE pontoon_flows gauge",
            "pontoon_flows{worker=\"1\"} 3",
            "# TYPE pontoon_tcp_connect_seconds histogram",
            "pontoon_tcp_connect_seconds_sum{worker=\"0\"} 1.5",
            "pontoon_tcp_connect_seconds_count{worker=\"0\"} 7",
            "pontoon_tcp_connect_seconds_bucket{worker=\"0\",le=\"0.0001\"} 0",
            "pontoon_tcp_connect_seconds_bucket{worker=\"0\",le=\"0.00025\"} 2",
            "pontoon_tcp_connect_seconds_bucket{worker=\"0\",le=\"30.0\"} 3",
            "pontoon_tcp_connect_seconds_bucket{worker=\"0\",le=\"+Inf\"} 7",
            "pontoon_sandbox_layer{layer=\"root\"} 1",
            "pontoon_sandbox_layer{layer=\"landlock\"} 0",
            "pontoon_egress_hits_total{rule=\"deny 10.0.0.0/8\"} 4",
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in\n{text}"
            );
        }
    }

    /// The rules for names, help texts and order are those of `promtool check metrics`.
    #[test]
    fn names_and_help_follow_the_conventions() {
        let text = rendered();
        let mut seen = BTreeSet::new();
        for line in text.lines().filter(|line| line.starts_with("# HELP ")) {
            let (name, help) = line["# HELP ".len()..].split_once(' ').unwrap();
            assert!(seen.insert(name.to_owned()), "{name} comes twice");
            assert!(name.starts_with("pontoon_"), "{name}");
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
