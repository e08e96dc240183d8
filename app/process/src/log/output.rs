//! Writes of log lines to standard output and standard error that do not block: lines for which a descriptor has no room
//! are queued up to a limit in bytes; beyond the limit they are dropped and counted. The open file descriptions are shared
//! with the command and with the shell, so this process must not set `O_NONBLOCK`; with a second thread for writes, the
//! process could not fork engines.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pontoon_sys::timed_write::TimedWrite;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::log::file::LogFile;

/// Queue of log lines for which a descriptor had no room.
#[derive(Debug)]
pub struct LineQueue {
    waiting: VecDeque<u8>,
    /// Limit on the queued bytes; only a single line that is longer may exceed it.
    bound: usize,
    dropped: u64,
    /// Time of the next attempt to write, after poll(2) reported room and the write found none.
    again: Option<Instant>,
    /// Writer whose timer interrupts a write that blocks; `None` if the user's limit on signals allows no timer.
    writer: Option<TimedWrite>,
}

/// Delay before the next write after poll(2) reported room and the write found none: another process fills the pipe
/// continuously.
const PAUSE: Duration = Duration::from_millis(100);

/// Limit on the queued bytes of standard error.
const LOG: usize = 64 << 10;

/// Limit on the time for which the program waits at its exit for a reader of the queued log lines.
const AT_THE_END: Duration = Duration::from_secs(1);

/// Target of the log event that reports the number of dropped lines. The event is exempt from the rate limit.
pub const DROPPED: &str = "pontoon::dropped";

/// Size up to which a write to a pipe is atomic, in bytes (pipe(7)).
const PIPE_BUF: usize = 4096;

impl LineQueue {
    /// Returns an empty queue with a limit of `bound` bytes.
    pub fn new(bound: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            bound,
            dropped: 0,
            again: None,
            // Without a timer, only poll(2) reports if a write would block.
            writer: TimedWrite::new().ok(),
        }
    }

    /// Writes a line to `fd`, or queues the bytes for which `fd` has no room. Returns false if the queue is full; then the
    /// line is dropped and counted.
    pub fn put(&mut self, fd: BorrowedFd<'_>, line: &[u8]) -> bool {
        self.flush(fd, Instant::now());
        if !self.waiting.is_empty() && self.waiting.len() + line.len() > self.bound {
            self.dropped += 1;
            return false;
        }
        self.waiting.extend(line);
        self.flush(fd, Instant::now());
        true
    }

    /// Writes queued bytes to `fd` until it has no more room.
    pub fn flush(&mut self, fd: BorrowedFd<'_>, now: Instant) {
        if self.again.is_some_and(|again| now < again) {
            return;
        }
        self.again = None;
        while !self.waiting.is_empty() {
            let (bytes, _) = self.waiting.as_slices();
            let written = match &self.writer {
                Some(writer) => writer.write(fd, bytes),
                None if has_room(fd) => rustix::io::write(fd, &bytes[..bytes.len().min(PIPE_BUF)]),
                None => Err(Errno::AGAIN),
            };
            match written {
                Ok(0) => return,
                Ok(len) => drop(self.waiting.drain(..len)),
                Err(Errno::AGAIN) => {
                    if has_room(fd) {
                        self.again = Some(now + PAUSE);
                    }
                    return;
                }
                Err(Errno::INTR) => {}
                // The reader has closed the pipe.
                Err(_) => return self.waiting.clear(),
            }
        }
    }

    /// Returns true if the descriptor is to be polled for writing, because bytes are queued.
    pub fn wants_room(&self) -> bool {
        !self.waiting.is_empty() && self.again.is_none()
    }

    /// Returns the time at which [`Self::flush`] is to be called, if the descriptor is not to be polled.
    pub fn next_turn(&self) -> Option<Instant> {
        self.again.filter(|_| !self.waiting.is_empty())
    }

    /// Writes queued bytes to `fd`, and waits at most `patience` for room.
    fn finish(&mut self, fd: BorrowedFd<'_>, patience: Duration) {
        let until = Instant::now() + patience;
        loop {
            self.flush(fd, Instant::now());
            let left = until.saturating_duration_since(Instant::now());
            if self.waiting.is_empty() || left.is_zero() {
                return;
            }
            match self.again {
                Some(_) => std::thread::sleep(left.min(PAUSE)),
                None => {
                    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
                    let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
                }
            }
        }
    }
}

fn has_room(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Log of this process, whose lines are written to standard error.
static STDERR: Mutex<Log> = Mutex::new(Log::Direct);

/// State of the log of this process, by the kind of its standard error.
#[derive(Debug)]
enum Log {
    /// State before the first line, which creates a queue.
    Direct,
    /// Standard error is a descriptor that other processes share; its lines are queued.
    Shared(LineQueue),
    /// Standard error is a pipe that only this process writes to, with `O_NONBLOCK`: lines for which it has no room are
    /// dropped.
    Pipe { dropped: u64 },
}

/// File to which the lines of this process are written in addition to standard error, or in its place.
static FILE: Mutex<Option<FileOutput>> = Mutex::new(None);

/// Log file of this process.
#[derive(Debug)]
struct FileOutput {
    file: LogFile,
    /// True if lines are written to standard error, too.
    with_stderr: bool,
}

fn file() -> MutexGuard<'static, Option<FileOutput>> {
    FILE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes all further lines of this process to `to` as well.
pub fn add_file(to: LogFile) {
    *file() = Some(FileOutput {
        file: to,
        with_stderr: true,
    });
}

/// Writes all further lines of this process to the log file only, if there is one.
pub fn leave_stderr() {
    if let Some(output) = &mut *file() {
        output.with_stderr = false;
    }
}

fn log() -> MutexGuard<'static, Log> {
    STDERR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writer of lines to the log of this process. Each call of `write` takes one whole line, and never fails.
#[derive(Clone, Copy, Debug)]
pub struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let with_stderr = file().as_mut().is_none_or(|output| {
            output.file.put(line, Instant::now());
            output.with_stderr
        });
        if with_stderr {
            log().put(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn put(&mut self, line: &[u8]) {
        let fd = io::stderr();
        let fd = fd.as_fd();
        match self {
            Self::Direct => {
                let mut output = LineQueue::new(LOG);
                output.put(fd, line);
                *self = Self::Shared(output);
            }
            Self::Shared(output) => {
                output.put(fd, line);
            }
            Self::Pipe { dropped } => {
                let mut short;
                let mut bytes = line;
                if line.len() > PIPE_BUF {
                    short = line[..PIPE_BUF].to_vec();
                    short[PIPE_BUF - 1] = b'\n';
                    bytes = &short;
                }
                if rustix::io::retry_on_intr(|| rustix::io::write(fd, bytes)).is_err() {
                    *dropped += 1;
                }
            }
        }
    }

    fn output(&self) -> Option<&LineQueue> {
        match self {
            Self::Shared(output) => Some(output),
            Self::Direct | Self::Pipe { .. } => None,
        }
    }

    /// Returns the counter of dropped lines, if standard error has room for a line that reports it.
    fn dropped(&mut self) -> Option<&mut u64> {
        match self {
            Self::Shared(output) if output.waiting.is_empty() => Some(&mut output.dropped),
            Self::Pipe { dropped } => Some(dropped),
            Self::Direct | Self::Shared(_) => None,
        }
    }
}

/// Creates the queue of standard error and its timer, before a command exists that could use the user's last timer.
pub fn prepare() {
    let mut log = log();
    if matches!(*log, Log::Direct) {
        *log = Log::Shared(LineQueue::new(LOG));
    }
}

/// Discards queued log lines in a child process, because its parent writes them, and closes the log file. A child calls this
/// function first.
pub fn forget() {
    *file() = None;
    *log() = Log::Direct;
}

/// Declares that standard error is a pipe that only this process writes to, with `O_NONBLOCK`.
pub fn is_own_pipe() {
    *log() = Log::Pipe { dropped: 0 };
}

/// Logs the number of dropped lines, if standard error has room for that line.
pub fn report_dropped() {
    let count = log().dropped().map(std::mem::take);
    if let Some(count @ 1..) = count {
        tracing::warn!(target: DROPPED, "{count} log lines were dropped, as standard error was not read");
        // If that line was dropped, too, it has been counted.
        if let Some(dropped @ 1..) = log().dropped() {
            *dropped += count - 1;
        }
    }
}

/// Writes queued log lines until standard error has no more room.
pub fn flush() {
    if let Log::Shared(output) = &mut *log() {
        output.flush(io::stderr().as_fd(), Instant::now());
    }
    report_dropped();
}

/// Returns true if standard error is to be polled for writing.
pub fn wants_room() -> bool {
    log().output().is_some_and(LineQueue::wants_room)
}

/// Returns the time at which [`flush`] is to be called, if standard error is not to be polled.
pub fn next_turn() -> Option<Instant> {
    log().output().and_then(LineQueue::next_turn)
}

/// Writes queued log lines at the end of the program, and waits at most one second for room.
pub fn finish() {
    if let Log::Shared(output) = &mut *log() {
        output.finish(io::stderr().as_fd(), AT_THE_END);
    }
    report_dropped();
}

#[cfg(test)]
mod tests {
    use pontoon_test_support::process::in_child;
    use rustix::pipe::pipe;

    use super::*;

    fn read(fd: BorrowedFd<'_>) -> usize {
        let mut buffer = [0; 1 << 17];
        rustix::io::read(fd, &mut buffer).unwrap()
    }

    #[test]
    fn lines_over_the_bound_are_dropped_and_no_write_blocks() {
        let (reader, writer) = pipe().unwrap();
        let mut output = LineQueue::new(10_000);
        let start = Instant::now();
        let kept = (0..1000)
            .filter(|_| output.put(writer.as_fd(), &[b'x'; 100]))
            .count();
        // The kept lines are those in the pipe and those in the queue.
        assert!((700..=760).contains(&kept), "{kept}");
        assert_eq!(output.dropped, 1000 - kept as u64);
        assert!(output.waiting.len() <= 10_000);
        assert!(output.wants_room());
        output.finish(writer.as_fd(), Duration::from_millis(10));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());

        let mut got = 0;
        while got < kept * 100 {
            got += read(reader.as_fd());
            output.flush(writer.as_fd(), Instant::now());
        }
        assert!(!output.wants_room());
        assert_eq!(output.next_turn(), None);
    }

    #[test]
    fn a_long_line_is_written_in_parts() {
        let (reader, writer) = pipe().unwrap();
        let mut output = LineQueue::new(1000);
        assert!(output.put(writer.as_fd(), &[b'x'; 100_000]));
        let mut got = 0;
        while got < 100_000 {
            got += read(reader.as_fd());
            output.flush(writer.as_fd(), Instant::now());
        }
        drop(reader);
        output.put(writer.as_fd(), b"no reader");
        assert!(!output.wants_room());
    }

    #[test]
    fn prepared_log_keeps_its_timer_when_the_limit_on_timers_is_zero() {
        const NAME: &str =
            "log::output::tests::prepared_log_keeps_its_timer_when_the_limit_on_timers_is_zero";
        let (_reader, writer) = pipe().unwrap();
        let status = in_child(NAME, || {
            rustix::stdio::dup2_stderr(&writer).unwrap();
            prepare();
            let none = rustix::process::Rlimit {
                current: Some(0),
                maximum: Some(0),
            };
            rustix::process::setrlimit(rustix::process::Resource::Sigpending, none).unwrap();
            Lines.write_all(b"a line\n").unwrap();
            let without = LineQueue::new(LOG).writer.is_none();
            u8::from(!without || log().output().is_none_or(|output| output.writer.is_none()))
        });
        assert_eq!(status, 0);
    }

    #[test]
    fn full_own_pipe_drops_whole_lines_and_counts_them() {
        const NAME: &str = "log::output::tests::full_own_pipe_drops_whole_lines_and_counts_them";
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let status = in_child(NAME, || {
            rustix::stdio::dup2_stderr(&writer).unwrap();
            is_own_pipe();
            for _ in 0..200 {
                Lines.write_all(&[b'x'; 5000]).unwrap();
            }
            let dropped = log().dropped().map(std::mem::take);
            u8::from(dropped != Some(200 - 16))
        });
        assert_eq!(status, 0);
        drop(reader);
    }
}
