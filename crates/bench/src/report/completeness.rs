//! What became of the plan.

use crate::schema::{Cell, Outcome, Report};

/// How many samples ended how. Stacks that are missing on this machine are not planned for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completeness {
    /// Cells times stacks times rounds, or once where a cell is asked once.
    pub planned: usize,
    pub measured: usize,
    pub stalled: usize,
    pub unreachable: usize,
    pub failed: usize,
}

impl Completeness {
    pub fn of(report: &Report) -> Self {
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
                Outcome::Measured => of.measured += 1,
                Outcome::Stalled { .. } => of.stalled += 1,
                Outcome::Unreachable { .. } => of.unreachable += 1,
                Outcome::Failed { .. } => of.failed += 1,
            }
        }
        of
    }

    /// Samples that were taken, whatever came of them.
    pub fn taken(&self) -> usize {
        self.measured + self.stalled + self.unreachable + self.failed
    }

    /// Whether every planned sample was taken.
    pub fn is_taken(&self) -> bool {
        self.taken() >= self.planned
    }

    /// Whether some were, and not all.
    pub fn is_partial(&self) -> bool {
        self.taken() > 0 && !self.is_taken()
    }

    /// Whether something stalled or failed.
    pub fn has_bad(&self) -> bool {
        self.stalled + self.failed > 0
    }

    /// Whether every planned sample was measured.
    pub fn is_complete(&self) -> bool {
        self.measured >= self.planned
    }
}
