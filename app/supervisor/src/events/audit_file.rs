//! The audit file: records are appended in batches, and the file is renamed when it is full.
//!
//! This code runs in the process of [`audit_writer`](super::audit_writer), because a write blocks while the file system does
//! not respond. A write error loses no record: those that are not written are kept, and written when that is possible again.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pontoon_process::error::Error;
use pontoon_process::file;

use crate::audit::Audit;

/// File that is open for appending.
pub(super) trait Append {
    /// Appends some of the bytes; returns their number.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Removes the last `count` bytes.
    fn remove_end(&mut self, count: u64) -> io::Result<()>;
}

impl Append for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }

    fn remove_end(&mut self, count: u64) -> io::Result<()> {
        // Not the size that was added up: another program may have truncated the file, and must not get it longer.
        let len = self.metadata()?.len();
        self.set_len(len.saturating_sub(count))
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
    /// Records that are not written yet; the last one may be incomplete. If `torn` is set, the first one is incomplete, too: the
    /// file ends with its beginning.
    unwritten: Vec<u8>,
    torn: bool,
}

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
        Ok(Self::new(path, options, Some(file), len))
    }

    /// Returns the same file, which is opened before the next record is written.
    pub(super) fn reopened(&self) -> Self {
        Self {
            path: self.path.clone(),
            file: None,
            len: 0,
            unwritten: Vec::new(),
            torn: false,
            ..*self
        }
    }

    /// Returns the descriptor of the file, if it is open.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the whole records that wait.
    ///
    /// # Errors
    /// A record could not be written. It is written by a later call.
    pub(super) fn write(&mut self) -> io::Result<()> {
        self.write_with(Self::next_file)
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
            free_first(&self.path, self.keep)?;
            rename(&self.path, &numbered(&self.path, 1))?;
        }
        open(&self.path)
    }
}

impl<F> AuditFile<F> {
    fn new(path: PathBuf, options: &Audit, file: Option<F>, len: u64) -> Self {
        Self {
            path,
            size: options.size,
            keep: options.keep,
            file,
            len,
            unwritten: Vec::new(),
            torn: false,
        }
    }

    /// Adds a part of the text of the records to what waits to be written.
    pub(super) fn push(&mut self, text: &[u8]) {
        self.unwritten.extend_from_slice(text);
    }
}

impl<F: Append> AuditFile<F> {
    fn write_with(&mut self, next: fn(&mut Self) -> io::Result<(F, u64)>) -> io::Result<()> {
        while whole_records(&self.unwritten, usize::MAX) > 0 {
            self.write_some(next)?;
        }
        Ok(())
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
            if !self.torn && file.remove_end((written - complete) as u64).is_ok() {
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

/// Renames earlier files of `path`, of which `keep` are kept, so that the number 1 is free. They move up to the first free number
/// only: if the current file cannot be renamed then, the next attempt removes no other file.
fn free_first(path: &Path, keep: u32) -> io::Result<()> {
    let is_free = |number: &u32| fs::symlink_metadata(numbered(path, *number)).is_err();
    let free = (1..keep).find(is_free).unwrap_or(keep);
    for number in (1..free).rev() {
        rename(&numbered(path, number), &numbered(path, number + 1))?;
    }
    Ok(())
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
