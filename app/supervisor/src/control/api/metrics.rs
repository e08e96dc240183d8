//! Route `/metrics` for Prometheus: counters, gauges and histograms of each worker, and hits of each egress rule.

use std::collections::BTreeMap;
use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::metrics_text::{MetricType, MetricsText};
use pontoon_control::server::Answer;
use pontoon_engine::Counters;
use pontoon_link::LinkCounters;
use pontoon_worker::stats::{Distribution, Gauges, ProcessCounters, Row};

use super::decisions::DeciderCounts;
use super::{Api, LAYER};
use crate::events::Events;
use crate::publish::AutoCounts;
use crate::statistics::RuleHits;

pub(super) fn get(api: &mut Api, _: &HttpRequest, _: Instant) -> Answer<Api> {
    let (workers, hits) = (api.statistics.rows(), api.statistics.rule_hits());
    let audit = api.events.as_ref().and_then(Events::audit_counts);
    let counts = ProgramCounts {
        auto: api.auto.counts,
        audit,
        decider: api.decisions.counts(),
    };
    let text = render(&workers, &hits, &counts);
    Answer::Now(HttpResponse::metrics(text))
}

/// Counts of the supervisor.
#[derive(Debug, Default)]
struct ProgramCounts {
    /// Numbers of ports that were found for `auto`.
    auto: [AutoCounts; 2],
    /// Counts of the audit file, if there is one.
    audit: Option<[u64; 2]>,
    /// Counts of the deciders, if one is required.
    decider: Option<DeciderCounts>,
}

/// Returns the Prometheus text of the workers' statistics, the hits of egress rules by the rules' text, and the counts of the
/// supervisor.
fn render(workers: &[Row], hits: &RuleHits, counts: &ProgramCounts) -> String {
    let labels: Vec<String> = (0..workers.len()).map(|worker| worker.to_string()).collect();
    let mut text = MetricsText::new("pontoon");
    let families = Counters::describe().chain(LinkCounters::describe());
    values(&mut text, &labels, MetricType::Counter, families, |at| {
        workers[at].counters()
    });
    // Those of the process are in the first worker's row.
    let first = &labels[..labels.len().min(1)];
    values(
        &mut text,
        first,
        MetricType::Counter,
        ProcessCounters::describe(),
        |at| workers[at].process().iter(),
    );
    values(&mut text, &labels, MetricType::Gauge, Gauges::describe(), |at| {
        workers[at].gauges().iter()
    });
    histograms(&mut text, &labels, workers);
    let help = "1 if a layer of the sandbox is in force, else 0.";
    let mut family = text.family(MetricType::Gauge, LAYER.trim_end_matches('_'), help);
    for (layer, active) in workers.iter().take(1).flat_map(Row::layers) {
        family.sample(&[("layer", layer)], active);
    }
    let help = "Packets that matched an egress rule.";
    let mut family = text.family(MetricType::Counter, "egress_hits", help);
    for (rule, hits) in by_text(hits) {
        family.sample(&[("rule", &rule)], hits);
    }
    program(&mut text, counts);
    text.finish()
}

/// Writes the counts of the supervisor.
fn program(text: &mut MetricsText, counts: &ProgramCounts) {
    let help = "Ports found for auto: open, taken by another program, or in excess of the limit.";
    let mut family = text.family(MetricType::Gauge, "auto_ports", help);
    for (option, ports) in ["publish", "guest-forward"].into_iter().zip(&counts.auto) {
        for (state, count) in [
            ("open", ports.open),
            ("taken", ports.taken),
            ("excess", ports.excess),
        ] {
            family.sample(&[("option", option), ("state", state)], count);
        }
    }
    if let Some([errors, lost]) = counts.audit {
        let help = "Write errors of the audit file.";
        let mut family = text.family(MetricType::Counter, "audit_errors", help);
        family.sample(&[], errors);
        let help = "Records that are missing in the audit file because it could not be written.";
        let mut family = text.family(MetricType::Counter, "audit_lost", help);
        family.sample(&[], lost);
    }
    if let Some(decider) = counts.decider {
        let help = "Verdicts for requests that were not pending, such as those after the deadline.";
        let mut family = text.family(MetricType::Counter, "decider_late_verdicts", help);
        family.sample(&[], decider.late_verdicts);
        let help = "Errors of verdicts that the decider did not get because it has not read earlier ones.";
        let mut family = text.family(MetricType::Counter, "decider_unsent_errors", help);
        family.sample(&[], decider.unsent_errors);
    }
}

/// Writes a family for each of `families`: their names and meanings, in the order of the values that `of` returns of a worker.
fn values<I: Iterator<Item = (&'static str, u64)>>(
    text: &mut MetricsText,
    labels: &[String],
    metric_type: MetricType,
    families: impl Iterator<Item = (&'static str, &'static str)>,
    of: impl Fn(usize) -> I,
) {
    let mut workers: Vec<I> = (0..labels.len()).map(of).collect();
    for (name, help) in families {
        let mut family = text.family(metric_type, name, help.trim());
        for (worker, values) in labels.iter().zip(&mut workers) {
            if let Some((_, value)) = values.next() {
                family.sample(&[("worker", worker)], value);
            }
        }
    }
}

/// Writes the histograms of all workers.
fn histograms(text: &mut MetricsText, labels: &[String], workers: &[Row]) {
    let mut workers: Vec<_> = workers.iter().map(Row::histograms).collect();
    for Distribution { quantity, .. } in Row::default().histograms() {
        let mut family = text.family(MetricType::Histogram, quantity.name, quantity.help.trim());
        for (worker, histograms) in labels.iter().zip(&mut workers) {
            if let Some(histogram) = histograms.next() {
                let (sum, buckets) = in_units(&histogram);
                family.histogram(&[("worker", worker)], sum, &buckets);
            }
        }
    }
}

/// Returns the sum in the unit of the histogram's name, and the upper bound of each bucket with the number of values above the
/// bound before.
#[expect(
    clippy::cast_precision_loss,
    reason = "bounds are short numbers, and a sum may be rounded"
)]
fn in_units(histogram: &Distribution) -> (f64, Vec<(f64, u64)>) {
    let one = histogram.quantity.one as f64;
    let bounds = histogram.quantity.bounds.iter();
    let bounds = bounds.map(|bound| *bound as f64 / one).chain([f64::INFINITY]);
    // The engine is not trusted: counts whose sum overflows are cut.
    let mut all = 0_u64;
    let counts = histogram.counts.iter().map(|count| {
        let count = (*count).min(u64::MAX - all);
        all += count;
        count
    });
    (histogram.sum as f64 / one, bounds.zip(counts).collect())
}

/// Returns the hits by the text of the rule. Rules with the same text are one sample.
fn by_text(hits: &RuleHits) -> BTreeMap<String, u64> {
    let rules = hits.rules.iter().map(|(rule, hits)| (rule.to_string(), *hits));
    let beside = [("unlisted", hits.unlisted), ("resolvers", hits.resolvers)];
    let mut sums = BTreeMap::new();
    for (text, hits) in rules.chain(beside.map(|(text, hits)| (text.to_owned(), hits))) {
        let sum: &mut u64 = sums.entry(text).or_default();
        *sum = sum.saturating_add(hits);
    }
    sums
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pontoon_engine::{Histograms, WorkerId};
    use pontoon_worker::stats::{StatsTable, Values, WorkerHistograms};

    use super::*;
    use crate::statistics::Statistics;

    fn rendered() -> String {
        let table = StatsTable::private(2, 1);
        for worker in 0..2 {
            let counters = Counters {
                frames_up: 7 + u64::from(worker),
                ..Counters::default()
            };
            let mut values = Values::default();
            values.gauges.flows = 3;
            if worker == 0 {
                values.layers = [0, 1, 0, 0];
            }
            let mut histograms = Histograms::default();
            for time in [200_000, 200_000, 300_000, 31_000_000_000] {
                histograms.tcp_connect_seconds.count(time);
            }
            let histograms = (&histograms, &WorkerHistograms::default());
            let mut writer = table.writer(WorkerId(worker));
            writer.publish(&values, &counters, histograms, Some((1, [2, 0, 0].into_iter())));
        }
        let statistics = Statistics::new(table, vec!["deny 10.0.0.0/8".parse().unwrap()]);
        let counts = AutoCounts {
            open: 3,
            taken: 2,
            excess: 1,
        };
        let counts = ProgramCounts {
            auto: [counts; 2],
            audit: Some([4, 5]),
            decider: Some(DeciderCounts {
                late_verdicts: 6,
                unsent_errors: 7,
            }),
        };
        render(&statistics.rows(), &statistics.rule_hits(), &counts)
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
            "pontoon_tcp_connect_seconds_sum{worker=\"0\"} 31.0007",
            "pontoon_tcp_connect_seconds_count{worker=\"0\"} 4",
            "pontoon_tcp_connect_seconds_bucket{worker=\"0\",le=\"0.0001\"} 0",
            "pontoon_tcp_connect_seconds_bucket{worker=\"0\",le=\"0.00025\"} 2",
            "pontoon_tcp_connect_seconds_bucket{worker=\"0\",le=\"30.0\"} 3",
            "pontoon_tcp_connect_seconds_bucket{worker=\"0\",le=\"+Inf\"} 4",
            "pontoon_sandbox_layer{layer=\"root\"} 1",
            "pontoon_sandbox_layer{layer=\"landlock\"} 0",
            "pontoon_sandbox_refused_total{worker=\"0\"} 0",
            "# HELP pontoon_link_malformed_total Frames that the link dropped for meaningless offload metadata.",
            "pontoon_egress_hits_total{rule=\"unlisted\"} 0",
            "# TYPE pontoon_auto_ports gauge",
            "pontoon_auto_ports{option=\"publish\",state=\"taken\"} 2",
            "pontoon_auto_ports{option=\"guest-forward\",state=\"excess\"} 1",
            "pontoon_egress_hits_total{rule=\"deny 10.0.0.0/8\"} 4",
            "pontoon_audit_errors_total 4",
            "pontoon_audit_lost_total 5",
            "pontoon_decider_late_verdicts_total 6",
            "pontoon_decider_unsent_errors_total 7",
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
        let values = Row::default().counters().count() + ProcessCounters::COUNT + Gauges::COUNT;
        let others = Row::default().histograms().count() + 7;
        assert_eq!(seen.len(), values + others);
    }
}
