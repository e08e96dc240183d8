//! Pipe that is the standard error of an engine or relay worker. The supervisor forwards its lines to the log, so that an
//! attacker who controls the process has neither the user's terminal, to read input or send control sequences, nor the log
//! file, to overwrite it.

use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustix::pipe::{PipeFlags, pipe_with};
use tracing::level_filters::LevelFilter;

use crate::error::one_line;
use crate::log::output;
use crate::log::rate_limit::LogRateLimit;

/// Reading end of a child process's standard error, in the supervisor. Dropping it forwards the remaining lines.
#[derive(Debug)]
pub struct StderrPipe {
    /// Reading end of the pipe; `None` once the writing end is closed.
    pipe: Option<OwnedFd>,
    /// Bytes of a line whose newline has not been read.
    begun: Vec<u8>,
    limit: &'static Mutex<LogRateLimit>,
}

/// Limit on the lines of all child processes together. A child process that is restarted shares the limit.
static OF_CHILDREN: Mutex<LogRateLimit> = Mutex::new(LogRateLimit::new());

/// Size of one read, in bytes.
const CHUNK: usize = 16 << 10;

/// Length of the longest line that is forwarded whole, in bytes; a longer line is split.
const LONGEST: usize = 16 << 10;

/// Limit on the bytes that are read of an exited process: more than the capacity of a pipe.
const ALL: usize = 1 << 20;

impl StderrPipe {
    /// Creates a pipe and returns both ends; the writing end is for [`rustix::stdio::dup2_stderr`]. Both ends are
    /// non-blocking: the process drops log lines for which the pipe has no room, and counts them ([`output`]).
    ///
    /// # Errors
    /// No free descriptor.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        Self::limited(&OF_CHILDREN)
    }

    /// Creates a pipe whose lines count towards `limit`.
    fn limited(limit: &'static Mutex<LogRateLimit>) -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let pipe = Self {
            pipe: Some(read),
            begun: Vec::new(),
            limit,
        };
        Ok((pipe, write))
    }

    /// Returns the reading end, to be polled, unless the writing end is closed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Forwards at most about `CHUNK` bytes to the log, so that a process that writes without end does not keep the
    /// supervisor busy.
    pub fn forward(&mut self) {
        self.read_lines(CHUNK, write_line);
    }

    /// Forwards all bytes in the pipe to the log, after the process has exited or while the supervisor waits for its exit.
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

    /// Forwards the incomplete line to the log. At log level debug or above the number of lines is not limited.
    fn line(&mut self, write: &mut impl FnMut(&str)) {
        let line = one_line(&String::from_utf8_lossy(&self.begun));
        self.begun.clear();
        if LevelFilter::current() >= LevelFilter::DEBUG {
            return write(&line);
        }
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let (permitted, left_out) = limit.count(line.len(), Instant::now());
        drop(limit);
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

/// Writes a line to the log unchanged, because the process has formatted it as a log line.
fn write_line(line: &str) {
    output::report_dropped();
    let _ = output::Lines.write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

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
        // The process of another test may hold a copy of the writing end for a moment.
        let mut fds = [PollFd::from_borrowed_fd(pipe.fd().unwrap(), PollFlags::empty())];
        poll(&mut fds, None).unwrap();
        assert_eq!(read_all(&mut pipe, ALL), ["no newline"]);
        assert!(pipe.fd().is_none(), "a closed pipe stays readable");
    }

    #[test]
    fn each_call_reads_one_chunk_and_lines_over_the_limit_are_dropped() {
        let limit = Box::leak(Box::default());
        let (mut pipe, write) = StderrPipe::limited(limit).unwrap();
        let mut lines = 0;
        for _ in 0..10 {
            while rustix::io::write(&write, &[b'\n'; CHUNK]).is_ok() {}
            let some = read_all(&mut pipe, CHUNK).len();
            assert!(some <= CHUNK);
            lines += some + read_all(&mut pipe, ALL).len();
        }
        assert_eq!(lines, 1000);
        // The next process has the same limit.
        let (mut next, write_end) = StderrPipe::limited(limit).unwrap();
        rustix::io::write(&write_end, b"line\n").unwrap();
        assert!(read_all(&mut next, ALL).is_empty());
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
