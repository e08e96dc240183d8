//! The supervisor's side of the rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::omitted::{CLASSES, OmittedClass};
use super::record::{EventRecord, RECORD, decode};
use super::{EventRings, EventSetup, OFF, READS, Ring, WAITS};

/// Reader of the rings of all workers.
#[derive(Debug)]
pub struct EventReader {
    pub(super) setup: EventSetup,
    rings: Vec<RingReader>,
    /// Numbers of omitted events of engines that have exited.
    omitted: [u64; CLASSES],
}

/// Result of reading a ring: one event, or a number of events that were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// An event.
    Event(EventRecord),
    /// This number of events of a worker is lost: there was no room, the worker's process has exited before it completed the
    /// record, or the record is invalid.
    Lost(u64),
}

/// The reader's position in one ring, in memory that no engine can change.
#[derive(Debug)]
struct RingReader {
    ring: Ring,
    worker: u8,
    capacity: u64,
    /// Number of records read so far.
    tail: u64,
    /// Number of the last event that was read or found to be lost; the first event has the number 1.
    number: u64,
    /// Numbers of omitted events that were taken, as the worker counts them.
    omitted: [u64; CLASSES],
}

/// Limit on the losses that one value of [`Found`] reports, so that the numbers of events cannot overflow because of a
/// compromised engine.
const MOST_LOST: u64 = 1 << 32;

/// Position in a ring after a number of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// All records are read.
    Empty,
    /// There may be more records.
    More,
}

impl EventReader {
    /// Reader of the rings of `setup`.
    #[must_use]
    pub fn new(setup: EventSetup) -> Self {
        let rings: EventRings = setup.rings;
        let reader = |worker| {
            Some(RingReader {
                ring: rings.ring(worker)?,
                worker,
                capacity: rings.capacity,
                tail: 0,
                number: 0,
                omitted: [0; CLASSES],
            })
        };
        Self {
            rings: (0..rings.workers).filter_map(reader).collect(),
            setup,
            omitted: [0; CLASSES],
        }
    }

    /// Returns the memory, and another descriptor of the eventfd, for an engine.
    ///
    /// # Errors
    /// No free descriptor.
    pub fn setup(&self) -> io::Result<EventSetup> {
        self.setup.try_clone()
    }

    /// Returns the eventfd, which is readable after [`Self::wait`] when there are events.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.setup.doorbell.as_fd()
    }

    /// Switches the rings on or off. While they are off, workers write no events and count none.
    pub fn set_used(&self, used: bool) {
        if let Some(state) = self.setup.rings.state() {
            state.store(if used { READS } else { OFF }, Ordering::Relaxed);
        }
    }

    /// Passes up to `most` events of each worker to `take`. Returns true if there may be more.
    pub fn read(&mut self, most: usize, mut take: impl FnMut(Found)) -> bool {
        // Clears the notification: the events that it announces are read here.
        let _ = rustix::io::read(&self.setup.doorbell, &mut [0; 8]);
        let mut more = false;
        for ring in &mut self.rings {
            more |= ring.read(most, &mut take) == Progress::More;
        }
        more
    }

    /// Returns true if events were omitted whose numbers [`Self::take_omitted`] has not returned.
    #[must_use]
    pub fn has_omitted(&self) -> bool {
        self.omitted != [0; CLASSES] || self.rings.iter().any(|ring| ring.ring_omitted() != ring.omitted)
    }

    /// Returns the numbers of events of each class that were omitted since the previous call.
    pub fn take_omitted(&mut self) -> [(OmittedClass, u64); CLASSES] {
        for ring in &mut self.rings {
            ring.take_omitted(&mut self.omitted);
        }
        let taken = std::mem::take(&mut self.omitted);
        std::array::from_fn(|index| (OmittedClass::at(index), taken[index]))
    }

    /// Requests a notification for the next event. Returns false if there are events already; then none is requested.
    #[must_use]
    pub fn wait(&self) -> bool {
        let Some(state) = self.setup.rings.state() else {
            return true;
        };
        state.store(WAITS, Ordering::Relaxed);
        // A worker that writes a record now either finds this value after the record, and notifies, or the record is found
        // here.
        fence(Ordering::SeqCst);
        let is_empty = self.rings.iter().all(RingReader::is_empty) && !self.has_omitted();
        if !is_empty {
            state.store(READS, Ordering::Relaxed);
        }
        is_empty
    }

    /// Passes all events that the engine, which has exited, has left, and clears the rings for the next engine.
    pub fn finish(&mut self, mut take: impl FnMut(Found)) {
        for ring in &mut self.rings {
            // No process changes the words: the second call finds the end, also if the first one has found a position that no
            // worker writes.
            for _ in 0..2 {
                if ring.read(usize::MAX, &mut take) == Progress::Empty {
                    break;
                }
            }
            // A record that was begun and not completed is lost.
            let begun = ring.ring.begun.load(Ordering::Relaxed);
            RingReader::skip(&mut ring.number, begun, &mut take);
            ring.take_omitted(&mut self.omitted);
            ring.clear();
        }
    }
}

impl RingReader {
    fn is_empty(&self) -> bool {
        let is_found = self.ring.lost.load(Ordering::Relaxed) <= self.number;
        is_found && self.ring.head.load(Ordering::Relaxed) == self.tail
    }

    /// Returns the numbers of omitted events, as the worker counts them.
    fn ring_omitted(&self) -> [u64; CLASSES] {
        self.ring
            .omitted
            .each_ref()
            .map(|word| AtomicU64::load(word, Ordering::Relaxed))
    }

    /// Adds the numbers of events that were omitted since the previous call to `sums`.
    fn take_omitted(&mut self, sums: &mut [u64; CLASSES]) {
        let now = self.ring_omitted();
        for ((sum, now), before) in sums.iter_mut().zip(now).zip(self.omitted) {
            *sum = sum
                .saturating_add(now.wrapping_sub(before).min(MOST_LOST))
                .min(MOST_LOST);
        }
        self.omitted = now;
    }

    fn read(&mut self, most: usize, take: &mut impl FnMut(Found)) -> Progress {
        let head = self.ring.head.load(Ordering::Acquire);
        let ready = head.wrapping_sub(self.tail);
        if ready > self.capacity {
            // Only a faulty or compromised worker writes such a position.
            self.tail = head;
            self.ring.tail.store(head, Ordering::Release);
            take(Found::Lost(1));
            return Progress::More;
        }
        let base = self.ring.base.load(Ordering::Relaxed);
        let count = ready.min(most as u64);
        for _ in 0..count {
            self.take_one(base, take);
        }
        self.ring.tail.store(self.tail, Ordering::Release);
        if count < ready {
            return Progress::More;
        }
        // Events after the last record may be lost. They are reported only if no record was written since `head` was read.
        let lost = self.ring.lost.load(Ordering::Acquire);
        if self.ring.head.load(Ordering::Relaxed) != head {
            return Progress::More;
        }
        Self::skip(&mut self.number, lost, take);
        Progress::Empty
    }

    fn take_one(&mut self, base: u64, take: &mut impl FnMut(Found)) {
        let place = self.tail.wrapping_sub(base) % self.capacity;
        self.tail = self.tail.wrapping_add(1);
        let start = usize::try_from(place)
            .unwrap_or(usize::MAX)
            .saturating_mul(RECORD);
        let slot = self.ring.records.get(start..start.saturating_add(RECORD));
        let Some(slot) = slot else {
            return take(Found::Lost(1));
        };
        let mut words = [0; RECORD];
        for (word, shared) in words.iter_mut().zip(slot) {
            *word = AtomicU64::load(shared, Ordering::Relaxed);
        }
        let number = words[0];
        match decode(&words, self.worker) {
            Some(record) if number > self.number => {
                Self::skip(&mut self.number, number - 1, take);
                self.number = number;
                take(Found::Event(record));
            }
            _ => take(Found::Lost(1)),
        }
    }

    /// Reports the events up to `number` as lost.
    fn skip(last: &mut u64, number: u64, take: &mut impl FnMut(Found)) {
        if let Some(lost @ 1..) = number.checked_sub(*last) {
            *last = number;
            take(Found::Lost(lost.min(MOST_LOST)));
        }
    }

    fn clear(&mut self) {
        let positions = [
            self.ring.head,
            self.ring.base,
            self.ring.begun,
            self.ring.lost,
            self.ring.tail,
        ];
        for word in positions.into_iter().chain(self.ring.omitted) {
            // A word that was never written is only read: a write would allocate its page.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
        (self.tail, self.number) = (0, 0);
        self.omitted = [0; CLASSES];
    }
}
