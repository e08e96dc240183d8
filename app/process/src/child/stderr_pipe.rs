//! Standard error of an engine or relay worker: a pipe to the supervisor, which forwards it line by line. An attacker who
//! controls the process has neither the user's terminal, to read input or to send it control sequences, nor the log file, to
//! overwrite it.

use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::pipe::{PipeFlags, pipe_with};
use tracing::level_filters::LevelFilter;

use crate::error::one_line;
use crate::log::output;
use crate::log::rate_limit::LogRateLimit;

/// The supervisor's end. Its remaining content is forwarded on drop.
#[derive(Debug)]
pub struct StderrPipe {
    /// `None` once the other end is closed.
    pipe: Option<OwnedFd>,
    /// The beginning of an incomplete line.
    begun: Vec<u8>,
    limit: LogRateLimit,
}

/// Bytes of one read.
const CHUNK: usize = 16 << 10;

/// Bytes of the longest line; a longer one is split.
const LONGEST: usize = 16 << 10;

/// More than the capacity of a pipe.
const ALL: usize = 1 << 20;

impl StderrPipe {
    /// Creates both ends; the writing end is for [`rustix::stdio::dup2_stderr`]. Both are non-blocking: the process drops lines
    /// that do not fit into the pipe, and counts them ([`output`]).
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let pipe = Self {
            pipe: Some(read),
            begun: Vec::new(),
            limit: LogRateLimit::default(),
        };
        Ok((pipe, write))
    }

    /// Returns the descriptor to poll for reading, unless the other end is closed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Forwards at most `CHUNK` bytes or a little more, so that a process that writes without end does not keep the supervisor
    /// busy.
    pub fn forward(&mut self) {
        self.read_lines(CHUNK, write_line);
    }

    /// Forwards the whole content. For a process that has exited, or that the supervisor has waited for.
    pub fn forward_all(&mut self) {
        self.read_lines(ALL, write_line);
    }

    fn read_lines(&mut self, most: usize, mut write: impl FnMut(&str)) {
        let mut buffer = [0; CHUNK];
        let mut received = 0;
        while let Some(pipe) = self.pipe.as_ref().filter(|_| received < most) {
            match rustix::io::read(pipe, &mut buffer).map_err(io::Error::from) {
                Ok(0) => self.pipe = None,
                Ok(len) => {
                    received += len;
                    self.take(&buffer[..len], &mut write);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() && !self.begun.is_empty() {
            self.line(&mut write);
        }
    }

    fn take(&mut self, bytes: &[u8], write: &mut impl FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part
                .strip_suffix(b"\n")
                .map_or((part, false), |text| (text, true));
            self.begun.extend_from_slice(text);
            if ends || self.begun.len() >= LONGEST {
                self.line(write);
            }
        }
    }

    /// Forwards the incomplete line. At log level debug or above there is no limit.
    fn line(&mut self, write: &mut impl FnMut(&str)) {
        let line = one_line(&String::from_utf8_lossy(&self.begun));
        self.begun.clear();
        if LevelFilter::current() >= LevelFilter::DEBUG {
            return write(&line);
        }
        let (permitted, left_out) = self.limit.count(Instant::now());
        if left_out > 0 {
            tracing::warn!("{left_out} log lines of an engine or relay worker were dropped");
        }
        if permitted {
            write(&line);
        }
    }
}

impl Drop for StderrPipe {
    fn drop(&mut self) {
        self.forward_all();
    }
}

/// Writes a line as it is: the process has formatted it as a log line.
fn write_line(line: &str) {
    output::report_dropped();
    let _ = output::Lines.write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(pipe: &mut StderrPipe, most: usize) -> Vec<String> {
        let mut lines = Vec::new();
        pipe.read_lines(most, |line| lines.push(line.to_owned()));
        lines
    }

    #[test]
    fn control_characters_are_replaced_in_forwarded_lines() {
        let (mut pipe, write) = StderrPipe::pair().unwrap();
        rustix::io::write(&write, b"info: a\nwarning: \x1b[2J\rerror: b\nbeg").unwrap();
        assert_eq!(read_all(&mut pipe, ALL), ["info: a", "warning:  [2J error: b"]);
        rustix::io::write(&write, b"un\nno newline").unwrap();
        assert_eq!(read_all(&mut pipe, ALL), ["begun"]);
        drop(write);
        assert_eq!(read_all(&mut pipe, ALL), ["no newline"]);
        assert!(pipe.fd().is_none(), "a closed pipe stays readable");
    }

    #[test]
    fn each_call_reads_one_chunk_and_lines_over_the_limit_are_dropped() {
        let (mut pipe, write) = StderrPipe::pair().unwrap();
        let mut lines = 0;
        for _ in 0..10 {
            while rustix::io::write(&write, &[b'\n'; CHUNK]).is_ok() {}
            let some = read_all(&mut pipe, CHUNK).len();
            assert!(some <= CHUNK);
            lines += some + read_all(&mut pipe, ALL).len();
        }
        assert_eq!(lines, 1000);
        rustix::io::write(&write, &[b'a'; LONGEST + 1]).unwrap();
        read_all(&mut pipe, ALL);
        assert_eq!(pipe.begun.len(), 1);
    }

    #[test]
    fn reading_an_empty_pipe_does_not_block() {
        let (mut pipe, _write) = StderrPipe::pair().unwrap();
        assert!(read_all(&mut pipe, ALL).is_empty());
        assert!(pipe.fd().is_some());
    }
}
