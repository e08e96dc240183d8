//! The number of samples that a run has taken, compared with its plan.

use crate::schema::{BenchmarkReport, Cell, SampleOutcome};

/// Number of a run's samples by outcome. Stacks that are not installed are not in the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completeness {
    /// Number of planned samples: cells times stacks times rounds; some cells are measured in the first round only.
    pub planned: usize,
    pub measured: usize,
    pub stalled: usize,
    pub unreachable: usize,
    pub failed: usize,
}

impl Completeness {
    pub fn of(report: &BenchmarkReport) -> Self {
        let stacks = report
            .stacks
            .iter()
            .filter(|stack| stack.missing.is_none())
            .count();
        let rounds = |cell: &Cell| if cell.once { 1 } else { report.plan.rounds as usize };
        let mut of = Self {
            planned: report.cells.iter().map(rounds).sum::<usize>() * stacks,
            ..Self::default()
        };
        for sample in &report.samples {
            match sample.outcome {
                SampleOutcome::Measured => of.measured += 1,
                SampleOutcome::Stalled { .. } => of.stalled += 1,
                SampleOutcome::Unreachable { .. } => of.unreachable += 1,
                SampleOutcome::Failed { .. } => of.failed += 1,
            }
        }
        of
    }

    /// Returns the number of samples that were taken, with any outcome.
    pub fn taken(&self) -> usize {
        self.measured + self.stalled + self.unreachable + self.failed
    }

    /// Returns true if every planned sample was taken.
    pub fn is_taken(&self) -> bool {
        self.taken() >= self.planned
    }

    /// Returns true if some, but not all, planned samples were taken.
    pub fn is_partial(&self) -> bool {
        self.taken() > 0 && !self.is_taken()
    }

    /// Returns true if a sample stalled or failed.
    pub fn has_bad(&self) -> bool {
        self.stalled + self.failed > 0
    }

    /// Returns true if every planned sample was measured.
    pub fn is_complete(&self) -> bool {
        self.measured >= self.planned
    }
}
