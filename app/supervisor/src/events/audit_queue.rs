//! Records that wait for the process that writes the audit file.
//!
//! No function blocks for longer than [`PATIENCE`]. Records for which there is no room are counted, and their numbers are written
//! when there is room again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pontoon_process::error::{Context as _, Error};
use pontoon_worker::events::recorder;
use rustix::event::PollFlags;

use super::audit_file::AuditFile;
use super::audit_writer::{AuditWriter, RETRY};
use crate::audit::Audit;

/// The audit file, with the records that wait to be written.
#[derive(Debug)]
pub(super) struct AuditQueue {
    /// The file for the next writer, if the present one exits.
    file: AuditFile,
    start: fn(AuditFile) -> io::Result<AuditWriter>,
    /// `None` after the writer has exited.
    writer: Option<AuditWriter>,
    /// Writer that is to be reaped.
    exited: Option<AuditWriter>,
    /// Time to start another writer.
    start_at: Option<Instant>,
    /// Records that the writer has not received. If `cut` is set, it has received the beginning of the first one.
    unsent: VecDeque<u8>,
    cut: bool,
    /// Numbers of the first and last record that were lost since the last one that was sent, for lack of room in `unsent`.
    missing: Option<(u64, u64)>,
    /// Time for which this process may still wait for the writer, until the queue is empty again.
    patience: Duration,
    /// Time of the last line of the log about an error.
    logged_at: Option<Instant>,
    /// Number of errors, and of records that were lost because of them.
    errors: u64,
    lost: u64,
}

/// Maximum number of bytes of records that wait.
pub(super) const BUFFER: usize = 1 << 20;

/// Bytes of the buffer that are reserved for a record about missing records.
const GAP: usize = 256;

/// Limit on the time for which this process waits for the writer until the queue is empty again. Without a wait, records of an
/// engine that has exited, which are made all at once, would be lost although the file system responds.
const PATIENCE: Duration = Duration::from_millis(200);

/// Limit on the time for which the program waits at its end until all records are written.
const AT_THE_END: Duration = Duration::from_secs(1);

/// Minimum time between two lines of the log about errors.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl AuditQueue {
    /// Opens the audit file, and starts the process that writes it.
    ///
    /// # Errors
    /// The file cannot be opened; no free descriptor, no memory, or too many processes.
    pub(super) fn open(options: &Audit) -> Result<Self, Error> {
        Self::open_with(options, AuditWriter::start)
    }

    /// Opens the audit file, which a writer writes that `start` starts.
    pub(super) fn open_with(
        options: &Audit,
        start: fn(AuditFile) -> io::Result<AuditWriter>,
    ) -> Result<Self, Error> {
        let file = AuditFile::open(options)?;
        let reopened = file.reopened();
        let writer = start(file).context("cannot start the process that writes the audit file")?;
        Ok(Self {
            file: reopened,
            start,
            writer: Some(writer),
            exited: None,
            start_at: None,
            unsent: VecDeque::new(),
            cut: false,
            missing: None,
            patience: PATIENCE,
            logged_at: None,
            errors: 0,
            lost: 0,
        })
    }

    /// Adds a line about the records with the numbers `from` to `to`.
    pub(super) fn push(&mut self, (from, to): (u64, u64), line: &str) {
        self.note_gap(BUFFER / 2);
        if self.missing.is_some() || self.unsent.len() + line.len() > BUFFER - GAP {
            let first = self.missing.map_or(from, |(first, _)| first);
            self.missing = Some((first, to));
            self.lost = self.lost.saturating_add(to - from + 1);
            return;
        }
        self.unsent.extend(line.as_bytes());
    }

    /// Adds a record about missing ones, if at most `most` bytes wait.
    fn note_gap(&mut self, most: usize) {
        if self.unsent.len() <= most
            && let Some((from, to)) = self.missing.take()
        {
            self.unsent.extend(recorder::gap((from, to), "file").as_bytes());
        }
    }

    /// Returns the pipes to poll, with the events, before [`Self::serve`] is called.
    pub(super) fn pipes(&self) -> Vec<(Rc<OwnedFd>, PollFlags)> {
        let Some(writer) = &self.writer else {
            return Vec::new();
        };
        let records = (!self.unsent.is_empty()).then(|| (writer.records(), PollFlags::OUT));
        records
            .into_iter()
            .chain([(writer.errors(), PollFlags::IN)])
            .collect()
    }

    /// Returns the time to call [`Self::serve`], if a pipe is not ready earlier.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.start_at
    }

    /// Returns the number of errors of the audit file, and of the records that were lost because of them.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.errors, self.lost]
    }

    /// Takes errors of the writer, and sends records for which the pipe has room.
    pub(super) fn serve(&mut self, now: Instant) {
        self.take_errors(now);
        if self.start_at.is_some_and(|at| at <= now) {
            self.start_again(now);
        }
        self.send();
    }

    /// Sends records until less than half of the buffer is full, and waits for the writer meanwhile, as long as its patience
    /// permits.
    pub(super) fn make_room(&mut self) {
        while self.unsent.len() > BUFFER / 2 && !self.patience.is_zero() {
            let Some(writer) = &self.writer else {
                return;
            };
            let begin = Instant::now();
            let has_room = writer.has_room_within(self.patience);
            self.patience = self.patience.saturating_sub(begin.elapsed());
            if !has_room || !self.send() {
                return;
            }
        }
    }

    /// Sends all records, and waits until the writer has written them, for [`AT_THE_END`] at most.
    pub(super) fn finish(&mut self, now: Instant) {
        self.take_errors(now);
        let until = Instant::now() + AT_THE_END;
        let left = || until.saturating_duration_since(Instant::now());
        while self.send()
            && !self.unsent.is_empty()
            && let Some(writer) = &self.writer
            && writer.has_room_within(left())
        {}
        let Some(writer) = self.writer.take() else {
            return;
        };
        let mut errors = Vec::new();
        let has_exited = writer.finish(until, |error| errors.push(error.to_owned()));
        for error in errors {
            self.note_error(&error, now);
        }
        if !has_exited {
            let unsent = self.unsent.iter().filter(|byte| **byte == b'\n').count();
            self.lost = self.lost.saturating_add(unsent as u64);
            self.note_error("its file system does not respond", now);
        }
    }

    /// Sends records until the pipe has no more room; returns false if the writer has exited.
    fn send(&mut self) -> bool {
        loop {
            if self.unsent.is_empty() {
                self.note_gap(0);
            }
            let Some(writer) = &self.writer else {
                return false;
            };
            let text = self.unsent.as_slices().0;
            if text.is_empty() {
                self.patience = PATIENCE;
                return true;
            }
            let sent = match writer.write(text) {
                Ok(sent) => sent,
                Err(rustix::io::Errno::AGAIN) => return true,
                // The end of the pipe of the errors is handled by `take_errors`.
                Err(_) => return false,
            };
            self.cut = text[..sent].last().map_or(self.cut, |byte| *byte != b'\n');
            self.unsent.drain(..sent);
        }
    }

    fn take_errors(&mut self, now: Instant) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let mut errors = Vec::new();
        let has_exited = writer.read_errors(|error| errors.push(error.to_owned()));
        for error in errors {
            self.note_error(&error, now);
        }
        if has_exited && let Some(writer) = self.writer.take() {
            // Its pipe is closed before it can be reaped.
            self.exited = Some(writer);
            self.note_error("the process that writes it was killed", now);
            self.start_at = Some(now + RETRY);
        }
    }

    fn start_again(&mut self, now: Instant) {
        if let Some(exited) = self.exited.take() {
            exited.reap(Duration::ZERO);
        }
        match (self.start)(self.file.reopened()) {
            Ok(writer) => {
                self.writer = Some(writer);
                self.start_at = None;
                if std::mem::take(&mut self.cut) {
                    // The new writer begins with a whole record.
                    let rest = self.unsent.iter().position(|byte| *byte == b'\n');
                    self.unsent.drain(..rest.map_or(self.unsent.len(), |end| end + 1));
                }
            }
            Err(error) => {
                self.note_error(&error.to_string(), now);
                self.start_at = Some(now + RETRY);
            }
        }
    }

    fn note_error(&mut self, error: &str, now: Instant) {
        self.errors += 1;
        if self
            .logged_at
            .is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL)
        {
            self.logged_at = Some(now);
            let (path, lost) = (self.file.path().display(), self.lost);
            tracing::warn!("cannot write {path}: {error}; {lost} records are lost so far");
        }
    }
}

#[cfg(test)]
mod tests;
