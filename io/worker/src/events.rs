//! Events of flows, in memory that the supervisor shares with the workers: one bounded ring for each worker.
//!
//! A worker writes an event as a record of fixed size and never waits: if there is no room, the event is lost. Each event
//! has a number, also a lost one, so that the reader finds each loss. For each flow whose opening event is in the ring, room
//! for its closing event is reserved, so that the closing event is never lost. Refusals and further peers, of which a guest
//! can cause any number, use a part of the ring only, so that they do not displace the openings of flows.
//!
//! A ring has room for all flows at once, and memory is allocated for the part that was in use: a worker that finds its ring
//! empty continues at the beginning.
//!
//! The reader is notified by an eventfd, which a worker writes at most once in a turn, and only after the reader has
//! announced that it waits. While no program reads events, the ring is switched off, and a worker writes nothing.
//!
//! A compromised engine may write anything, at any time. The reader takes each word once and checks what it decodes; the
//! number of records in one call, and all positions, are bounded by values of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use pontoon_engine::WorkerId;
use pontoon_engine::flow_events::{FlowEvent, FlowEventKind, FlowEvents, Reported};
use pontoon_sys::inherited;
use rustix::event::{EventfdFlags, eventfd};

mod json;
mod omitted;
mod open_flows;
mod reader;
mod record;
pub mod recorder;
pub mod testing;
#[cfg(test)]
mod tests;

pub use omitted::{MOST_A_SECOND, OmittedClass};
pub use reader::{EventReader, Found};
pub use record::EventRecord;

use omitted::{CLASSES, OmissionGate};
use record::RECORD;

/// Rings for the events of all workers of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EventRings {
    words: &'static [AtomicU64],
    workers: u8,
    /// Records of each ring.
    capacity: u64,
}

/// The rings, and the eventfd that notifies the reader: what an engine process needs.
#[derive(Debug)]
pub struct EventSetup {
    /// The rings.
    pub rings: EventRings,
    /// The eventfd that is readable when there are events.
    pub doorbell: OwnedFd,
}

/// Records of a ring beyond one for each flow: room for the events that flows have beside their closing events.
pub const SPARE: u64 = 16_384;

/// Records of [`SPARE`] that refusals and further peers leave free.
const KEPT_FOR_FLOWS: u64 = SPARE / 2;

/// Words before the first ring: one for the state of the reader, alone on its cache lines.
const HEAD: usize = ALIGNMENT;

/// Words of a ring before its records: those that the worker writes, then those that the reader writes.
const RING_HEAD: usize = 2 * ALIGNMENT;

/// Words of two cache lines, because CPUs fetch pairs of lines.
const ALIGNMENT: usize = 16;

/// Value of the reader's word while events are not used.
const OFF: u64 = 0;
/// Value of the reader's word while the reader reads the rings, and will do so again before it waits.
const READS: u64 = 1;
/// Value of the reader's word while the reader waits for a notification.
const WAITS: u64 = 2;

/// Shared words of one ring.
#[derive(Clone, Copy, Debug)]
struct Ring {
    /// Number of records written so far. The worker writes this word and those up to `omitted`.
    head: &'static AtomicU64,
    /// Value of `head` when the worker last continued at the beginning of the empty ring.
    base: &'static AtomicU64,
    /// Number of the last event, whose record may be incomplete, or which was lost.
    begun: &'static AtomicU64,
    /// Number of the last event that was lost.
    lost: &'static AtomicU64,
    /// Generation of the egress rules to which the indexes of rules refer.
    generation: &'static AtomicU64,
    /// Numbers of omitted events of each class ([`OmittedClass`]).
    omitted: &'static [AtomicU64; CLASSES],
    /// Number of records read so far. The reader writes this word.
    tail: &'static AtomicU64,
    records: &'static [AtomicU64],
}

impl EventRings {
    /// Rings for `workers` workers of engines that are forked later, and that have at most `flows` flows together. They are
    /// switched off.
    ///
    /// # Errors
    /// Out of memory or address space.
    pub fn shared(workers: u8, flows: u32) -> io::Result<Self> {
        // Workers that open flows at the same time may each exceed the limit by one.
        Self::with_capacity(workers, u64::from(flows) + 256 + SPARE)
    }

    fn with_capacity(workers: u8, capacity: u64) -> io::Result<Self> {
        let words = usize::try_from(capacity)
            .ok()
            .and_then(|capacity| capacity.checked_mul(RECORD)?.checked_add(RING_HEAD))
            .and_then(|ring| ring.checked_mul(usize::from(workers))?.checked_add(HEAD))
            .ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            words: inherited::words(words)?,
            workers,
            capacity,
        })
    }

    /// Sets whether processes that are forked later inherit the memory.
    ///
    /// # Errors
    /// Errors of madvise(2).
    pub fn set_inherited(&self, inherited: bool) -> io::Result<()> {
        inherited::set_inherited(self.words, inherited)
    }

    /// All words, for tests that write what a compromised engine may write.
    #[must_use]
    pub fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    fn state(&self) -> Option<&'static AtomicU64> {
        self.words.first()
    }

    fn ring(&self, worker: u8) -> Option<Ring> {
        let records = usize::try_from(self.capacity).ok()? * RECORD;
        let len = RING_HEAD + records;
        let start = HEAD + len * usize::from(worker);
        let words = self.words.get(start..start + len)?;
        let (head, records) = words.split_at(RING_HEAD);
        Some(Ring {
            head: head.first()?,
            base: head.get(1)?,
            begun: head.get(2)?,
            lost: head.get(3)?,
            generation: head.get(4)?,
            omitted: head.get(5..)?.first_chunk()?,
            tail: head.get(ALIGNMENT)?,
            records,
        })
    }
}

impl EventSetup {
    /// Returns rings as [`EventRings::shared`] does, with a new eventfd.
    ///
    /// # Errors
    /// Out of memory, address space or descriptors.
    pub fn new(workers: u8, flows: u32) -> io::Result<Self> {
        Ok(Self {
            rings: EventRings::shared(workers, flows)?,
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Returns the setup with another descriptor of the eventfd.
    ///
    /// # Errors
    /// No free descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            rings: self.rings,
            doorbell: self.doorbell.try_clone()?,
        })
    }

    /// Returns the eventfd.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

/// A worker's access to its ring.
#[derive(Debug)]
pub(crate) struct EventWriter {
    state: &'static AtomicU64,
    ring: Ring,
    capacity: u64,
    /// Copies of the words that only this worker writes.
    head: u64,
    base: u64,
    number: u64,
    /// Position of the next record in the ring: `head` minus `base`, modulo the capacity.
    place: u64,
    /// The reader's position when it was last read.
    tail: u64,
    /// Records that are reserved for closing events.
    reserved: u64,
    gate: OmissionGate,
}

/// Notifies the reader of a worker's events.
#[derive(Debug)]
pub(crate) struct Doorbell {
    state: &'static AtomicU64,
    ring: Ring,
    event: Arc<OwnedFd>,
    /// Sum of the words `head` and `lost`, of which each event changes one, at the last call of [`Self::notify`].
    seen: u64,
}

/// Returns a worker's access to its ring, and the notification of the reader. `max_flow_rate` is the limit on new flows in a
/// second.
pub(crate) fn connect(
    rings: &EventRings,
    worker: WorkerId,
    event: &Arc<OwnedFd>,
    generation: u64,
    max_flow_rate: Option<u32>,
) -> Option<(EventWriter, Doorbell)> {
    let (state, ring) = (rings.state()?, rings.ring(worker.0)?);
    ring.generation.store(generation, Ordering::Relaxed);
    // The reader has cleared the words of an earlier engine.
    let writer = EventWriter {
        state,
        ring,
        capacity: rings.capacity,
        head: 0,
        base: 0,
        number: 0,
        place: 0,
        tail: 0,
        reserved: 0,
        gate: OmissionGate::new(max_flow_rate),
    };
    let doorbell = Doorbell {
        state,
        ring,
        event: Arc::clone(event),
        seen: 0,
    };
    Some((writer, doorbell))
}

impl Ring {
    /// Returns the number of omitted events of all classes.
    fn omitted(&self) -> u64 {
        let words = self.omitted.iter();
        words.fold(0, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
    }
}

impl EventWriter {
    /// Returns the number of records that may be written so that `left` records stay free.
    fn room(&mut self, left: u64) -> u64 {
        let free = |tail: u64| self.capacity.saturating_sub(self.head.wrapping_sub(tail));
        if free(self.tail) <= left {
            // The records before the reader's position may be overwritten.
            self.tail = self.ring.tail.load(Ordering::Acquire);
        }
        let tail = self.tail;
        self.capacity
            .saturating_sub(self.head.wrapping_sub(tail))
            .saturating_sub(left)
    }

    /// Writes a record, and publishes it.
    fn write(&mut self, event: &FlowEvent) {
        if self.place > 0 && self.ring.tail.load(Ordering::Acquire) == self.head {
            (self.base, self.place, self.tail) = (self.head, 0, self.head);
            self.ring.base.store(self.base, Ordering::Relaxed);
        }
        let generation = self.ring.generation.load(Ordering::Relaxed);
        let words = record::encode(event, self.number, generation);
        let start = usize::try_from(self.place).unwrap_or(0) * RECORD;
        if let Some(slot) = self.ring.records.get(start..start + RECORD) {
            for (word, value) in slot.iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
        }
        self.place += 1;
        if self.place == self.capacity {
            self.place = 0;
        }
        self.head += 1;
        self.ring.head.store(self.head, Ordering::Release);
    }
}

impl FlowEvents for EventWriter {
    fn report(&mut self, event: &FlowEvent) -> Reported {
        let is_off = self.state.load(Ordering::Relaxed) == OFF;
        // A reservation ends with its flow, also if the closing event is not written.
        let left = match event.kind {
            FlowEventKind::Closed { announced: true, .. } => {
                self.reserved = self.reserved.saturating_sub(1);
                self.reserved
            }
            FlowEventKind::Closed { announced: false, .. }
            | FlowEventKind::Decided { .. }
            | FlowEventKind::Proof { .. } => self.reserved,
            FlowEventKind::Opened { .. } => self.reserved + 1,
            FlowEventKind::Peer { .. } | FlowEventKind::Refused { .. } | FlowEventKind::ServerName { .. } => {
                self.reserved + KEPT_FOR_FLOWS
            }
        };
        if is_off {
            return Reported::Unused;
        }
        if let Some(class) = self.gate.omits(event) {
            if let Some(word) = self.ring.omitted.get(class.index()) {
                word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            }
            return Reported::Omitted;
        }
        // The number is published before the record: if the engine exits in between, the reader finds a loss.
        self.number += 1;
        self.ring.begun.store(self.number, Ordering::Relaxed);
        if self.room(left) == 0 {
            self.ring.lost.store(self.number, Ordering::Release);
            return Reported::Dropped;
        }
        if matches!(event.kind, FlowEventKind::Opened { .. }) {
            self.reserved += 1;
        }
        self.write(event);
        Reported::Kept
    }
}

impl Doorbell {
    /// Notifies the reader if it waits, and there are events since the previous call.
    #[inline]
    pub(crate) fn notify(&mut self) {
        let head = self.ring.head.load(Ordering::Relaxed);
        let sum = head
            .wrapping_add(self.ring.lost.load(Ordering::Relaxed))
            .wrapping_add(self.ring.omitted());
        if sum != self.seen {
            self.seen = sum;
            self.notify_waiting();
        }
    }

    fn notify_waiting(&self) {
        // The reader stores WAITS and then reads the rings once more: either it finds the record, or this load finds WAITS.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) == WAITS
            && self
                .state
                .compare_exchange(WAITS, READS, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            // A write fails only if the count is at its maximum; then the descriptor is readable.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Stores the generation of the egress rules, before the engine decides by them.
    pub(crate) fn set_generation(&self, generation: u64) {
        self.ring.generation.store(generation, Ordering::Relaxed);
    }
}
