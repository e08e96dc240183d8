//! Copies of frames that wait to be written to a file.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::SystemTime;

use crossbeam_queue::ArrayQueue;

/// Frames that may wait for the writer, and bytes of them.
const MOST_FRAMES: usize = 4096;
const MOST_BYTES: usize = 16 << 20;

/// A frame's way, as the interface sees it: `epb_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the guest.
    Up = 1,
    /// To the guest.
    Down = 2,
}

/// Frames that wait to be written to the file.
#[derive(Debug)]
pub struct CaptureQueue {
    records: ArrayQueue<Record>,
    /// Bytes of them.
    bytes: AtomicUsize,
    /// Bytes that are kept of a frame.
    snap: usize,
    /// No further records are accepted.
    closed: AtomicBool,
    /// In the file.
    frames: AtomicU64,
    dropped: AtomicU64,
    writer: OnceLock<Thread>,
}

/// The captured bytes of a frame.
#[derive(Debug)]
pub struct Record {
    /// The time at which the frame passed the link.
    pub at: SystemTime,
    /// The way of the frame.
    pub way: Way,
    /// The length of the frame.
    pub len: u32,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

impl CaptureQueue {
    /// An empty queue for records of up to `snap` bytes.
    #[must_use]
    pub fn new(snap: usize) -> Self {
        Self {
            records: ArrayQueue::new(MOST_FRAMES),
            bytes: AtomicUsize::new(0),
            snap,
            closed: AtomicBool::new(false),
            frames: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            writer: OnceLock::new(),
        }
    }

    /// An empty record of a frame of `len` bytes, to be filled with [`Self::room`] bytes at most. `None`: there is no room.
    pub fn record(&self, way: Way, len: usize) -> Option<Record> {
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        if self.records.is_full() || self.bytes.load(Ordering::Relaxed) >= MOST_BYTES {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Record {
            at: SystemTime::now(),
            way,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            bytes: Vec::with_capacity(len.min(self.snap)),
        })
    }

    /// Bytes that a record still takes.
    pub fn room(&self, record: &Record) -> usize {
        self.snap.saturating_sub(record.bytes.len())
    }

    /// Puts a record in the queue.
    pub fn put(&self, record: Record) {
        let len = record.bytes.len();
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        if self.records.push(record).is_err() {
            self.bytes.fetch_sub(len, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        // The writer polls the queue. It is woken once the queue is half full, so that it does not overflow before the next
        // poll; waking it does not block, and is a system call only if the writer sleeps.
        let half_full = before < MOST_BYTES / 2 && before + len >= MOST_BYTES / 2;
        if (half_full || self.records.len() == MOST_FRAMES / 2)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// Takes the next record out.
    pub fn take(&self) -> Option<Record> {
        let record = self.records.pop()?;
        self.bytes.fetch_sub(record.bytes.len(), Ordering::Relaxed);
        Some(record)
    }

    /// Sets the thread that takes records out, which is woken when the queue is half full.
    pub fn set_writer(&self, writer: Thread) {
        let _ = self.writer.set(writer);
    }

    /// Counts frames that have been written to the file.
    pub fn count_written(&self, frames: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
    }

    /// Accepts no further records, and wakes the writer.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// Returns true if no further records are accepted.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns the number of frames in the file and of those that were dropped.
    #[must_use]
    pub fn counts(&self) -> [u64; 2] {
        [&self.frames, &self.dropped].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Record {
    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends `len` bytes, which `copy` writes.
    pub fn fill(&mut self, len: usize, copy: impl FnOnce(&mut [u8])) {
        let begin = self.bytes.len();
        self.bytes.resize(begin + len, 0);
        copy(&mut self.bytes[begin..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(capture_queue: &CaptureQueue, frames: usize, len: usize) {
        for _ in 0..frames {
            if let Some(mut record) = capture_queue.record(Way::Up, len) {
                record.fill(capture_queue.room(&record).min(len), |_| {});
                capture_queue.put(record);
            }
        }
    }

    /// Without a writer: what finds no room is counted, and nothing waits.
    #[test]
    fn frames_without_room_are_counted() {
        let many = CaptureQueue::new(96);
        put(&many, MOST_FRAMES + 5, 60);
        assert_eq!(many.counts(), [0, 5]);
        let large = CaptureQueue::new(65_536);
        put(&large, MOST_BYTES / 65_536 + 7, 65_536);
        assert_eq!(large.counts(), [0, 7]);
        while large.take().is_some() {}
        put(&large, 1, 65_536);
        assert_eq!(large.counts(), [0, 7]);
    }
}
