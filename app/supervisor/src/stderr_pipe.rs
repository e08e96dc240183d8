//! What a process that moves packets writes to its standard error. That is a pipe to the supervisor, which says it line by
//! line: whoever takes the process over has neither the user's terminal, to read from it what is typed or to send it
//! commands, nor the file that the log goes to, to write over what is there.

use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::pipe::{PipeFlags, pipe_with};
use tracing::level_filters::LevelFilter;

use crate::error::one_line;
use crate::log_rate_limit::Quota;
use crate::output;

/// The supervisor's end. What is left in it is said when it is dropped.
#[derive(Debug)]
pub(crate) struct Talk {
    /// None once the other end is closed.
    pipe: Option<OwnedFd>,
    /// The beginning of a line.
    begun: Vec<u8>,
    quota: Quota,
}

/// Read in one go.
const CHUNK: usize = 16 << 10;

/// What is longer becomes several lines.
const LONGEST: usize = 16 << 10;

/// More than a pipe has room for.
const ALL: usize = 1 << 20;

impl Talk {
    /// Both ends; the other one is for [`rustix::stdio::dup2_stderr`]. Neither waits: the process drops lines that the pipe
    /// has no room for, and counts them ([`crate::output`]).
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let talk = Self {
            pipe: Some(read),
            begun: Vec::new(),
            quota: Quota::default(),
        };
        Ok((talk, write))
    }

    /// What to poll for reading.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Says what is there, but not more than some: the process may write without end, and others wait.
    pub(crate) fn pass_on(&mut self) {
        self.hear(CHUNK, say);
    }

    /// Says all that is there. For a process that is dead, or has done what was waited for.
    pub(crate) fn pass_on_all(&mut self) {
        self.hear(ALL, say);
    }

    fn hear(&mut self, most: usize, mut say: impl FnMut(&str)) {
        let mut buffer = [0; CHUNK];
        let mut heard = 0;
        while let Some(pipe) = self.pipe.as_ref().filter(|_| heard < most) {
            match rustix::io::read(pipe, &mut buffer).map_err(io::Error::from) {
                Ok(0) => self.pipe = None,
                Ok(len) => {
                    heard += len;
                    self.take(&buffer[..len], &mut say);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() && !self.begun.is_empty() {
            self.line(&mut say);
        }
    }

    fn take(&mut self, bytes: &[u8], say: &mut impl FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part
                .strip_suffix(b"\n")
                .map_or((part, false), |text| (text, true));
            self.begun.extend_from_slice(text);
            if ends || self.begun.len() >= LONGEST {
                self.line(say);
            }
        }
    }

    /// Says the line that was begun. Somebody who wants details has them without limit.
    fn line(&mut self, say: &mut impl FnMut(&str)) {
        let line = one_line(&String::from_utf8_lossy(&self.begun));
        self.begun.clear();
        if LevelFilter::current() >= LevelFilter::DEBUG {
            return say(&line);
        }
        let (said, left_out) = self.quota.count(Instant::now());
        if left_out > 0 {
            tracing::warn!("{left_out} lines of a process that moves packets were left out");
        }
        if said {
            say(&line);
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.pass_on_all();
    }
}

/// As it is: it was made a line of the log where it was written.
fn say(line: &str) {
    output::report_dropped();
    let _ = output::Lines.write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(talk: &mut Talk, most: usize) -> Vec<String> {
        let mut lines = Vec::new();
        talk.hear(most, |line| lines.push(line.to_owned()));
        lines
    }

    #[test]
    fn lines_are_lines_and_nothing_else() {
        let (mut talk, write) = Talk::pair().unwrap();
        rustix::io::write(&write, b"info: a\nwarning: \x1b[2J\rerror: b\nbeg").unwrap();
        assert_eq!(heard(&mut talk, ALL), ["info: a", "warning:  [2J error: b"]);
        rustix::io::write(&write, b"un\nlast words").unwrap();
        assert_eq!(heard(&mut talk, ALL), ["begun"]);
        drop(write);
        assert_eq!(heard(&mut talk, ALL), ["last words"]);
        assert!(talk.fd().is_none(), "its end would be readable for good");
    }

    #[test]
    fn who_writes_without_end_is_heard_a_little_at_a_time_and_for_a_while() {
        let (mut talk, write) = Talk::pair().unwrap();
        let mut lines = 0;
        for _ in 0..10 {
            while rustix::io::write(&write, &[b'\n'; CHUNK]).is_ok() {}
            let some = heard(&mut talk, CHUNK).len();
            assert!(some <= CHUNK);
            lines += some + heard(&mut talk, ALL).len();
        }
        assert_eq!(lines, 1000);
        rustix::io::write(&write, &[b'a'; LONGEST + 1]).unwrap();
        heard(&mut talk, ALL);
        assert_eq!(talk.begun.len(), 1);
    }

    #[test]
    fn nobody_waits_for_one_who_says_nothing() {
        let (mut talk, _write) = Talk::pair().unwrap();
        assert!(heard(&mut talk, ALL).is_empty());
        assert!(talk.fd().is_some());
    }
}
