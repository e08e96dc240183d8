//! The order of measurements: stacks within cells within rounds, so that a slow change of the machine's speed affects
//! all stacks alike.

use std::collections::BTreeSet;

use crate::schema::BenchmarkReport;

/// A planned measurement that was not made yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedSample {
    pub(crate) round: u32,
    /// Index of the cell in `BenchmarkReport::cells`.
    pub(crate) cell: usize,
    /// Index of the stack in `BenchmarkReport::stacks`.
    pub(crate) stack: usize,
}

/// Returns the planned measurements without a sample, in order. Stacks that are not installed are not in the plan.
pub(crate) fn left(report: &BenchmarkReport) -> Vec<PlannedSample> {
    let done: BTreeSet<_> = report
        .samples
        .iter()
        .map(|sample| (sample.round, sample.cell.as_str(), sample.stack.as_str()))
        .collect();
    let mut left = Vec::new();
    for round in 0..report.plan.rounds {
        for (cell, cell_of_report) in report.cells.iter().enumerate() {
            if cell_of_report.once && round > 0 {
                continue;
            }
            for (stack, stack_of_report) in report.stacks.iter().enumerate() {
                let is_done =
                    done.contains(&(round, cell_of_report.name.as_str(), stack_of_report.name.as_str()));
                if stack_of_report.missing.is_none() && !is_done {
                    left.push(PlannedSample { round, cell, stack });
                }
            }
        }
    }
    left
}

#[cfg(test)]
mod tests;
