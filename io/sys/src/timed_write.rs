//! A write(2) that an interval timer (timer_create(2)) interrupts, for a descriptor whose `O_NONBLOCK` flag other processes
//! share: standard error is often the terminal or pipe of a shell and of the command.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// An interval timer, whose signal interrupts a write of the thread that made it. A child has to make its own.
#[derive(Debug)]
pub struct TimedWrite {
    timer: libc::timer_t,
}

// SAFETY: `timer_t` is the kernel's or the C library's handle of a timer of the process, valid in each of its threads.
unsafe impl Send for TimedWrite {}

/// The longest that a write waits. It waits only where another process fills the pipe or stops the terminal between
/// poll(2) and write(2), or where the descriptor has less room than is written.
const LONGEST: Duration = Duration::from_millis(1);

impl TimedWrite {
    /// Makes the timer, and a handler for its signal, which does nothing.
    ///
    /// # Errors
    /// As many signals are pending as the user may have (`RLIMIT_SIGPENDING`).
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

    /// Writes what there is room for, and waits no longer than a few milliseconds, whatever the descriptor is.
    ///
    /// # Errors
    /// `AGAIN`: there is no room. Otherwise the kernel's.
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

    /// Has the timer expire again and again, as it may expire once before the write begins; zero stops it.
    fn set(&self, interval: Duration) {
        let interval = libc::timespec {
            tv_sec: 0,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let value = libc::itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        // SAFETY: the timer is ours, and exists until this value is dropped; the call keeps no pointer.
        unsafe { libc::timer_settime(self.timer, 0, &raw const value, ptr::null_mut()) };
    }
}

impl Drop for TimedWrite {
    fn drop(&mut self) {
        // SAFETY: the timer is ours, and nothing uses it after this.
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

    use super::*;

    /// Writes until there is no room left; the number of bytes.
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
