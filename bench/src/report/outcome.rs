//! Texts about samples that stalled, failed or were unreachable.

use std::collections::BTreeMap;

use crate::schema::SampleOutcome;

use super::number;
use super::summary::StackSummary;

/// Describes each outcome except `Measured` with its number of samples: `stalled in 2 of 7 rounds (at byte 1,024)`.
pub(super) fn all(entry: &StackSummary<'_>) -> Vec<String> {
    let mut kinds: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut add = |kind, reason: String| kinds.entry(kind).or_default().push(reason);
    for sample in &entry.samples {
        match &sample.outcome {
            SampleOutcome::Measured => {}
            SampleOutcome::Stalled { at_byte } => {
                add("stalled", format!("at byte {}", number::count(*at_byte)))
            }
            SampleOutcome::Unreachable { why } => add("not possible", why.clone()),
            SampleOutcome::Failed { why } => add("failed", why.clone()),
        }
    }
    let rounds = entry.samples.len();
    let sentence = |(kind, mut reasons): (&str, Vec<String>)| {
        let times = reasons.len();
        reasons.sort();
        reasons.dedup();
        let more = if reasons.len() > 3 { ", ..." } else { "" };
        reasons.truncate(3);
        format!(
            "{kind} in {times} of {} ({}{more})",
            number::counted(rounds, "round"),
            reasons.join("; ")
        )
    };
    kinds.into_iter().map(sentence).collect()
}

/// Describes how many samples are missing from a figure: `2 of 7 stalled`. Returns `None` if all samples were
/// measured, or none.
pub(super) fn losses(entry: &StackSummary<'_>) -> Option<String> {
    let mut counts = [(0, "stalled"), (0, "not possible"), (0, "failed")];
    for sample in &entry.samples {
        match sample.outcome {
            SampleOutcome::Measured => {}
            SampleOutcome::Stalled { .. } => counts[0].0 += 1,
            SampleOutcome::Unreachable { .. } => counts[1].0 += 1,
            SampleOutcome::Failed { .. } => counts[2].0 += 1,
        }
    }
    let losses: Vec<_> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} of {} {kind}", entry.samples.len()))
        .collect();
    (entry.is_measured() && !losses.is_empty()).then(|| losses.join(", "))
}

/// Returns the reason in a few words why a stack has no figure: the outcome of its last sample.
pub(super) fn last(entry: &StackSummary<'_>) -> String {
    match entry.samples.last().map(|sample| &sample.outcome) {
        None => "not run".to_owned(),
        Some(SampleOutcome::Stalled { at_byte }) => format!("stalled at byte {}", number::count(*at_byte)),
        Some(SampleOutcome::Unreachable { .. }) => "not possible".to_owned(),
        Some(SampleOutcome::Failed { .. }) => "failed".to_owned(),
        Some(SampleOutcome::Measured) => "no such figure".to_owned(),
    }
}
