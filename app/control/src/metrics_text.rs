//! Writer of Prometheus' text exposition format, version 0.0.4, which Prometheus, VictoriaMetrics, Telegraf and the
//! OpenTelemetry collector read.

use std::fmt::{Display, Write};

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Value that only increases.
    Counter,
    /// Value that increases and decreases.
    Gauge,
    /// Counts of values by bucket.
    Histogram,
}

/// Text of the metric families that have been written.
#[derive(Debug)]
pub struct MetricsText {
    prefix: &'static str,
    text: String,
}

impl MetricsText {
    /// Returns an empty text. The names of its metrics begin with `prefix` and an underscore.
    pub const fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            text: String::new(),
        }
    }

    /// Begins a metric family. The name of a counter gets the suffix `_total`.
    pub fn family(&mut self, kind: MetricType, name: &str, help: &str) -> MetricFamily<'_> {
        let (kind, suffix) = match kind {
            MetricType::Counter => ("counter", "_total"),
            MetricType::Gauge => ("gauge", ""),
            MetricType::Histogram => ("histogram", ""),
        };
        let name = format!("{}_{name}{suffix}", self.prefix);
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
        MetricFamily { name, metrics: self }
    }

    /// Returns the complete text of all families.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes all text");
    }
}

/// Metric family to which samples are added.
#[derive(Debug)]
pub struct MetricFamily<'a> {
    name: String,
    metrics: &'a mut MetricsText,
}

impl MetricFamily<'_> {
    /// Adds a sample of a counter or a gauge with these labels.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: u64) -> &mut Self {
        self.line("", labels, value);
        self
    }

    /// Adds a histogram: the sum of its values, and the upper bound and count of each bucket, in ascending order. A bucket
    /// counts the values between the previous bound and its own; the text has cumulative counts. The last bound is
    /// infinity.
    pub fn histogram(&mut self, labels: &[(&str, &str)], sum: f64, buckets: &[(f64, u64)]) -> &mut Self {
        let mut cumulative = 0_u64;
        for (bound, count) in buckets {
            cumulative = cumulative.saturating_add(*count);
            let bound = if bound.is_finite() {
                format!("{bound:?}")
            } else {
                "+Inf".to_owned()
            };
            let labels = [labels, &[("le", bound.as_str())]].concat();
            self.line("_bucket", &labels, cumulative);
        }
        self.line("_sum", labels, format_args!("{sum:?}"));
        self.line("_count", labels, cumulative);
        self
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let name = &self.name;
        let pairs: Vec<String> = labels
            .iter()
            .map(|(label, value)| label_pair(label, value))
            .collect();
        let set = if pairs.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", pairs.join(","))
        };
        self.metrics.line(format_args!("{name}{suffix}{set} {value}"));
    }
}

fn label_pair(label: &str, value: &str) -> String {
    let value = value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n");
    format!("{label}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_end_in_total_and_labels_are_escaped() {
        let mut text = MetricsText::new("p");
        text.family(MetricType::Counter, "a", "First\nsecond \\.")
            .sample(&[("b", "x\"y\\z\n"), ("c", "d")], 1)
            .sample(&[], 2);
        text.family(MetricType::Gauge, "g", "Measured.").sample(&[], 3);
        let wanted = "# HELP p_a_total First\\nsecond \\\\.\n# TYPE p_a_total counter\n\
                      p_a_total{b=\"x\\\"y\\\\z\\n\",c=\"d\"} 1\np_a_total 2\n\
                      # HELP p_g Measured.\n# TYPE p_g gauge\np_g 3\n";
        assert_eq!(text.finish(), wanted);
    }

    #[test]
    fn buckets_of_histograms_are_cumulative() {
        let mut text = MetricsText::new("p");
        text.family(MetricType::Histogram, "h_seconds", "Times.")
            .histogram(&[("w", "0")], 1.5, &[(0.5, 2), (30.0, 1), (f64::INFINITY, 4)]);
        let wanted = "# HELP p_h_seconds Times.\n# TYPE p_h_seconds histogram\n\
                      p_h_seconds_bucket{w=\"0\",le=\"0.5\"} 2\np_h_seconds_bucket{w=\"0\",le=\"30.0\"} 3\n\
                      p_h_seconds_bucket{w=\"0\",le=\"+Inf\"} 7\np_h_seconds_sum{w=\"0\"} 1.5\n\
                      p_h_seconds_count{w=\"0\"} 7\n";
        assert_eq!(text.finish(), wanted);
    }
}
