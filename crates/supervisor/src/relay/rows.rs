//! Rows of the counters.

use std::collections::VecDeque;

use pontoon_relay_worker::Counters;

/// Rows that nobody has, the one that was given back first in front: a worker that has not heard yet that a rule is gone
/// counts in a row that nobody else will get for a long while.
#[derive(Debug)]
pub(super) struct Rows(VecDeque<u32>);

impl Rows {
    pub(super) fn new() -> Self {
        Self((Counters::OF_WORKER + 1..Counters::ROWS).collect())
    }

    /// A row; none when all are taken.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.0.pop_front()
    }

    pub(super) fn give_back(&mut self, row: u32) {
        self.0.push_back(row);
    }

    pub(super) fn left(&self) -> usize {
        self.0.len()
    }
}
