//! The audit file: records are appended in batches, and the file is renamed when it is full.
//!
//! A write error loses no record as long as those that wait fit into the buffer. Then the numbers of the records that are
//! missing are noted, and written when the file can be written again.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pontoon_process::error::Error;
use pontoon_process::file;
use pontoon_worker::events::recorder;

use crate::audit::Audit;

/// File that is open for appending.
pub(super) trait Append {
    /// Appends some of the bytes; returns their number.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Removes all bytes behind the first `len`.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
}

impl Append for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }
}

/// The audit file, with the records that wait to be written.
#[derive(Debug)]
pub(super) struct AuditFile<F = File> {
    path: PathBuf,
    size: u64,
    keep: u32,
    /// `None` after a new file could not be opened.
    file: Option<F>,
    /// Size of the file in bytes.
    len: u64,
    /// Records that are not written yet. If `torn` is set, the first one is incomplete: the file ends with its beginning.
    unwritten: Vec<u8>,
    torn: bool,
    /// Numbers of the first and last record that were lost since the last write, for lack of room in `unwritten`.
    missing: Option<(u64, u64)>,
    /// Time of the next attempt after an error.
    retry_at: Option<Instant>,
    /// Time of the last line of the log about an error.
    logged_at: Option<Instant>,
    /// Number of write errors, and of records that were lost because of them.
    errors: u64,
    lost: u64,
}

/// Maximum number of bytes of records that are not written yet.
pub(super) const BUFFER: usize = 1 << 20;

/// Bytes of the buffer that are reserved for a record about missing records.
const GAP: usize = 256;

/// Time between two attempts to write after an error.
const RETRY: Duration = Duration::from_secs(1);

/// Minimum time between two lines of the log about errors.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl AuditFile {
    /// Opens the file for appending; a new file is accessible by this user only.
    ///
    /// # Errors
    /// The file cannot be opened, or [`file::open_to_append`] refuses it.
    pub(super) fn open(options: &Audit) -> Result<Self, Error> {
        let wrong =
            |error: io::Error| Error::io(format_args!("cannot write {}", options.file.display()), &error);
        // The path stays the same when this process changes its directory.
        let path = std::path::absolute(&options.file).map_err(wrong)?;
        let (file, len) = open(&path).map_err(wrong)?;
        Ok(Self::new(path, options, file, len))
    }

    /// Writes the records that wait, unless the last error was less than [`RETRY`] ago.
    pub(super) fn flush(&mut self, now: Instant) {
        self.flush_with(now, Self::next_file);
    }

    /// Renames the full file and opens a new one.
    fn next_file(&mut self) -> io::Result<(File, u64)> {
        // If another program has renamed or removed the file, only a new one is needed.
        let is_ours = match (&self.file, fs::symlink_metadata(&self.path)) {
            (Some(file), Ok(named)) => {
                let ours = file.metadata()?;
                (ours.dev(), ours.ino()) == (named.dev(), named.ino())
            }
            _ => false,
        };
        if is_ours {
            for number in (1..self.keep).rev() {
                rename(&numbered(&self.path, number), &numbered(&self.path, number + 1))?;
            }
            rename(&self.path, &numbered(&self.path, 1))?;
        }
        open(&self.path)
    }
}

impl<F: Append> AuditFile<F> {
    fn new(path: PathBuf, options: &Audit, file: F, len: u64) -> Self {
        Self {
            path,
            size: options.size,
            keep: options.keep,
            file: Some(file),
            len,
            unwritten: Vec::new(),
            torn: false,
            missing: None,
            retry_at: None,
            logged_at: None,
            errors: 0,
            lost: 0,
        }
    }

    /// Adds a line about the records with the numbers `from` to `to` to those that wait to be written.
    pub(super) fn push(&mut self, (from, to): (u64, u64), line: &str) {
        self.note_gap(BUFFER / 2);
        if self.missing.is_some() || self.unwritten.len() + line.len() > BUFFER - GAP {
            let first = self.missing.map_or(from, |(first, _)| first);
            self.missing = Some((first, to));
            self.lost = self.lost.saturating_add(to - from + 1);
            return;
        }
        self.unwritten.extend_from_slice(line.as_bytes());
    }

    /// Adds a record about missing ones, if at most `most` bytes wait.
    fn note_gap(&mut self, most: usize) {
        if self.unwritten.len() <= most
            && let Some((from, to)) = self.missing.take()
        {
            let line = recorder::gap((from, to), "file");
            self.unwritten.extend_from_slice(line.as_bytes());
        }
    }

    /// Returns the time to call [`Self::flush`] after an error.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Returns true if so many bytes wait that they should be written before more are added.
    pub(super) fn is_half_full(&self) -> bool {
        self.unwritten.len() > BUFFER / 2 && self.retry_at.is_none()
    }

    /// Returns the number of write errors, and of the records that were lost because of them.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.errors, self.lost]
    }

    fn flush_with(&mut self, now: Instant, next: fn(&mut Self) -> io::Result<(F, u64)>) {
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        loop {
            if self.unwritten.is_empty() {
                self.note_gap(0);
            }
            if self.unwritten.is_empty() {
                return;
            }
            if let Err(error) = self.write_some(next) {
                return self.note_error(&error, now);
            }
        }
    }

    /// Writes as many records as fit into the file, and begins a new file if none fits.
    fn write_some(&mut self, next: fn(&mut Self) -> io::Result<(F, u64)>) -> io::Result<()> {
        let room = usize::try_from(self.size.saturating_sub(self.len)).unwrap_or(usize::MAX);
        let mut whole = whole_records(&self.unwritten, room);
        if self.torn || whole == 0 && self.len == 0 {
            // One line is written beyond the size of the file: the rest of a record, or a record longer than a file.
            whole = whole_records(&self.unwritten, usize::MAX);
            let first = self.unwritten.iter().position(|byte| *byte == b'\n');
            whole = first.map_or(whole, |end| end + 1);
        }
        if self.file.is_none() || whole == 0 {
            let (file, len) = next(self)?;
            (self.file, self.len) = (Some(file), len);
            return Ok(());
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let written = match file.append(&self.unwritten[..whole]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut kept = written;
        if written < whole {
            // An incomplete record is removed, so that the file ends with a whole one until it can be written again.
            let complete = whole_records(&self.unwritten, written);
            if !self.torn && file.truncate(self.len + complete as u64).is_ok() {
                kept = complete;
            }
        }
        self.torn = self.unwritten[..kept]
            .last()
            .map_or(self.torn, |byte| *byte != b'\n');
        self.len += kept as u64;
        self.unwritten.drain(..kept);
        match written < whole {
            // The next write would report the reason, or write a part of a record again.
            true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            false => Ok(()),
        }
    }

    fn note_error(&mut self, error: &io::Error, now: Instant) {
        self.errors += 1;
        self.retry_at = Some(now + RETRY);
        if self
            .logged_at
            .is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL)
        {
            self.logged_at = Some(now);
            let (lost, error) = (self.lost, error.to_string());
            // The standard library appends the number of the error, which is removed.
            let error = error.split(" (os error").next().unwrap_or_default();
            tracing::warn!(
                "cannot write {}: {error}; {lost} records are lost so far",
                self.path.display()
            );
        }
    }
}

/// Returns the length of the whole records in the first `most` bytes.
fn whole_records(bytes: &[u8], most: usize) -> usize {
    let bytes = bytes.get(..most).unwrap_or(bytes);
    bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1)
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Renames a file, if it exists.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Opens a file for appending, and returns its size. If an earlier process has left an
/// incomplete record, a line end is added behind it.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let (mut file, is_complete) = file::open_to_append(path, 0o600)?;
    if !is_complete {
        file.write_all(b"\n")?;
    }
    let len = file.metadata()?.len();
    Ok((file, len))
}

#[cfg(test)]
mod tests;
