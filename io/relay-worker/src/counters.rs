//! Counters in memory that a relay worker shares with the supervisor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use pontoon_relay::counters::{ROW_LEN, Row};
use pontoon_sys::shared::{self, SharedWords};

/// Rows of counters of one relay worker, which is their only writer.
#[derive(Debug)]
pub struct Counters(SharedWords);

impl Counters {
    /// Number of rows.
    pub const ROWS: u32 = 1 << 15;

    /// Creates shared memory for all rows. Its pages are allocated at the first write.
    ///
    /// # Errors
    /// No free descriptor or no memory.
    pub fn create() -> io::Result<OwnedFd> {
        shared::create(Self::ROWS as usize * ROW_LEN)
    }

    /// Maps memory that [`create`](Self::create) has made.
    ///
    /// # Errors
    /// The kernel refuses mmap(2).
    pub fn map(file: impl AsFd) -> io::Result<Self> {
        SharedWords::map(file).map(Self)
    }

    /// Returns a snapshot of the row `row`; zeros if it does not exist.
    #[must_use]
    pub fn read(&self, row: u32) -> Row {
        let mut values = [0; ROW_LEN];
        for (value, word) in values.iter_mut().zip(self.row(row)) {
            *value = word.load(Ordering::Relaxed);
        }
        values
    }

    /// Sets the row `row` to zero. The worker must not count in it at the same time.
    pub fn clear(&self, row: u32) {
        for word in self.row(row) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Adds `count` to the counter `number` of the row `row`.
    pub(crate) fn add(&self, row: u32, number: usize, count: u64) {
        if count > 0
            && let Some(word) = self.row(row).get(number)
        {
            // This process is the only writer, so no update is lost.
            word.store(word.load(Ordering::Relaxed) + count, Ordering::Relaxed);
        }
    }

    /// Sets the counter `number` of the row `row` to `value`.
    pub(crate) fn set(&self, row: u32, number: usize, value: u64) {
        if let Some(word) = self.row(row).get(number) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn row(&self, row: u32) -> &[AtomicU64] {
        let at = row as usize * ROW_LEN;
        self.0.get(at..at + ROW_LEN).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisor_reads_what_the_worker_counts() {
        let file = Counters::create().unwrap();
        let (worker, supervisor) = (Counters::map(&file).unwrap(), Counters::map(&file).unwrap());
        worker.add(7, 3, 5);
        worker.add(7, 3, 6);
        worker.set(7, 0, 9);
        let row = supervisor.read(7);
        assert_eq!((row[0], row[3], row[4]), (9, 11, 0));
        assert_eq!(supervisor.read(8), [0; ROW_LEN]);
        supervisor.clear(7);
        assert_eq!(worker.read(7), [0; ROW_LEN]);
        // Writes to rows that do not exist have no effect.
        worker.add(Counters::ROWS, 0, 1);
        assert_eq!(worker.read(Counters::ROWS), [0; ROW_LEN]);
    }
}
