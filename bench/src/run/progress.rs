//! Progress of a run on standard error: one line that is overwritten on a terminal, otherwise a line for each sample.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::schema::{METRICS, Sample, SampleOutcome};

/// The progress of a run, and its display.
pub(super) struct Progress {
    begun: Instant,
    total: usize,
    done: usize,
    /// Estimated seconds of the finished and of the remaining measurements.
    cost_done: f64,
    cost_left: f64,
    terminal: bool,
}

impl Progress {
    pub(super) fn start(total: usize, cost: f64) -> Self {
        write_stderr(&format!(
            "{total} measurements, about {}\n",
            format_duration(cost)
        ));
        Self {
            begun: Instant::now(),
            total,
            done: 0,
            cost_done: 0.0,
            cost_left: cost,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Shows on standard error which measurement begins.
    pub(super) fn start_sample(&self, cell: &str, stack: &str) {
        if self.terminal {
            self.line(&format!("{cell} {stack} ..."));
        }
    }

    /// Shows the result of a measurement, whose duration was estimated as `cost` seconds.
    pub(super) fn report(&mut self, sample: &Sample, figure: &str, cost: f64) {
        self.done += 1;
        self.cost_done += cost;
        self.cost_left = (self.cost_left - cost).max(0.0);
        let text = format!("{} {}: {}", sample.cell, sample.stack, outcome(sample, figure));
        let bad = matches!(
            sample.outcome,
            SampleOutcome::Stalled { .. } | SampleOutcome::Failed { .. }
        );
        if self.terminal && !bad {
            self.line(&text);
        } else {
            self.clear();
            write_stderr(&format!("{}\n", self.prefixed(&text)));
        }
    }

    pub(super) fn finish(&self) {
        self.clear();
    }

    fn line(&self, text: &str) {
        let line = self.prefixed(text);
        let width =
            rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        // Some terminals report 0 columns.
        let width = if width == 0 { 80 } else { width };
        let line: String = line.chars().take(width - 1).collect();
        write_stderr(&format!("\r\x1b[K{line}"));
    }

    fn clear(&self) {
        if self.terminal {
            write_stderr("\r\x1b[K");
        }
    }

    fn prefixed(&self, text: &str) -> String {
        format!(
            "[{}/{}, {} left] {text}",
            self.done,
            self.total,
            format_duration(self.left())
        )
    }

    /// Returns the remaining time of the run in seconds, extrapolated from the finished measurements.
    fn left(&self) -> f64 {
        let pace = if self.done < 3 {
            1.0
        } else {
            self.begun.elapsed().as_secs_f64() / self.cost_done
        };
        self.cost_left * pace
    }
}

/// Writes to standard error, and ignores errors, as the reader of a pipe may have ended.
fn write_stderr(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn outcome(sample: &Sample, figure: &str) -> String {
    match &sample.outcome {
        SampleOutcome::Measured => {
            let unit = METRICS
                .iter()
                .find(|metric| metric.name == figure)
                .map_or("", |metric| metric.unit);
            match sample.values.get(figure) {
                Some(value) if *value >= 100.0 => format!("{value:.0} {unit}"),
                Some(value) => format!("{value:.3} {unit}"),
                None => "done".to_owned(),
            }
        }
        SampleOutcome::Stalled { at_byte } => format!("stalled at byte {at_byte}"),
        SampleOutcome::Unreachable { why } => format!("not possible: {why}"),
        SampleOutcome::Failed { why } => format!("failed: {why}"),
    }
}

/// Formats a duration: `45 s`, `12 min`, `1 h 40 min`.
pub(super) fn format_duration(seconds: f64) -> String {
    let duration = Duration::from_secs_f64(seconds.max(0.0));
    match duration.as_secs() {
        whole @ 0..=99 => format!("{whole} s"),
        whole @ 100..=5999 => format!("{} min", whole.div_ceil(60)),
        whole => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}
