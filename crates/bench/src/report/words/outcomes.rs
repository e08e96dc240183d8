//! What was not measured, and why.

use std::collections::BTreeMap;

use super::{counted, list};
use crate::report::Completeness;
use crate::report::number;
use crate::report::summary::{CellSummary, Entry};
use crate::schema::{Outcome, Report};

pub(super) fn of_run(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    for stack in &report.stacks {
        if let Some(why) = &stack.missing {
            notes.push(format!("{} is not part of this run: {why}.", stack.name));
        }
    }
    let of = Completeness::of(report);
    if of.taken() < of.planned {
        notes.push(format!(
            "The run is not complete: {} of {} planned samples were taken. The same command with `--resume` goes on.",
            number::count(of.taken() as u64),
            number::count(of.planned as u64),
        ));
    }
    if of.measured < of.taken() {
        let parts: Vec<_> = [
            (of.stalled, "stalled"),
            (of.unreachable, "were not possible"),
            (of.failed, "failed"),
        ]
        .into_iter()
        .filter(|&(count, _)| count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        notes.push(format!(
            "Of {} samples {}; they are in no figure and named below.",
            number::count(of.taken() as u64),
            list(&parts)
        ));
    }
    notes
}

/// One note for all stacks of a cell that ended in the same way.
pub(super) fn of_cells(cells: &[&CellSummary<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    for CellSummary { cell, entries, .. } in cells {
        let mut alike: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in entries {
            for what in outcomes(entry) {
                alike.entry(what).or_default().push(entry.stack.name.clone());
            }
        }
        notes.extend(
            alike
                .iter()
                .map(|(what, names)| format!("`{}`: {} {what}.", cell.name, list(names))),
        );
    }
    notes
}

/// `stalled in 2 of 7 rounds (at byte 1,024)`, one for each kind of outcome but the measured.
pub(in crate::report) fn outcomes(entry: &Entry<'_>) -> Vec<String> {
    let mut kinds: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut why_of = |kind, why: String| kinds.entry(kind).or_default().push(why);
    for sample in &entry.samples {
        match &sample.outcome {
            Outcome::Measured => {}
            Outcome::Stalled { at_byte } => why_of("stalled", format!("at byte {}", number::count(*at_byte))),
            Outcome::Unreachable { why } => why_of("could not do it", why.clone()),
            Outcome::Failed { why } => why_of("failed", why.clone()),
        }
    }
    let rounds = entry.samples.len();
    let sentence = |(kind, mut whys): (&str, Vec<String>)| {
        let times = whys.len();
        whys.sort();
        whys.dedup();
        let more = if whys.len() > 3 { ", ..." } else { "" };
        whys.truncate(3);
        format!(
            "{kind} in {times} of {} ({}{more})",
            counted(rounds, "round"),
            whys.join("; ")
        )
    };
    kinds.into_iter().map(sentence).collect()
}

/// `2 of 7 stalled`: how many of a figure's samples are missing from it; none where none are, or all.
pub(in crate::report) fn losses(entry: &Entry<'_>) -> Option<String> {
    let count = |is: fn(&Outcome) -> bool| entry.samples.iter().filter(|sample| is(&sample.outcome)).count();
    let kinds = [
        (
            count(|outcome| matches!(outcome, Outcome::Stalled { .. })),
            "stalled",
        ),
        (
            count(|outcome| matches!(outcome, Outcome::Unreachable { .. })),
            "not possible",
        ),
        (
            count(|outcome| matches!(outcome, Outcome::Failed { .. })),
            "failed",
        ),
    ];
    let words: Vec<_> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} of {} {what}", entry.samples.len()))
        .collect();
    (entry.is_measured() && !words.is_empty()).then(|| words.join(", "))
}

/// Why there is no figure, in a word or three.
pub(in crate::report) fn outcome(entry: &Entry<'_>) -> String {
    match entry.samples.last().map(|sample| &sample.outcome) {
        None => "not run".to_owned(),
        Some(Outcome::Stalled { at_byte }) => format!("stalled at byte {}", number::count(*at_byte)),
        Some(Outcome::Unreachable { .. }) => "not possible".to_owned(),
        Some(Outcome::Failed { .. }) => "failed".to_owned(),
        Some(Outcome::Measured) => "no such figure".to_owned(),
    }
}
