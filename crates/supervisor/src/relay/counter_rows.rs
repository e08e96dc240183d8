//! Rows of the counters.

use std::collections::VecDeque;

use pontoon_relay::Rule;
use pontoon_relay::counters::WORKER_ROW;
use pontoon_relay_worker::Counters;

/// Rows that nobody has, the one that was given back first in front: a worker that has not heard yet that a rule is gone
/// counts in a row that nobody else will get for a long while.
#[derive(Debug)]
pub(super) struct FreeRows(VecDeque<u32>);

/// What rules take at most: one each, one for each output, and perhaps one for a door of its own.
pub(super) fn needed<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> usize {
    rules.into_iter().map(|rule| 2 + rule.outputs.len()).sum()
}

/// Those in front that so many rows are enough for.
pub(super) fn fit(rules: &[Rule], mut rows: usize) -> &[Rule] {
    let fits = rules.iter().take_while(|rule| {
        let left = rows.checked_sub(needed([*rule]));
        rows = left.unwrap_or_default();
        left.is_some()
    });
    &rules[..fits.count()]
}

impl FreeRows {
    /// All rows that can be given away.
    pub(super) const ALL: usize = (Counters::ROWS - WORKER_ROW - 1) as usize;

    pub(super) fn new() -> Self {
        Self((WORKER_ROW + 1..Counters::ROWS).collect())
    }

    /// A row; none when all are taken.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        self.0.pop_front()
    }

    pub(super) fn free(&mut self, row: u32) {
        self.0.push_back(row);
    }

    pub(super) fn available(&self) -> usize {
        self.0.len()
    }
}
