//! Queue of captured frames between the workers, which capture them, and the writer thread, which writes them to a
//! file.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::SystemTime;

use crossbeam_queue::ArrayQueue;

/// Limits on the number of frames in the queue and on their captured bytes.
const MOST_FRAMES: usize = 4096;
const MOST_BYTES: usize = 16 << 20;

/// Direction of a frame from the view of the guest's gateway; the numbers are those of `epb_flags` in pcapng.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Inbound: from the guest to the engine.
    Up = 1,
    /// Outbound: from the engine to the guest.
    Down = 2,
}

/// Queue of captured frames that the writer thread has not written to the file yet. Workers never wait for it: frames
/// that do not fit are dropped.
#[derive(Debug)]
pub struct CaptureQueue {
    records: ArrayQueue<CaptureRecord>,
    /// Captured bytes of the frames in `records`.
    bytes: AtomicUsize,
    /// Limit on the captured bytes of each frame (snap length).
    snap: usize,
    /// True if the capture has ended and no further frames are accepted.
    closed: AtomicBool,
    /// Number of frames that were written to the file.
    frames: AtomicU64,
    dropped: AtomicU64,
    writer: OnceLock<Thread>,
}

/// A captured frame in the queue: its time, direction, length and first bytes.
#[derive(Debug)]
pub struct CaptureRecord {
    /// Time at which the link received or sent the frame.
    pub at: SystemTime,
    /// Direction of the frame: from or to the guest.
    pub way: Way,
    /// Length of the whole frame in bytes.
    pub len: u32,
    /// First bytes of the frame, at most the snap length.
    pub bytes: Vec<u8>,
}

impl CaptureQueue {
    /// Creates an empty queue. `snap` is the limit on the captured bytes of each frame.
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

    /// Returns an empty record for a frame of `len` bytes, to which the caller appends at most [`Self::room`] bytes. If
    /// the queue is full, the frame is counted as dropped and `None` is returned.
    pub fn record(&self, way: Way, len: usize) -> Option<CaptureRecord> {
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        if self.records.is_full() || self.bytes.load(Ordering::Relaxed) >= MOST_BYTES {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(CaptureRecord {
            at: SystemTime::now(),
            way,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            bytes: Vec::with_capacity(len.min(self.snap)),
        })
    }

    /// Returns how many more bytes of its frame the record may contain.
    pub fn room(&self, record: &CaptureRecord) -> usize {
        self.snap.saturating_sub(record.bytes.len())
    }

    /// Appends a record to the queue and wakes the writer if the queue is half full.
    pub fn put(&self, record: CaptureRecord) {
        let len = record.bytes.len();
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        if self.records.push(record).is_err() {
            self.bytes.fetch_sub(len, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        // The writer polls the queue. It is woken when the queue becomes half full, so that the queue does not overflow
        // before the next poll. Waking it never blocks, and is a system call only if the writer sleeps.
        let half_full = before < MOST_BYTES / 2 && before + len >= MOST_BYTES / 2;
        if (half_full || self.records.len() == MOST_FRAMES / 2)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// Removes and returns the oldest record.
    pub fn take(&self) -> Option<CaptureRecord> {
        let record = self.records.pop()?;
        self.bytes.fetch_sub(record.bytes.len(), Ordering::Relaxed);
        Some(record)
    }

    /// Sets the writer thread, which is woken when the queue is half full.
    pub fn set_writer(&self, writer: Thread) {
        let _ = self.writer.set(writer);
    }

    /// Counts frames that the writer has written to the file.
    pub fn count_written(&self, frames: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
    }

    /// Ends the capture: no further frames are accepted, and the writer is woken.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// Returns true if the capture has ended and no further frames are accepted.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns the number of frames that were written to the file, and of frames that were dropped because the queue
    /// was full.
    #[must_use]
    pub fn counts(&self) -> [u64; 2] {
        [&self.frames, &self.dropped].map(|count| count.load(Ordering::Relaxed))
    }
}

impl CaptureRecord {
    /// Appends bytes of the frame.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends `len` bytes of the frame, which `copy` writes into the record.
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

    /// Without a writer thread, frames that do not fit into the queue are counted as dropped, and the worker does not
    /// wait.
    #[test]
    fn frames_that_do_not_fit_into_the_queue_are_counted() {
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
