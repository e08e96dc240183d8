//! Standard output and standard error without waiting: lines that a descriptor has no room for are queued up to a bound, and
//! dropped and counted beyond it. The open file descriptions are shared with the command and with the shell, so this process
//! must not set `O_NONBLOCK`; with a thread that writes, it could not fork engines.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pontoon_sys::timed_write::TimedWrite;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Lines that a descriptor had no room for.
#[derive(Debug)]
pub struct LineQueue {
    waiting: VecDeque<u8>,
    /// The most bytes that wait, but for one line that is longer.
    bound: usize,
    dropped: u64,
    /// The time of the next attempt, after poll(2) reported room and the write had none.
    again: Option<Instant>,
    /// `None` if the user's limit allows no timer.
    writer: Option<TimedWrite>,
}

/// The delay after a write without room despite poll(2): another process fills the pipe at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Limit on queued bytes of the log.
const LOG: usize = 64 << 10;

/// Time that the program waits at exit for the reader of the log.
const AT_THE_END: Duration = Duration::from_secs(1);

/// The target of the event that counts dropped lines, which is exempt from the rate limit.
pub const DROPPED: &str = "pontoon::dropped";

/// Atomic in a pipe (pipe(7)).
const PIPE_BUF: usize = 4096;

impl LineQueue {
    /// Returns an empty queue for `bound` bytes.
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

    /// Writes a line, or queues the part that there is no room for. Returns false if the line exceeds the bound, and drops and
    /// counts it.
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

    /// Writes as much as there is room for.
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

    /// Returns true if the descriptor is to be polled for writing, as bytes are queued.
    pub fn wants_room(&self) -> bool {
        !self.waiting.is_empty() && self.again.is_none()
    }

    /// Returns the time to flush, if the descriptor is not to be polled.
    pub fn next_turn(&self) -> Option<Instant> {
        self.again.filter(|_| !self.waiting.is_empty())
    }

    /// Flushes for `patience` at most.
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

/// The log of this process, which standard error gets.
static STDERR: Mutex<Log> = Mutex::new(Log::Direct);

#[derive(Debug)]
enum Log {
    /// No line has been written yet: the first one creates a queue.
    Direct,
    /// A descriptor that other processes share.
    Shared(LineQueue),
    /// A pipe of this process's own, with `O_NONBLOCK`: what it has no room for is dropped.
    Pipe { dropped: u64 },
}

fn log() -> MutexGuard<'static, Log> {
    STDERR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A writer of lines to the log. It takes one whole line in each call, and never fails.
#[derive(Clone, Copy, Debug)]
pub struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        log().put(line);
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

    /// Returns the counter of dropped lines, if there is room for a line that reports it.
    fn dropped(&mut self) -> Option<&mut u64> {
        match self {
            Self::Shared(output) if output.waiting.is_empty() => Some(&mut output.dropped),
            Self::Pipe { dropped } => Some(dropped),
            Self::Direct | Self::Shared(_) => None,
        }
    }
}

/// Creates the queue and its timer, before a command exists that could use the user's last timer.
pub fn prepare() {
    let mut log = log();
    if matches!(*log, Log::Direct) {
        *log = Log::Shared(LineQueue::new(LOG));
    }
}

/// Drops queued lines, which the parent writes. To be called in a child, before anything else.
pub fn forget() {
    *log() = Log::Direct;
}

/// Declares that standard error is a pipe of this process's own, with `O_NONBLOCK`.
pub fn is_own_pipe() {
    *log() = Log::Pipe { dropped: 0 };
}

/// Logs the number of dropped lines, if there is room for that line.
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

/// Writes queued lines, as far as there is room.
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

/// Returns the time to call [`flush`], if standard error is not to be polled.
pub fn next_turn() -> Option<Instant> {
    log().output().and_then(LineQueue::next_turn)
}

/// Writes queued lines, and waits up to a second for room. For the end of the program.
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
        // The pipe's, and the queue's.
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
