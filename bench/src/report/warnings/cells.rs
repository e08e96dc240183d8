//! Warnings about the cells of one scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::list;
use crate::report::overhead::{self, HarnessShare};
use crate::report::summary::{CellSummary, StackSummary, Summary, Verdict};
use crate::report::{number, outcome};
use crate::schema::{Calibration, Conditions};
use crate::stats::LEAST_PAIRS;

/// The share of the harness in a figure from which on a warning is shown.
const LEAST_SHARE: f64 = 0.001;
/// The share of a CPU, used by the harness, from which on the harness limits the figure of a fast stack.
const LIMITING_SHARE: f64 = 0.5;

/// A warning about one or several cells. `Display` writes one line, with code between backticks.
pub(in crate::report) enum CellWarning<'a> {
    SampleOutcome {
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
        share: HarnessShare,
        cell: &'a str,
        stack: &'a str,
    },
}

/// Returns the warnings about the cells of one scenario.
pub(in crate::report) fn of_scenario<'a>(summary: &'a Summary<'a>, scenario: &str) -> Vec<CellWarning<'a>> {
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

/// Returns one warning for each outcome except `Measured` in a cell, with the stacks that have it.
fn outcomes<'a>(of: &'a CellSummary<'a>) -> impl Iterator<Item = CellWarning<'a>> {
    let mut stacks_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in &of.entries {
        for outcome in outcome::all(entry) {
            stacks_of
                .entry(outcome)
                .or_default()
                .push(entry.stack.name.clone());
        }
    }
    stacks_of
        .into_iter()
        .map(|(outcome, stacks)| CellWarning::SampleOutcome {
            cell: &of.cell.name,
            stacks,
            outcome,
        })
}

/// Returns warnings about stacks without a significant difference to the baseline. If the whole run has too few
/// rounds, [`super::of_run`] warns instead.
fn insignificant<'a>(of: &'a CellSummary<'a>, rounds: usize) -> Vec<CellWarning<'a>> {
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
        warnings.push(CellWarning::NotSignificant {
            cell,
            baseline,
            stacks,
        });
    }
    let stacks = with(Verdict::TooFew);
    if !stacks.is_empty() && rounds >= LEAST_PAIRS {
        warnings.push(CellWarning::TooFewPairs {
            cell,
            baseline,
            stacks,
        });
    }
    warnings
}

/// Returns warnings about a condition that differs between the stacks of a cell: one for each set of values, with the
/// cells that have these values.
fn differing<'a>(
    cells: &[&CellSummary<'_>],
    what: &'static str,
    value: impl Fn(&Conditions) -> Option<String>,
) -> impl Iterator<Item = CellWarning<'a>> {
    let seen = |entry: &StackSummary<'_>| -> BTreeSet<String> {
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
    let warning = move |(values, cells)| CellWarning::ConditionsDiffer { what, cells, values };
    cells_of.into_iter().map(warning)
}

/// Returns a warning about the largest share of the harness in a figure of a scenario.
fn largest_share<'a>(cells: &[&'a CellSummary<'a>], calibration: &Calibration) -> Option<CellWarning<'a>> {
    let of_cell = |of: &&'a CellSummary<'a>| {
        let of = *of;
        of.entries.iter().filter_map(move |entry| {
            let share = overhead::share(&of.cell.figure, entry.spread?.median, calibration)?;
            Some(CellWarning::HarnessShare {
                share,
                cell: &of.cell.name,
                stack: &entry.stack.name,
            })
        })
    };
    let value = |warning: &CellWarning<'_>| match warning {
        CellWarning::HarnessShare { share, .. } => share.value(),
        _ => 0.0,
    };
    cells
        .iter()
        .flat_map(of_cell)
        .max_by(|left, right| value(left).total_cmp(&value(right)))
        .filter(|warning| value(warning) >= LEAST_SHARE)
}

impl fmt::Display for CellWarning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SampleOutcome {
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
                    HarnessShare::Cpu(share) if *share >= LIMITING_SHARE => {
                        f.write_str(" It limits the fastest stacks: without it they would be faster.")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}
