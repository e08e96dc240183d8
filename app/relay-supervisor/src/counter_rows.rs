//! Allocation of the rows of counters in which relay workers count.

use std::collections::VecDeque;

use pontoon_relay::Rule;
use pontoon_relay::counters::WORKER_ROW;
use pontoon_relay_worker::Counters;

/// Free rows of counters, in the order in which they were freed. A worker that has not processed the removal of a rule yet
/// counts in the rule's row, so a row is reused as late as possible.
#[derive(Debug)]
pub(super) struct FreeRows(VecDeque<u32>);

/// Maximum number of rows that a rule needs besides those of its outputs: its own, and possibly one for a new ingress.
pub(super) const OF_RULE: usize = 2;

/// Returns the maximum number of rows that rules need: [`OF_RULE`] for each rule, and one for each output.
pub(super) fn needed<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> usize {
    rules.into_iter().map(|rule| OF_RULE + rule.outputs.len()).sum()
}

/// Returns the longest prefix of `rules` that needs at most `rows` rows.
pub(super) fn fit(rules: &[Rule], mut rows: usize) -> &[Rule] {
    let fits = rules.iter().take_while(|rule| {
        let left = rows.checked_sub(needed([*rule]));
        rows = left.unwrap_or_default();
        left.is_some()
    });
    &rules[..fits.count()]
}

impl FreeRows {
    /// Number of rows that can be allocated.
    pub(super) const ALL: usize = (Counters::ROWS - WORKER_ROW - 1) as usize;

    pub(super) fn new() -> Self {
        Self((WORKER_ROW + 1..Counters::ROWS).collect())
    }

    /// Allocates a row; returns `None` if none is free.
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
