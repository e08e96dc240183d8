//! Warnings about a whole run.

use std::fmt;

use super::list;
use crate::report::summary::Summary;
use crate::report::{Completeness, number};
use crate::schema::{BenchmarkReport, Calibration, Conditions, Sample};
use crate::stats::{CONFIDENCE, LEAST_PAIRS};

/// Number of CPUs busy with other work before a sample from which on a warning is shown. Kernel accounting has ticks
/// of 10 ms, one of which is 0.2 CPUs in 50 ms.
const BUSY_CPUS: f64 = 0.25;
/// Share of CPU time stolen by the hypervisor from which on a warning is shown; a tick in a second on two CPUs is
/// 0.005.
const STEAL: f64 = 0.02;
/// Clock drift relative to the sample's length from which on a warning is shown. NTP may slew a clock by half of it
/// (adjtimex(2)).
const DRIFT: f64 = 0.001;

/// A warning about a whole run. `Display` writes one line, with code between backticks.
pub(in crate::report) enum RunWarning<'a> {
    StackMissing {
        stack: &'a str,
        why: &'a str,
    },
    Incomplete(Completeness),
    NotMeasured(Completeness),
    TooFewRounds {
        rounds: u32,
    },
    ManyComparisons {
        count: usize,
    },
    NoBaseline,
    Disturbed {
        what: Disturbance,
        samples: usize,
        of: usize,
        worst: &'a Sample,
    },
    HarnessCost(&'a Calibration),
}

/// A condition that disturbs a sample: other load, stolen CPU time, or clock drift.
#[derive(Clone, Copy)]
pub(in crate::report) enum Disturbance {
    Busy,
    Steal,
    ClockDrift,
}

impl Disturbance {
    fn amount(self, conditions: &Conditions) -> f64 {
        match self {
            Self::Busy => conditions.busy_before,
            Self::Steal => conditions.steal,
            Self::ClockDrift => conditions.clock_drift_us.abs(),
        }
    }

    fn limit(self, report: &BenchmarkReport) -> f64 {
        match self {
            Self::Busy => BUSY_CPUS,
            Self::Steal => STEAL,
            Self::ClockDrift => DRIFT * report.plan.duration * 1e6,
        }
    }

    fn text(self, amount: f64) -> String {
        match self {
            Self::Busy => format!(
                "other processes used {} CPUs before the sample",
                number::figure(amount)
            ),
            Self::Steal => format!("the hypervisor took {} of the CPU time", number::percent(amount)),
            Self::ClockDrift => format!(
                "the monotonic clock and the wall clock drifted apart by {} µs",
                number::figure(amount)
            ),
        }
    }
}

/// Returns the warnings about a whole run.
pub(in crate::report) fn of_run<'a>(summary: &Summary<'a>) -> Vec<RunWarning<'a>> {
    let report = summary.report;
    let missing = report.stacks.iter().filter_map(|stack| {
        Some(RunWarning::StackMissing {
            stack: &stack.name,
            why: stack.missing.as_deref()?,
        })
    });
    let mut warnings: Vec<_> = missing.collect();
    let completeness = Completeness::of(report);
    if !completeness.is_taken() {
        warnings.push(RunWarning::Incomplete(completeness));
    }
    if completeness.measured < completeness.taken() {
        warnings.push(RunWarning::NotMeasured(completeness));
    }
    let rounds = report.plan.rounds;
    let ratios = summary.cells.iter().flat_map(|cell| &cell.entries);
    let count = ratios.filter(|entry| entry.to_baseline.is_some()).count();
    if (rounds as usize) < LEAST_PAIRS {
        warnings.push(RunWarning::TooFewRounds { rounds });
    } else if count > 1 {
        warnings.push(RunWarning::ManyComparisons { count });
    }
    if summary.cells.iter().all(|cell| cell.baseline.is_none()) && !summary.cells.is_empty() {
        warnings.push(RunWarning::NoBaseline);
    }
    let disturbances = [Disturbance::Busy, Disturbance::Steal, Disturbance::ClockDrift];
    warnings.extend(
        disturbances
            .into_iter()
            .filter_map(|what| disturbed(report, what)),
    );
    warnings.push(RunWarning::HarnessCost(&report.calibration));
    warnings
}

fn disturbed(report: &BenchmarkReport, what: Disturbance) -> Option<RunWarning<'_>> {
    let amount = |sample: &&Sample| what.amount(&sample.conditions);
    let limit = what.limit(report);
    let over = report.samples.iter().filter(|sample| amount(sample) > limit);
    Some(RunWarning::Disturbed {
        what,
        samples: over.clone().count(),
        of: report.samples.len(),
        worst: over.max_by(|left, right| amount(left).total_cmp(&amount(right)))?,
    })
}

impl fmt::Display for RunWarning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let confidence = CONFIDENCE * 100.0;
        match self {
            Self::StackMissing { stack, why } => write!(f, "{stack} is not part of this run: {why}."),
            Self::Incomplete(of) => write!(
                f,
                "The run is not complete: {} of {} planned samples were taken. The same command with `--resume` \
                 continues it.",
                number::count(of.taken() as u64),
                number::count(of.planned as u64),
            ),
            Self::NotMeasured(of) => write!(
                f,
                "Of {} samples {}; no figure contains them. They are listed below.",
                number::count(of.taken() as u64),
                not_measured(of),
            ),
            Self::TooFewRounds { rounds } => write!(
                f,
                "Too few rounds: with {} no difference is significant at {confidence:.0} % confidence, \
                 however large it is. At least {LEAST_PAIRS} are needed.",
                number::counted(*rounds as usize, "round"),
            ),
            Self::ManyComparisons { count } => write!(
                f,
                "Each comparison by itself has {confidence:.0} % confidence. If all stacks were equal, about {:.0} of \
                 the {count} comparisons in this report would be called significant.",
                (*count as f64 * (1.0 - CONFIDENCE)).ceil(),
            ),
            Self::NoBaseline => f.write_str(
                "Neither veth nor direct was measured, so no stack is compared with the kernel's own path.",
            ),
            Self::Disturbed {
                what,
                samples,
                of,
                worst,
            } => {
                let what = what.text(what.amount(&worst.conditions));
                write!(
                    f,
                    "Disturbed samples: {} of {}. At worst, {what} (`{}`, {}, round {}).",
                    number::count(*samples as u64),
                    number::count(*of as u64),
                    worst.cell,
                    worst.stack,
                    worst.round + 1,
                )
            }
            Self::HarnessCost(calibration) => write!(
                f,
                "Work of the harness, calibrated on this machine: {} ns to read the clock, {} ns to record a value, {} µs \
                 per MiB to write and check position stamps. Every figure contains it, the same for all stacks; the \
                 largest share is listed with each scenario.",
                number::figure(calibration.clock_ns),
                number::figure(calibration.record_ns),
                number::figure(calibration.stamp_ns_per_mib / 1e3),
            ),
        }
    }
}

/// Formats the numbers of samples that were not measured: `2 stalled and 1 failed`.
fn not_measured(of: &Completeness) -> String {
    let kinds = [
        (of.stalled, "stalled"),
        (of.unreachable, "were not possible"),
        (of.failed, "failed"),
    ];
    let kinds = kinds.iter().filter(|(count, _)| *count > 0);
    let kinds: Vec<_> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
    list(&kinds)
}
