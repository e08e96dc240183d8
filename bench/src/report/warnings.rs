//! Warnings of a report: figures that are missing, not significant, disturbed, or not comparable.

mod cells;
mod run;

pub(super) use cells::of_scenario;
pub(super) use run::of_run;

/// Formats a list of words: `a`, `a and b`, `a, b and c`.
fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}
