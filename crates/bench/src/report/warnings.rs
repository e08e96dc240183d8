//! Warnings of a report: figures that are missing, not significant, disturbed, or not comparable.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::schema::{Calibration, Conditions, Report, Sample};
use crate::stats::{CONFIDENCE, LEAST_PAIRS};

use super::overhead::{self, Share};
use super::summary::{CellSummary, Entry, Summary, Verdict};
use super::{Completeness, number, outcome};

/// CPUs busy with other work. Kernel accounting has ticks of 10 ms, one of which is 0.2 CPUs in 50 ms.
const BUSY_CPUS: f64 = 0.25;
/// Share of CPU time; a tick in a second on two CPUs is 0.005.
const STEAL: f64 = 0.02;
/// Share of the sample's length. NTP may slew a clock by half of it (adjtimex(2)).
const DRIFT: f64 = 0.001;
/// The least share of the harness that is worth a warning.
const LEAST_SHARE: f64 = 0.001;
/// The share of a CPU from which on the harness limits a fast stack.
const LIMITING_SHARE: f64 = 0.5;

/// A warning. `Display` gives one line, with code between backticks.
pub(super) enum Warning<'a> {
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
    Outcome {
        cell: &'a str,
        stacks: Vec<String>,
        outcome: String,
    },
    NotSignificant {
        cell: &'a str,
        baseline: &'a str,
        stacks: Vec<String>,
    },
    TooFewPairs {
        cell: &'a str,
        baseline: &'a str,
        stacks: Vec<String>,
    },
    ConditionsDiffer {
        what: &'static str,
        cells: Vec<String>,
        values: String,
    },
    HarnessShare {
        share: Share,
        cell: &'a str,
        stack: &'a str,
    },
}

#[derive(Clone, Copy)]
pub(super) enum Disturbance {
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

    fn limit(self, report: &Report) -> f64 {
        match self {
            Self::Busy => BUSY_CPUS,
            Self::Steal => STEAL,
            Self::ClockDrift => DRIFT * report.plan.duration * 1e6,
        }
    }
}

/// Returns the warnings about a run as a whole.
pub(super) fn of_run<'a>(summary: &Summary<'a>) -> Vec<Warning<'a>> {
    let report = summary.report;
    let missing = report.stacks.iter().filter_map(|stack| {
        Some(Warning::StackMissing {
            stack: &stack.name,
            why: stack.missing.as_deref()?,
        })
    });
    let mut warnings: Vec<_> = missing.collect();
    let completeness = Completeness::of(report);
    if !completeness.is_taken() {
        warnings.push(Warning::Incomplete(completeness));
    }
    if completeness.measured < completeness.taken() {
        warnings.push(Warning::NotMeasured(completeness));
    }
    let rounds = report.plan.rounds;
    let ratios = summary.cells.iter().flat_map(|cell| &cell.entries);
    let count = ratios.filter(|entry| entry.to_baseline.is_some()).count();
    if (rounds as usize) < LEAST_PAIRS {
        warnings.push(Warning::TooFewRounds { rounds });
    } else if count > 1 {
        warnings.push(Warning::ManyComparisons { count });
    }
    if summary.cells.iter().all(|cell| cell.baseline.is_none()) && !summary.cells.is_empty() {
        warnings.push(Warning::NoBaseline);
    }
    let disturbances = [Disturbance::Busy, Disturbance::Steal, Disturbance::ClockDrift];
    warnings.extend(
        disturbances
            .into_iter()
            .filter_map(|what| disturbed(report, what)),
    );
    warnings.push(Warning::HarnessCost(&report.calibration));
    warnings
}

fn disturbed(report: &Report, what: Disturbance) -> Option<Warning<'_>> {
    let amount = |sample: &&Sample| what.amount(&sample.conditions);
    let limit = what.limit(report);
    let over = report.samples.iter().filter(|sample| amount(sample) > limit);
    Some(Warning::Disturbed {
        what,
        samples: over.clone().count(),
        of: report.samples.len(),
        worst: over.max_by(|left, right| amount(left).total_cmp(&amount(right)))?,
    })
}

/// Returns the warnings about the cells of one scenario.
pub(super) fn of_scenario<'a>(summary: &'a Summary<'a>, scenario: &str) -> Vec<Warning<'a>> {
    let cells: Vec<_> = summary.cells_of(scenario).collect();
    let mut warnings: Vec<_> = cells.iter().flat_map(|of| outcomes(of)).collect();
    let rounds = summary.report.plan.rounds as usize;
    warnings.extend(cells.iter().flat_map(|of| insignificant(of, rounds)));
    warnings.extend(differing(&cells, "congestion control (client, server)", |at| {
        let [client, server] = at.congestion_control.as_ref()?;
        Some(format!("{client}, {server}"))
    }));
    warnings.extend(differing(&cells, "the guest's MTU", |at| {
        at.mtu.map(|mtu| mtu.to_string())
    }));
    warnings.extend(differing(&cells, "the interface's queue length", |at| {
        at.queue_length.map(|length| length.to_string())
    }));
    warnings.extend(largest_share(&cells, &summary.report.calibration));
    warnings
}

/// Returns one warning for all stacks of a cell with the same outcome.
fn outcomes<'a>(of: &'a CellSummary<'a>) -> impl Iterator<Item = Warning<'a>> {
    let mut stacks_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in &of.entries {
        for outcome in outcome::all(entry) {
            stacks_of
                .entry(outcome)
                .or_default()
                .push(entry.stack.name.clone());
        }
    }
    stacks_of.into_iter().map(|(outcome, stacks)| Warning::Outcome {
        cell: &of.cell.name,
        stacks,
        outcome,
    })
}

/// Too few rounds in the whole run are a warning of [`of_run`].
fn insignificant<'a>(of: &'a CellSummary<'a>, rounds: usize) -> Vec<Warning<'a>> {
    let Some(baseline) = of.baseline.filter(|_| !of.cell.once) else {
        return Vec::new();
    };
    let with = |verdict| -> Vec<String> {
        let ratios = of.entries.iter().filter_map(|entry| {
            let ratio = entry.to_baseline?;
            (of.verdict(&ratio) == verdict).then_some((&entry.stack.name, ratio.interval))
        });
        ratios
            .map(|(name, interval)| match interval {
                Some(interval) => format!("{name} ({})", number::factors(interval)),
                None => name.clone(),
            })
            .collect()
    };
    let (cell, baseline) = (&*of.cell.name, &*baseline.name);
    let mut warnings = Vec::new();
    let stacks = with(Verdict::NotSignificant);
    if !stacks.is_empty() {
        warnings.push(Warning::NotSignificant {
            cell,
            baseline,
            stacks,
        });
    }
    let stacks = with(Verdict::TooFew);
    if !stacks.is_empty() && rounds >= LEAST_PAIRS {
        warnings.push(Warning::TooFewPairs {
            cell,
            baseline,
            stacks,
        });
    }
    warnings
}

/// Returns one warning for each set of differences between the stacks of a cell, with the cells that share it.
fn differing<'a>(
    cells: &[&CellSummary<'_>],
    what: &'static str,
    value: impl Fn(&Conditions) -> Option<String>,
) -> impl Iterator<Item = Warning<'a>> {
    let seen = |entry: &Entry<'_>| -> BTreeSet<String> {
        let samples = entry.samples.iter();
        samples.filter_map(|sample| value(&sample.conditions)).collect()
    };
    let mut cells_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for CellSummary { cell, entries, .. } in cells {
        let mut stacks_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in entries {
            for value in seen(entry) {
                stacks_of.entry(value).or_default().push(entry.stack.name.clone());
            }
        }
        if stacks_of.len() > 1 {
            let values = stacks_of
                .iter()
                .map(|(value, stacks)| format!("{value} for {}", list(stacks)));
            let values = values.collect::<Vec<_>>().join("; ");
            cells_of
                .entry(values)
                .or_default()
                .push(format!("`{}`", cell.name));
        }
    }
    let warning = move |(values, cells)| Warning::ConditionsDiffer { what, cells, values };
    cells_of.into_iter().map(warning)
}

/// Returns the harness's largest share of any figure of a scenario, which is where the figure is best.
fn largest_share<'a>(cells: &[&'a CellSummary<'a>], calibration: &Calibration) -> Option<Warning<'a>> {
    let of_cell = |of: &&'a CellSummary<'a>| {
        let of = *of;
        of.entries.iter().filter_map(move |entry| {
            let share = overhead::share(&of.cell.figure, entry.spread?.median, calibration)?;
            Some(Warning::HarnessShare {
                share,
                cell: &of.cell.name,
                stack: &entry.stack.name,
            })
        })
    };
    let value = |warning: &Warning<'_>| match warning {
        Warning::HarnessShare { share, .. } => share.value(),
        _ => 0.0,
    };
    cells
        .iter()
        .flat_map(of_cell)
        .max_by(|left, right| value(left).total_cmp(&value(right)))
        .filter(|warning| value(warning) >= LEAST_SHARE)
}

impl fmt::Display for Warning<'_> {
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
            Self::NotMeasured(of) => {
                let kinds = [
                    (of.stalled, "stalled"),
                    (of.unreachable, "were not possible"),
                    (of.failed, "failed"),
                ];
                let kinds = kinds.iter().filter(|(count, _)| *count > 0);
                let kinds: Vec<_> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
                let taken = number::count(of.taken() as u64);
                write!(
                    f,
                    "Of {taken} samples {}; no figure contains them. They are listed below.",
                    list(&kinds)
                )
            }
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
                let amount = what.amount(&worst.conditions);
                let what = match what {
                    Disturbance::Busy => {
                        format!(
                            "other processes used {} CPUs before the sample",
                            number::figure(amount)
                        )
                    }
                    Disturbance::Steal => {
                        format!("the hypervisor took {} of the CPU time", number::percent(amount))
                    }
                    Disturbance::ClockDrift => {
                        format!(
                            "the monotonic clock and the wall clock drifted apart by {} µs",
                            number::figure(amount)
                        )
                    }
                };
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
            Self::Outcome {
                cell,
                stacks,
                outcome,
            } => write!(f, "`{cell}`: {}: {outcome}.", list(stacks)),
            Self::NotSignificant {
                cell,
                baseline,
                stacks,
            } => {
                write!(
                    f,
                    "`{cell}`: no significant difference from {baseline}: {}.",
                    list(stacks)
                )
            }
            Self::TooFewPairs {
                cell,
                baseline,
                stacks,
            } => {
                write!(
                    f,
                    "`{cell}`: too few rounds for a comparison with {baseline}: {}.",
                    list(stacks)
                )
            }
            Self::ConditionsDiffer { what, cells, values } => {
                write!(f, "{}: {what} differs: {values}.", list(cells))
            }
            Self::HarnessShare { share, cell, stack } => {
                write!(
                    f,
                    "Work of the harness: up to {} (`{cell}`, {stack}).",
                    share.text()
                )?;
                match share {
                    Share::Cpu(share) if *share >= LIMITING_SHARE => {
                        f.write_str(" It limits the fastest stacks: without it they would be faster.")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Formats `a`, `a and b`, `a, b and c`.
fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}
