//! The results of one case with one program.

use std::collections::BTreeMap;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// Failed, with the reason.
    Failed(String),
    /// Not run, with the reason.
    Skipped(String),
    /// A text that has to be the same with both programs.
    Value(String),
}

/// The checks of a case by name, and remarks for the table.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) checks: BTreeMap<String, Outcome>,
    pub(crate) notes: Vec<String>,
}

impl Results {
    /// Parses the lines that a script prints: `check NAME pass`, `check NAME fail REASON`, `check NAME skip REASON`,
    /// `value NAME TEXT`, `note TEXT`. A check with several lines has passed if all of them have.
    pub(crate) fn parse(text: &str) -> Self {
        let mut results = Self::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (name, rest_of_check) = rest.split_once(' ').unwrap_or((rest, ""));
            match kind {
                "check" => {
                    let (result, reason) = rest_of_check.split_once(' ').unwrap_or((rest_of_check, ""));
                    match result {
                        "pass" => drop(results.checks.entry(name.to_owned()).or_insert(Outcome::Passed)),
                        "skip" => results.set(name, Outcome::Skipped(reason.trim().to_owned())),
                        _ => results.fail(name, reason),
                    }
                }
                "value" => results.set(name, Outcome::Value(rest_of_check.trim().to_owned())),
                "note" => results.notes.push(rest.to_owned()),
                _ => results.fail("output", &format!("unknown line: {line}")),
            }
        }
        results
    }

    /// Adds a failed check.
    pub(crate) fn fail(&mut self, name: &str, reason: &str) {
        self.set(name, Outcome::Failed(reason.trim().to_owned()));
    }

    /// Returns the failed checks with their reasons.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.checks.iter().filter_map(|(check, outcome)| match outcome {
            Outcome::Failed(reason) => Some((check.as_str(), reason.as_str())),
            _ => None,
        })
    }

    fn set(&mut self, name: &str, outcome: Outcome) {
        self.checks.insert(name.to_owned(), outcome);
    }

    /// Returns the numbers of the checks that passed and that ran.
    pub(crate) fn count(&self) -> (usize, usize) {
        let passed = |outcome: &&Outcome| matches!(outcome, Outcome::Passed | Outcome::Value(_));
        let failed = |outcome: &&Outcome| matches!(outcome, Outcome::Failed(_));
        let passed = self.checks.values().filter(passed).count();
        (passed, passed + self.checks.values().filter(failed).count())
    }
}

/// Compares the results of a check with both programs. Returns the difference if the result of the second one is worse.
pub(crate) fn worse(original: Option<&Outcome>, ours: Option<&Outcome>) -> Option<String> {
    match (original, ours) {
        (
            Some(Outcome::Passed | Outcome::Value(_)),
            Some(Outcome::Failed(reason) | Outcome::Skipped(reason)),
        ) => Some(reason.clone()),
        (Some(Outcome::Passed | Outcome::Value(_)), None) => Some("not reached".to_owned()),
        (Some(Outcome::Value(original)), Some(Outcome::Value(ours))) if original != ours => {
            Some(format!("'{ours}' instead of '{original}'"))
        }
        // The case with the original has ended before this check.
        (None, Some(Outcome::Failed(reason))) => Some(reason.clone()),
        _ => None,
    }
}

/// Returns true if a class of destinations (values `open` and `closed`) is open with the second program only. No known
/// difference covers it.
pub(crate) fn opens(original: Option<&Outcome>, ours: Option<&Outcome>) -> bool {
    let is = |outcome: Option<&Outcome>, text: &str| matches!(outcome, Some(Outcome::Value(value)) if value == text);
    is(original, "closed") && is(ours, "open")
}

#[cfg(test)]
mod tests;
