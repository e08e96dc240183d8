//! Which differences mean nothing.

use super::list;
use crate::report::number;
use crate::report::summary::{CellSummary, Summary, Verdict};
use crate::stats::{CONFIDENCE, LEAST_PAIRS};

pub(super) fn of_run(summary: &Summary<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let rounds = summary.report.plan.rounds;
    let ratios = || {
        summary
            .cells
            .iter()
            .flat_map(|cell| &cell.entries)
            .filter(|entry| entry.to_baseline.is_some())
    };
    if (rounds as usize) < LEAST_PAIRS {
        notes.push(format!(
            "Too few rounds: with {rounds} no difference can be told from chance at {:.0} % confidence, however large it \
             looks; it takes {LEAST_PAIRS}.",
            CONFIDENCE * 100.0
        ));
    } else if ratios().count() > 1 {
        notes.push(format!(
            "Every comparison has {:.0} % confidence of its own. Of the {} in this report, at most about {:.0} would be \
             called significant if all stacks were equal.",
            CONFIDENCE * 100.0,
            ratios().count(),
            (ratios().count() as f64 * (1.0 - CONFIDENCE)).ceil(),
        ));
    }
    if summary.cells.iter().all(|cell| cell.baseline.is_none()) && !summary.cells.is_empty() {
        notes.push(
            "Neither veth nor direct was measured, so nothing is compared with the kernel's own path."
                .to_owned(),
        );
    }
    notes
}

/// Too few rounds in the whole run are said once, by [`of_run`].
pub(super) fn of_cells(cells: &[&CellSummary<'_>], rounds: u32) -> Vec<String> {
    let mut notes = Vec::new();
    for of in cells {
        let Some(baseline) = of.baseline.filter(|_| !of.cell.once) else {
            continue;
        };
        let with = |verdict| {
            let ratios = of
                .entries
                .iter()
                .filter_map(|entry| Some((entry, entry.to_baseline?)));
            let found: Vec<_> = ratios
                .filter(|(_, ratio)| of.verdict(ratio) == verdict)
                .map(|(entry, ratio)| match ratio.interval {
                    Some(interval) => format!("{} ({})", entry.stack.name, number::factors(interval)),
                    None => entry.stack.name.clone(),
                })
                .collect();
            found
        };
        let (equal, few) = (with(Verdict::NotSignificant), with(Verdict::TooFew));
        let (name, to) = (&of.cell.name, &baseline.name);
        if !equal.is_empty() {
            notes.push(format!(
                "`{name}`: no significant difference from {to}: {}.",
                list(&equal)
            ));
        }
        if !few.is_empty() && rounds as usize >= LEAST_PAIRS {
            notes.push(format!(
                "`{name}`: too few rounds to tell from {to}: {}.",
                list(&few)
            ));
        }
    }
    notes
}
