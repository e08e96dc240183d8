//! Which measurement comes when: rounds outside, stacks inside, so that what drifts drifts for all.

use std::collections::BTreeSet;

use crate::schema::Report;

/// One measurement to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) round: u32,
    /// Index of the cell in its report.
    pub(crate) cell: usize,
    /// Index of the stack.
    pub(crate) stack: usize,
}

/// What of a report's plan has no sample yet, in its order. Stacks that are missing are not planned for.
pub(crate) fn left(report: &Report) -> Vec<Task> {
    let done: BTreeSet<_> = report
        .samples
        .iter()
        .map(|sample| (sample.round, sample.cell.as_str(), sample.stack.as_str()))
        .collect();
    let mut left = Vec::new();
    for round in 0..report.plan.rounds {
        for (cell, asked) in report.cells.iter().enumerate() {
            if asked.once && round > 0 {
                continue;
            }
            for (stack, measurement) in report.stacks.iter().enumerate() {
                let is_done = done.contains(&(round, asked.name.as_str(), measurement.name.as_str()));
                if measurement.missing.is_none() && !is_done {
                    left.push(Task { round, cell, stack });
                }
            }
        }
    }
    left
}

#[cfg(test)]
mod tests;
