//! The statistics of the workers, in memory that the supervisor shares with them and reads without a message to them.
//!
//! Each worker has a row of 64-bit words: it copies its counters there before it sleeps, and every millisecond while it
//! does not sleep. Counters of the process are in the first worker's row; threads other than workers add to them as well.
//! A reader may find some words of one copy and some of the next: each counter is monotone by itself, and nothing is
//! computed from several of them. Only the hits of egress rules belong to a list, which has
//! a generation; see [`StatsTable::hits`].
//!
//! A compromised engine may write anything, at any time. A reader takes each word once, as a number that has no influence on
//! where it reads and how long, and adds with saturation.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;
use std::{array, io};

use pontoon_engine::histogram::Quantity;
use pontoon_engine::{Counters, Histograms, Instant, WorkerId, counters, histograms};
use pontoon_link::{BURSTS, LinkCounters};
use pontoon_sandbox::Layers;
use pontoon_sys::inherited;

#[cfg(test)]
mod tests;

/// The longest time between two copies while a worker does not sleep.
pub(crate) const INTERVAL: Duration = Duration::from_millis(1);

counters! {
    /// Gauges of a worker, or the sum of several.
    pub struct Gauges {
        /// Open flows.
        flows,
        /// Bytes of memory that hold data which the host has not accepted yet, or which arrived out of order.
        pool_bytes,
        /// TCP connections that wait for the ClientHello that a rule with `/tls` or `/tls-strict` requires.
        tls_proving,
    }
}

counters! {
    /// Counters of the engine process, which are in the row of its first worker.
    pub struct ProcessCounters {
        /// Frames that were written to captures.
        capture_frames,
        /// Frames that are missing in a capture because they arrived faster than they could be written.
        capture_dropped,
        /// System calls that the sandbox refused.
        sandbox_refused,
    }
}

histograms! {
    /// Measurements of a worker outside of its engine.
    pub struct WorkerHistograms {
        /// Frames that were received from the guest in one batch.
        batch_frames: BURSTS, per 1,
    }
}

/// Words of a row that one structure defines.
#[derive(Clone, Copy)]
struct Section {
    start: usize,
    len: usize,
}

const GAUGES: Section = Section {
    start: 0,
    len: Gauges::COUNT,
};
const LAYERS: Section = GAUGES.then(Layers::NAMES.len());
const ENGINE: Section = LAYERS.then(Counters::COUNT);
const LINK: Section = ENGINE.then(LinkCounters::COUNT);
const PROCESS: Section = LINK.then(ProcessCounters::COUNT);
const ENGINE_HISTOGRAMS: Section = PROCESS.then(Histograms::COUNT);
const WORKER_HISTOGRAMS: Section = ENGINE_HISTOGRAMS.then(WorkerHistograms::COUNT);

/// The words of a [`Row`]. In the table the generation of the egress rules follows, then their hits; the last word is the time
/// at which the worker's present turn began.
const WORDS: usize = WORKER_HISTOGRAMS.then(0).start;

/// The two counts after those of the rules: destinations that no allow rule names, and other resolvers.
const BESIDE_RULES: usize = 2;

/// A row begins on a cache line of its own, also where the CPU fetches pairs of lines.
const ALIGNMENT: usize = 16;

impl Section {
    /// The section behind this one.
    const fn then(self, len: usize) -> Self {
        Self {
            start: self.start + self.len,
            len,
        }
    }
}

/// Rows for all workers of an engine.
#[derive(Clone, Debug)]
pub struct StatsTable {
    words: Words,
    workers: u8,
    /// Words of each row.
    row: usize,
}

/// A worker's statistics without the hits of rules, or the sum of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row([u64; WORDS]);

/// A histogram of a row.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// The measured quantity.
    pub quantity: Quantity,
    /// The sum of all values.
    pub sum: u64,
    /// The number of values above one bound and not above the next; the last is the number above all bounds.
    pub counts: Vec<u64>,
}

/// The values that a worker copies to its row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values {
    /// Gauges of the worker.
    pub gauges: Gauges,
    /// Gauges of the layers of the sandbox, in the order of [`Layers::NAMES`]: zero in all workers but the first.
    pub layers: [u64; Layers::NAMES.len()],
    /// Counters of the link.
    pub link: LinkCounters,
}

/// The counters of the process, which all of its threads write.
#[derive(Clone, Debug)]
pub struct ProcessRow(StatsTable);

/// A worker's access to its row.
#[derive(Debug)]
pub struct RowWriter {
    table: StatsTable,
    start: usize,
    /// The generation of the rules whose hits are in the row.
    generation: u64,
}

#[derive(Clone, Debug)]
enum Words {
    Inherited(&'static [AtomicU64]),
    Private(Arc<[AtomicU64]>),
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Inherited(words) => words,
            Self::Private(words) => words,
        }
    }
}

impl StatsTable {
    /// Rows for `workers` of engines that are forked from this process later, with the hits of at most `rules` egress rules.
    ///
    /// # Errors
    /// Out of memory or address space.
    pub fn shared(workers: u8, rules: usize) -> io::Result<Self> {
        let row = row_len(rules);
        let words = Words::Inherited(inherited::words(usize::from(workers) * row)?);
        Ok(Self { words, workers, row })
    }

    /// Sets whether processes that are forked later inherit the memory of [`Self::shared`].
    ///
    /// # Errors
    /// Errors of madvise(2).
    pub fn set_inherited(&self, inherited: bool) -> io::Result<()> {
        match &self.words {
            Words::Inherited(words) => inherited::set_inherited(words, inherited),
            Words::Private(_) => Ok(()),
        }
    }

    /// Rows for `workers` of an engine in this process.
    #[must_use]
    pub fn private(workers: u8, rules: usize) -> Self {
        let row = row_len(rules);
        let words = (0..usize::from(workers) * row).map(|_| AtomicU64::new(0));
        Self {
            words: Words::Private(words.collect()),
            workers,
            row,
        }
    }

    /// The number of rows.
    #[must_use]
    pub fn workers(&self) -> u8 {
        self.workers
    }

    /// Returns a worker's statistics; zeros if there is no such worker.
    #[must_use]
    pub fn read(&self, worker: u8) -> Row {
        let words = self.row(worker);
        Row(array::from_fn(|at| {
            words.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
        }))
    }

    /// Returns the number of times that each of `rules` rules of `generation` matched in a worker; then of destinations that
    /// no allow rule names, and of other resolvers. `None` if the worker has not published hits of this generation.
    #[must_use]
    pub fn hits(&self, worker: u8, generation: u64, rules: usize) -> Option<Vec<u64>> {
        let (current, words) = self.row(worker).get(WORDS..)?.split_first()?;
        if current.load(Ordering::Acquire) != generation {
            return None;
        }
        let hits = words.iter().map(|word| word.load(Ordering::Relaxed));
        let hits = hits.take(rules + BESIDE_RULES).collect();
        // Loads of hits are not moved behind the second load of the generation: see [`RowWriter::publish`].
        fence(Ordering::Acquire);
        (current.load(Ordering::Relaxed) == generation).then_some(hits)
    }

    /// Returns the time at which the present turn of a worker's loop began, in nanoseconds of its clock; 0 if the worker sleeps.
    #[must_use]
    pub fn turn_began(&self, worker: u8) -> u64 {
        let word = self.row(worker).last();
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Sets all words to zero, when no engine runs.
    pub fn clear(&self) {
        for word in self.words.iter() {
            // A page that was never written is only read: a write would allocate it.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Returns access to the row of `worker`.
    #[must_use]
    pub fn writer(&self, worker: WorkerId) -> RowWriter {
        RowWriter {
            table: self.clone(),
            start: usize::from(worker.0) * self.row,
            generation: 0,
        }
    }

    /// Returns access to the counters of the process.
    #[must_use]
    pub fn process(&self) -> ProcessRow {
        ProcessRow(self.clone())
    }

    /// All words, for tests that write what a compromised engine may write.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn row(&self, worker: u8) -> &[AtomicU64] {
        let start = usize::from(worker) * self.row;
        self.words.get(start..start + self.row).unwrap_or_default()
    }
}

/// Returns the number of words in a row of a table for `rules` rules.
fn row_len(rules: usize) -> usize {
    (WORDS + 1 + rules + BESIDE_RULES + 1).next_multiple_of(ALIGNMENT)
}

impl RowWriter {
    /// Records that a turn of the worker's loop begins at the time `now`.
    #[inline]
    pub fn begin_turn(&self, now: Instant) {
        self.set_turn(now.0);
    }

    /// Records that the worker is about to sleep.
    #[inline]
    pub fn end_turn(&self) {
        self.set_turn(0);
    }

    #[inline]
    fn set_turn(&self, began: u64) {
        if let Some(word) = self.table.words.get(self.start + self.table.row - 1) {
            word.store(began, Ordering::Relaxed);
        }
    }

    /// Copies a worker's statistics to its row. `changed` is the generation of the egress rules, which is never 0, and hits as
    /// [`StatsTable::hits`] returns them; `None` if neither has changed.
    ///
    /// The copy takes 93 ns without rules and 1.7 us with the hits of 1,000 rules (the least CPU time of 100 rounds, 2026-11-24,
    /// 2 cores).
    pub fn publish(
        &mut self,
        values: &Values,
        engine: &Counters,
        histograms: (&Histograms, &WorkerHistograms),
        changed: Option<(u64, impl Iterator<Item = u64>)>,
    ) {
        let Some(row) = self.table.words.get(self.start..self.start + self.table.row) else {
            return;
        };
        let (words, rules) = row.split_at(WORDS);
        store(words, GAUGES, values.gauges.values());
        store(words, LAYERS, values.layers);
        store(words, ENGINE, engine.values());
        store(words, LINK, values.link.values());
        store(words, ENGINE_HISTOGRAMS, histograms.0.values());
        store(words, WORKER_HISTOGRAMS, histograms.1.values());

        let Some(((current, words), (generation, hits))) = rules.split_first().zip(changed) else {
            return;
        };
        if self.generation != generation {
            // A reader that finds a hit of the new rules finds a generation other than the old one behind it.
            current.store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            self.generation = generation;
        }
        for (word, hits) in words.iter().zip(hits) {
            word.store(hits, Ordering::Relaxed);
        }
        current.store(generation, Ordering::Release);
    }
}

impl ProcessRow {
    /// Adds to the counters.
    pub fn add(&self, counts: &ProcessCounters) {
        for (word, count) in self.words().zip(counts.values()) {
            if count > 0 {
                word.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// Sets each counter to the one of `counts`, if that is greater.
    #[inline]
    pub fn raise(&self, counts: &ProcessCounters) {
        for (word, count) in self.words().zip(counts.values()) {
            // Mostly there is nothing to count. Then the word is not read: it is on a line that the first worker writes.
            if count > 0 && count > word.load(Ordering::Relaxed) {
                word.fetch_max(count, Ordering::Relaxed);
            }
        }
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.row(0).iter().skip(PROCESS.start)
    }
}

fn store(row: &[AtomicU64], section: Section, values: impl IntoIterator<Item = u64>) {
    let words = &row[section.start..section.start + section.len];
    for (word, value) in words.iter().zip(values) {
        word.store(value, Ordering::Relaxed);
    }
}

impl Default for Row {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl Row {
    /// Adds another row.
    pub fn add(&mut self, other: &Self) {
        for (sum, other) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(other);
        }
    }

    /// The counters and histograms of a worker that has ended: its gauges are zero.
    #[must_use]
    pub fn ended(mut self) -> Self {
        self.0[..ENGINE.start].fill(0);
        self
    }

    /// The gauges.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges::from_values(self.values(GAUGES))
    }

    /// The name of each layer of the sandbox, and 1 if it is active.
    pub fn layers(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let gauges: [u64; LAYERS.len] = self.values(LAYERS);
        Layers::NAMES.into_iter().zip(gauges)
    }

    /// Counters of the worker's engine and link, by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let engine = Counters::from_values(self.values(ENGINE));
        let link = LinkCounters::from_values(self.values(LINK));
        engine.iter().chain(link.iter())
    }

    /// Counters of the process, in the row of the first worker.
    #[must_use]
    pub fn process(&self) -> ProcessCounters {
        ProcessCounters::from_values(self.values(PROCESS))
    }

    /// The histograms.
    pub fn histograms(&self) -> impl Iterator<Item = Distribution> {
        let mut words = self.0[ENGINE_HISTOGRAMS.start..].iter().copied();
        Histograms::describe()
            .chain(WorkerHistograms::describe())
            .map(move |quantity| Distribution {
                sum: words.next().unwrap_or(0),
                counts: words.by_ref().take(quantity.bounds.len() + 1).collect(),
                quantity,
            })
    }

    fn values<const N: usize>(&self, section: Section) -> [u64; N] {
        array::from_fn(|at| self.0[section.start + at])
    }
}
