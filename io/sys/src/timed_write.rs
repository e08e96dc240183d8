//! A write(2) that an interval timer (timer_create(2)) interrupts, so that it never blocks for long. `O_NONBLOCK`
//! cannot be used: standard error, often a terminal or pipe, shares its file status flags with the shell and the
//! command.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// An interval timer whose signal interrupts a blocking write(2) of the thread that created it. Timers are not
/// inherited by fork(2), so a child process has to create its own.
#[derive(Debug)]
pub struct TimedWrite {
    timer: libc::timer_t,
}

// SAFETY: `timer_t` is the kernel's or the C library's handle of a timer of the process, valid in each of its threads.
unsafe impl Send for TimedWrite {}

/// Interval after which the timer interrupts a write. A write blocks only if another process fills the pipe or stops
/// the terminal between poll(2) and write(2), or if the descriptor has less room than the number of bytes.
const LONGEST: Duration = Duration::from_millis(1);

impl TimedWrite {
    /// Creates the timer, and a handler of its signal that does nothing.
    ///
    /// # Errors
    /// EAGAIN: the user has reached the limit of pending signals (`RLIMIT_SIGPENDING`). Other errors of
    /// timer_create(2).
    pub fn new() -> io::Result<Self> {
        let signal = libc::SIGRTMAX();
        // SAFETY: `sigaction`, `sigset_t` and `sigevent` are plain C data, for which zeroes are valid; the handler touches
        // nothing, and the calls keep no pointer. Without SA_RESTART, a call that waits ends with EINTR.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut mask);
            libc::sigaddset(&raw mut mask, signal);
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_notify_thread_id = libc::gettid();
            event.sigev_signo = signal;
            let mut timer = MaybeUninit::uninit();
            let failed = libc::sigaction(signal, &raw const action, ptr::null_mut()) < 0
                || libc::sigprocmask(libc::SIG_UNBLOCK, &raw const mask, ptr::null_mut()) < 0
                || libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) < 0;
            if failed {
                return Err(io::Error::last_os_error());
            }
            Ok(Self {
                timer: timer.assume_init(),
            })
        }
    }

    /// Writes as many bytes as the descriptor has room for and returns their number. It blocks for a few milliseconds
    /// at most, for any kind of descriptor.
    ///
    /// # Errors
    /// EAGAIN: the descriptor has no room. Other errors of write(2).
    pub fn write(&self, fd: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
        let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
        if poll(&mut fds, Some(&Timespec::default()))? == 0 {
            return Err(Errno::AGAIN);
        }
        self.set(LONGEST);
        let written = rustix::io::write(fd, bytes);
        self.set(Duration::ZERO);
        match written {
            Err(Errno::INTR) => Err(Errno::AGAIN),
            written => written,
        }
    }

    /// Starts the timer with a period, or stops it if `interval` is zero. It expires repeatedly because the first
    /// signal may arrive before the write(2) begins.
    fn set(&self, interval: Duration) {
        let interval = libc::timespec {
            tv_sec: 0,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let value = libc::itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        // SAFETY: the timer belongs to this value and exists until it is dropped; the call keeps no pointer.
        unsafe { libc::timer_settime(self.timer, 0, &raw const value, ptr::null_mut()) };
    }
}

impl Drop for TimedWrite {
    fn drop(&mut self) {
        // SAFETY: the timer belongs to this value, and nothing uses it after this call.
        unsafe { libc::timer_delete(self.timer) };
    }
}

extern "C" fn ignore(_: libc::c_int) {}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Writes until the descriptor has no room, and returns the number of bytes written.
    fn fill(fd: &OwnedFd, bytes: &[u8]) -> usize {
        let write = TimedWrite::new().unwrap();
        let start = Instant::now();
        let mut total = 0;
        loop {
            match write.write(fd, bytes) {
                Ok(len) => total += len,
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        total
    }

    #[test]
    fn full_pipe_or_socket_does_not_block_the_writer() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let total = fill(&write, &[b'x'; 1000]);
        assert!((60_000..=65_536).contains(&total), "{total}");
        drop(read);
        // A child process of another test may hold a copy of the reading end for a moment.
        poll(&mut [PollFd::new(&write, PollFlags::empty())], None).unwrap();
        let writer = TimedWrite::new().unwrap();
        assert_eq!(writer.write(&write, b"x"), Err(Errno::PIPE));

        let (_read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(fill(&write, &[b'x'; 100_000]), 65_536);

        let (mut read, write) = UnixStream::pair().unwrap();
        let write = OwnedFd::from(write);
        let total = fill(&write, &[b'x'; 100_000]);
        assert!(total > 0);
        drop(write);
        let mut all = Vec::new();
        read.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), total);
    }
}
