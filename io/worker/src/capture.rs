//! Captures of the frames of a link to a file.
//!
//! A worker that captures runs on a link of another type, [`CapturingLink`](pontoon_link::capturing::CapturingLink), which
//! copies frames into a [`CaptureQueue`]. The queue is bounded; frames without room in it are counted and not captured. A
//! thread writes the queued frames to the file ([`writer`]). No worker waits for that thread.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use pontoon_link::capturing::CaptureQueue;
use tracing::warn;

use crate::messages::{CaptureCommand, CaptureResult, CaptureStart, EngineChannel, Report};
use crate::stats::ProcessRow;

mod pcapng;
mod writer;

use writer::Writer;

/// Limit on stopped captures whose writers still run: each of them holds frames in memory.
const MOST_CLOSING: usize = 3;

/// Control of the captures of the process, of which one runs at a time.
#[derive(Debug)]
pub(crate) struct CaptureControl {
    inner: Mutex<CaptureState>,
    /// Writers count frames and drops there.
    process_stats: ProcessRow,
}

/// Captures of the process: the one that runs, and those whose files are still being written.
#[derive(Debug, Default)]
struct CaptureState {
    /// Number of the latest capture that was requested, even if it failed: another worker must not start it again.
    latest: Option<u64>,
    running: Option<RunningCapture>,
    /// Stopped captures whose files are still being written.
    closing: Vec<RunningCapture>,
    /// Sends the report of a capture that could not begin.
    reporter: Option<JoinHandle<()>>,
}

/// Capture whose writer thread runs.
#[derive(Debug)]
struct RunningCapture {
    number: u64,
    capture_queue: Arc<CaptureQueue>,
    writer: JoinHandle<()>,
}

impl CaptureControl {
    pub(crate) fn new(process_stats: ProcessRow) -> Self {
        Self {
            inner: Mutex::default(),
            process_stats,
        }
    }

    /// Starts or stops a capture. Each worker calls this for each command, and the first call takes effect. Returns the
    /// queue for the frames that the calling worker processes from now on, if a capture runs.
    pub(crate) fn apply(&self, order: CaptureCommand, reports: &EngineChannel) -> Option<Arc<CaptureQueue>> {
        let mut inner = self.lock();
        match order {
            CaptureCommand::Start(start) => {
                if inner.latest.is_none_or(|latest| latest < start.number) {
                    inner.latest = Some(start.number);
                    inner.stop();
                    let number = start.number;
                    let started = match inner.closing.len() {
                        MOST_CLOSING.. => Err(io::Error::other("earlier captures are still being written")),
                        _ => RunningCapture::start(start, reports, self.process_stats.clone()),
                    };
                    match started {
                        Ok(running) => inner.running = Some(running),
                        Err(error) => {
                            warn!("cannot capture: {error}");
                            let why = format!("cannot begin: {error}");
                            inner.report_failure(CaptureResult::failed(number, why), reports);
                        }
                    }
                    return inner.capture_queue(number);
                }
                inner.capture_queue(start.number)
            }
            CaptureCommand::Stop(number) => {
                if let Some(capture_queue) = inner.capture_queue(number) {
                    capture_queue.close();
                }
                None
            }
        }
    }

    /// Stops the running capture, and waits until its file is complete.
    pub(crate) fn finish(&self) {
        self.lock().end();
    }

    /// Locks the state. A holder waits for nothing but the start of a thread or, when no worker runs, its end.
    fn lock(&self) -> MutexGuard<'_, CaptureState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CaptureState {
    fn capture_queue(&self, number: u64) -> Option<Arc<CaptureQueue>> {
        let running = self.running.as_ref().filter(|running| running.number == number);
        running.map(|running| Arc::clone(&running.capture_queue))
    }

    /// Stops the running capture without waiting for its file: the caller is a worker, and a write to a file may block for
    /// long.
    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.capture_queue.close();
            self.closing.push(running);
        }
        let written = |running: &mut RunningCapture| running.writer.is_finished();
        let written: Vec<RunningCapture> = self.closing.extract_if(.., written).collect();
        written.into_iter().for_each(RunningCapture::join);
    }

    /// Reports that a capture could not begin. If the supervisor's socket has no room, a thread sends the report, as a worker
    /// must not wait here.
    fn report_failure(&mut self, failed: CaptureResult, reports: &EngineChannel) {
        let report = Report::Captured(failed);
        let refused = match reports.try_send(&report) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.send_later(report, reports),
            sent => sent,
        };
        if let Err(error) = refused {
            warn!("cannot report to the supervisor that a capture failed: {error}");
        }
    }

    /// Sends a report by a thread, of which there is one at most.
    fn send_later(&mut self, report: Report, reports: &EngineChannel) -> io::Result<()> {
        if self
            .reporter
            .as_ref()
            .is_some_and(|reporter| !reporter.is_finished())
        {
            return Err(io::Error::other("another report still waits for room"));
        }
        let reports = reports.try_clone()?;
        let reporter = thread::Builder::new().name("capture".to_owned());
        self.reporter = Some(reporter.spawn(move || writer::send_report(&reports, &report))?);
        Ok(())
    }

    fn end(&mut self) {
        self.stop();
        // The panic handler has logged a panic already.
        self.reporter.take().map(JoinHandle::join);
        let closing = std::mem::take(&mut self.closing);
        closing.into_iter().for_each(RunningCapture::join);
    }
}

impl RunningCapture {
    fn start(start: CaptureStart, reports: &EngineChannel, process_stats: ProcessRow) -> io::Result<Self> {
        let capture_queue = Arc::new(CaptureQueue::new(start.snap as usize));
        let number = start.number;
        let file = start.file.clone().into_inner()?.try_clone()?.into();
        let reports = reports.try_clone()?;
        let writer = Writer::new(start, file, Arc::clone(&capture_queue), reports, process_stats);
        let writer = thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || writer.run())?;
        capture_queue.set_writer(writer.thread().clone());
        Ok(Self {
            number,
            capture_queue,
            writer,
        })
    }

    /// Waits for the writer.
    fn join(self) {
        // The panic handler has logged a panic already.
        let _ = self.writer.join();
    }
}

impl CaptureResult {
    fn failed(number: u64, why: String) -> Self {
        Self {
            number,
            frames: 0,
            dropped: 0,
            bytes: 0,
            failed: true,
            why,
        }
    }
}

#[cfg(test)]
mod tests;
