//! What the figures do not say by themselves, in words.

mod comparability;
mod conditions;
mod outcomes;
mod overhead;
mod significance;

use super::summary::Summary;

pub(super) use outcomes::{losses, outcome, outcomes};
pub(super) use overhead::{OWN_SHARE, own_shares};

/// About the run as a whole.
pub(super) fn of_run(summary: &Summary<'_>) -> Vec<String> {
    let mut notes = outcomes::of_run(summary.report);
    notes.extend(significance::of_run(summary));
    notes.extend(conditions::of_run(summary.report));
    notes.extend(overhead::of_run(summary));
    notes
}

/// About one scenario's cells.
pub(super) fn of_scenario(summary: &Summary<'_>, scenario: &str) -> Vec<String> {
    let cells: Vec<_> = summary.cells_of(scenario).collect();
    let mut notes = outcomes::of_cells(&cells);
    notes.extend(significance::of_cells(&cells, summary.report.plan.rounds));
    notes.extend(comparability::of_cells(&cells));
    notes.extend(overhead::of_cells(&cells, &summary.report.calibration));
    notes
}

/// `a`, `a and b`, `a, b and c`.
fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// `1 sample`, `2 samples`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", super::number::count(count as u64)),
    }
}
