//! The table of all cases, and the differences below it.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::Result;

use crate::clients::cases::Case;
use crate::clients::known::DIFFERENCES;
use crate::clients::results::{Outcome, Results, opens, worse};

/// The results of a case with both programs.
pub(crate) struct Comparison<'a> {
    pub(crate) case: &'a Case,
    pub(crate) version: String,
    pub(crate) original: Results,
    pub(crate) ours: Results,
}

/// Prints the table and the differences. Returns false if there is a difference that is not known.
pub(crate) fn print(comparisons: &[Comparison<'_>]) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:<15} {:<26} {:<24} {:<26} ours",
        "client", "version", "case", "original"
    )?;
    for comparison in comparisons {
        writeln!(
            out,
            "{:<15} {:<26} {:<24} {:<26} {}",
            comparison.case.client.name(),
            comparison.version,
            comparison.case.function.replace('_', "-"),
            cell(&comparison.original),
            cell(&comparison.ours),
        )?;
    }
    let mut unknown = 0;
    for comparison in comparisons {
        for (check, difference) in differences(comparison) {
            let Comparison { original, ours, .. } = comparison;
            let known = DIFFERENCES
                .iter()
                .find(|known| known.covers(comparison.case, check))
                .filter(|_| !opens(original.checks.get(check), ours.checks.get(check)));
            let verdict = known.map_or_else(
                || "WORSE".to_owned(),
                |known| format!("known difference ({})", known.reason),
            );
            unknown += usize::from(known.is_none());
            writeln!(out, "{}: {check}: {verdict}: {difference}", comparison.case)?;
        }
    }
    for comparison in comparisons {
        for (check, outcome) in &comparison.original.checks {
            match (outcome, comparison.ours.checks.get(check)) {
                (Outcome::Failed(reason), Some(Outcome::Failed(_))) => {
                    writeln!(out, "{}: {check}: fails with both: {reason}", comparison.case)?;
                }
                (Outcome::Skipped(reason), _) => {
                    writeln!(out, "{}: {check}: skipped: {reason}", comparison.case)?;
                }
                (Outcome::Failed(reason), _) => {
                    writeln!(
                        out,
                        "{}: {check}: fails with the original only: {reason}",
                        comparison.case
                    )?;
                }
                _ => {}
            }
        }
    }
    writeln!(out, "{} cases, {unknown} checks worse", comparisons.len())?;
    Ok(unknown == 0)
}

/// Returns the checks that are worse with Pontoon's program, with a description of the difference.
fn differences<'a>(comparison: &'a Comparison<'_>) -> Vec<(&'a str, String)> {
    let Comparison { original, ours, .. } = comparison;
    let names: BTreeSet<&String> = original.checks.keys().chain(ours.checks.keys()).collect();
    let difference = |name: &'a String| {
        let difference = worse(original.checks.get(name), ours.checks.get(name))?;
        Some((name.as_str(), difference))
    };
    names.into_iter().filter_map(difference).collect()
}

/// Returns the numbers of passed and of all checks, and the remarks.
fn cell(results: &Results) -> String {
    let (passed, all) = results.count();
    let mut text = format!("{passed} of {all}");
    for note in &results.notes {
        text.push_str(", ");
        text.push_str(note);
    }
    text
}
