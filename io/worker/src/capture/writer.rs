//! Thread that writes the file of a capture.
//!
//! The engine may crash during a write. The file's offset, which the supervisor shares, is always the end of a complete
//! block, where the next engine continues.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use pontoon_link::capturing::CaptureQueue;
use tracing::debug;

use super::pcapng::{self, Statistics};
use crate::messages::{CaptureResult, CaptureStart, EngineChannel, Report};
use crate::stats::{ProcessCounters, ProcessRow};

/// Interval at which the writer takes frames from the queue, and thus the maximum delay of the file.
const PERIOD: Duration = Duration::from_millis(10);

/// Approximate size of one write in bytes.
const CHUNK: usize = 256 << 10;

/// Number of attempts to report the end of the capture.
const ATTEMPTS: u32 = 100;

/// State of the thread that writes the file of a capture.
pub(super) struct Writer {
    number: u64,
    snap: u32,
    most_bytes: u64,
    begin: SystemTime,
    ends: Option<Instant>,
    file: File,
    capture_queue: Arc<CaptureQueue>,
    reports: EngineChannel,
    process_stats: ProcessRow,
    /// Frames and drops that are in `process_stats` already.
    counted: [u64; 2],
    /// Encoded blocks that have not been written yet.
    buffer: Vec<u8>,
    /// Number of frames in `buffer`.
    buffered: u64,
    /// Size of the file in bytes.
    bytes: u64,
}

/// Reason for which a capture ends.
#[derive(Debug, thiserror::Error)]
enum CaptureEnd {
    #[error("it was stopped")]
    Stopped,
    #[error("the time limit was reached")]
    Time,
    #[error("the size limit was reached")]
    Size,
    #[error("cannot write: {0}")]
    Failed(#[from] io::Error),
}

impl Writer {
    pub(super) fn new(
        start: CaptureStart,
        file: File,
        capture_queue: Arc<CaptureQueue>,
        reports: EngineChannel,
        process_stats: ProcessRow,
    ) -> Self {
        Self {
            number: start.number,
            snap: start.snap,
            most_bytes: start.size.unwrap_or(u64::MAX),
            begin: SystemTime::now(),
            ends: start.time.and_then(|time| Instant::now().checked_add(time)),
            file,
            capture_queue,
            reports,
            process_stats,
            counted: [0; 2],
            buffer: Vec::new(),
            buffered: 0,
            bytes: 0,
        }
    }

    /// Writes frames until the capture ends, and reports the result.
    pub(super) fn run(mut self) {
        let mut end = self.follow();
        self.capture_queue.close();
        if !matches!(end, CaptureEnd::Failed(_))
            && let Err(error) = self.conclude()
        {
            end = CaptureEnd::Failed(error);
        }
        self.count();
        let [frames, dropped] = self.capture_queue.counts();
        let captured = CaptureResult {
            number: self.number,
            frames,
            dropped,
            bytes: self.bytes,
            failed: matches!(end, CaptureEnd::Failed(_)),
            why: end.to_string(),
        };
        send_report(&self.reports, &Report::Captured(captured));
    }

    fn follow(&mut self) -> CaptureEnd {
        match self.file.stream_position() {
            Ok(position) => self.bytes = position,
            Err(error) => return CaptureEnd::Failed(error),
        }
        pcapng::begin(&mut self.buffer, self.snap);
        if !self.fits(0) {
            self.buffer.clear();
            return CaptureEnd::Size;
        }
        loop {
            // The flag is read before the queue is emptied, so that frames that were added before the queue was closed are
            // written.
            let closed = self.capture_queue.is_closed();
            while self.buffer.len() < CHUNK
                && let Some(record) = self.capture_queue.take()
            {
                let frame = pcapng::FRAME_OVERHEAD + (record.bytes.len() as u64).next_multiple_of(4);
                if !self.fits(frame) {
                    return CaptureEnd::Size;
                }
                pcapng::frame(&mut self.buffer, record.at, record.way, &record.bytes, record.len);
                self.buffered += 1;
            }
            let more = self.buffer.len() >= CHUNK;
            if let Err(error) = self.write() {
                return CaptureEnd::Failed(error);
            }
            self.count();
            if closed && !more {
                return CaptureEnd::Stopped;
            }
            let left = self
                .ends
                .map(|ends| ends.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return CaptureEnd::Time;
            }
            if !more {
                thread::park_timeout(left.map_or(PERIOD, |left| left.min(PERIOD)));
            }
        }
    }

    /// Returns true if the file has room for `more` bytes and for the statistics block after them.
    fn fits(&self, more: u64) -> bool {
        let len = self.bytes + self.buffer.len() as u64 + more + pcapng::STATISTICS_LEN;
        len <= self.most_bytes
    }

    /// Adds the frames and drops since the last call to the counters of the process.
    fn count(&mut self) {
        let now = self.capture_queue.counts();
        let [capture_frames, capture_dropped] = [0, 1].map(|at: usize| now[at] - self.counted[at]);
        self.counted = now;
        self.process_stats.add(&ProcessCounters {
            capture_frames,
            capture_dropped,
            ..ProcessCounters::default()
        });
    }

    fn conclude(&mut self) -> io::Result<()> {
        self.write()?;
        let [frames, dropped] = self.capture_queue.counts();
        let seen = Statistics {
            begin: self.begin,
            end: SystemTime::now(),
            received: frames + dropped,
            dropped,
        };
        pcapng::statistics(&mut self.buffer, seen);
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.file.write_all_at(&self.buffer, self.bytes)?;
        self.bytes += self.buffer.len() as u64;
        self.file.seek(SeekFrom::Start(self.bytes))?;
        self.capture_queue.count_written(self.buffered);
        self.buffered = 0;
        self.buffer.clear();
        Ok(())
    }
}

/// Sends a report to the supervisor. While the socket has no room, the send is tried again, up to [`ATTEMPTS`] times.
pub(super) fn send_report(reports: &EngineChannel, report: &Report) {
    for _ in 0..ATTEMPTS {
        match reports.try_send(report) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::park_timeout(PERIOD),
            Err(error) => return debug!("cannot report the end of a capture to the supervisor: {error}"),
            Ok(()) => return,
        }
    }
}
