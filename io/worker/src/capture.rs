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

mod pcapng;
mod writer;

use writer::Writer;

/// Limit on stopped captures whose writers still run: each of them holds frames in memory.
const MOST_CLOSING: usize = 3;

/// Control of the captures of the process, of which one runs at a time.
#[derive(Debug, Default)]
pub(crate) struct CaptureControl(Mutex<CaptureState>);

/// Captures of the process: the one that runs, and those whose files are still being written.
#[derive(Debug, Default)]
struct CaptureState {
    /// Number of the latest capture that was requested, even if it failed: another worker must not start it again.
    latest: Option<u64>,
    running: Option<RunningCapture>,
    /// Stopped captures whose files are still being written.
    closing: Vec<RunningCapture>,
    /// Number of frames written by earlier captures.
    frames: u64,
    dropped: u64,
}

/// Capture whose writer thread runs.
#[derive(Debug)]
struct RunningCapture {
    number: u64,
    capture_queue: Arc<CaptureQueue>,
    writer: JoinHandle<()>,
}

impl CaptureControl {
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
                        _ => RunningCapture::start(start, reports),
                    };
                    match started {
                        Ok(running) => inner.running = Some(running),
                        Err(error) => {
                            warn!("cannot capture: {error}");
                            let why = format!("cannot begin: {error}");
                            writer::send_report(
                                reports,
                                &Report::Captured(CaptureResult::failed(number, why)),
                            );
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

    /// Returns the numbers of written and dropped frames of all captures since the engine's start.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        let inner = self.lock();
        let (mut frames, mut dropped) = (inner.frames, inner.dropped);
        for RunningCapture { capture_queue, .. } in inner.running.iter().chain(&inner.closing) {
            let [of_file, of_none] = capture_queue.counts();
            frames += of_file;
            dropped += of_none;
        }
        [("capture_frames", frames), ("capture_dropped", dropped)]
    }

    /// Locks the state. A holder of the lock waits only for the start of a thread or, when no worker runs, for its end.
    fn lock(&self) -> MutexGuard<'_, CaptureState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        written.into_iter().for_each(|running| self.join_writer(running));
    }

    fn end(&mut self) {
        self.stop();
        let closing = std::mem::take(&mut self.closing);
        closing.into_iter().for_each(|running| self.join_writer(running));
    }

    /// Waits for the end of the thread that writes the file.
    fn join_writer(
        &mut self,
        RunningCapture {
            capture_queue,
            writer,
            ..
        }: RunningCapture,
    ) {
        // The panic hook has logged a panic already.
        let _ = writer.join();
        let [frames, dropped] = capture_queue.counts();
        self.frames += frames;
        self.dropped += dropped;
    }
}

impl RunningCapture {
    fn start(start: CaptureStart, reports: &EngineChannel) -> io::Result<Self> {
        let capture_queue = Arc::new(CaptureQueue::new(start.snap as usize));
        let number = start.number;
        let file = start.file.borrow().ok_or(io::ErrorKind::InvalidInput)?;
        let file = file.try_clone_to_owned()?.into();
        let writer = Writer::new(start, file, Arc::clone(&capture_queue), reports.try_clone()?);
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
