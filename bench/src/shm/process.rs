//! The guest's process: forked from the harness and restricted by seccomp. It writes one result to the harness.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};
use rustix::time::{ClockId, clock_gettime};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Frame, notification and time counts of one side of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SideCounts {
    /// Number of frames that this side has sent or received.
    pub(super) frames: u64,
    /// Number of notifications that this side has sent to the other.
    pub(super) notifications: u64,
    /// Number of times that this side has slept until a notification; 0 if not counted.
    pub(super) sleeps: u64,
    /// Wall-clock time of the measurement in nanoseconds.
    pub(super) wall: u64,
    /// CPU time of this side's process in nanoseconds.
    pub(super) cpu: u64,
}

/// A stopwatch of wall-clock time and of the CPU time of this process.
pub(super) struct Stopwatch {
    begin: Instant,
    cpu: Duration,
}

/// The running process of a guest. The kernel kills it when the harness exits.
pub(super) struct GuestProcess {
    pid: Pid,
    result: PipeReader,
}

impl GuestProcess {
    /// Runs `body` in a child process whose seccomp filter permits only the system calls for frames, clocks and
    /// sleep. Descriptors that `body` borrows are closed when that process exits.
    ///
    /// # Errors
    /// Out of processes or descriptors, or there is more than one thread.
    pub(super) fn new(body: impl FnOnce() -> Result<SideCounts>) -> Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            bail!("cannot fork with {threads} threads");
        }
        let filter = filter()?;
        // The first read of a clock locates the vDSO by a system call that the filter does not permit.
        Stopwatch::start();
        let (result, mut ours) = io::pipe()?;
        // SAFETY: there is one thread, so the child's copy of memory holds no lock that would never be released.
        match unsafe { libc::fork() } {
            0 => {
                // The child must not return into the caller's stack frames, whose values belong to the parent.
                let done = catch_unwind(AssertUnwindSafe(|| -> Result<()> {
                    set_parent_process_death_signal(Some(Signal::KILL))?;
                    seccompiler::apply_filter(&filter)?;
                    Ok(ours.write_all(&body()?.bytes())?)
                }));
                let status = match done {
                    Ok(Ok(())) => 0,
                    Ok(Err(error)) => {
                        eprintln!("error: guest: {error:#}");
                        1
                    }
                    Err(_) => 1,
                };
                // SAFETY: ends the process at once, without the exit handlers, which belong to the parent.
                unsafe { libc::_exit(status) }
            }
            pid => {
                let pid = Pid::from_raw(pid).filter(|pid| !pid.as_raw_nonzero().get().is_negative());
                let pid = pid.ok_or_else(io::Error::last_os_error).context("cannot fork")?;
                Ok(Self { pid, result })
            }
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Returns true if the guest has written its result, or has exited.
    pub(super) fn is_done(&self) -> Result<bool> {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
    }

    /// Waits for the result of the guest.
    ///
    /// # Errors
    /// The guest has exited without a result.
    pub(super) fn counts(mut self) -> Result<SideCounts> {
        let mut bytes = [0; SideCounts::BYTES];
        self.result
            .read_exact(&mut bytes)
            .context("the guest's process ended without a result")?;
        Ok(SideCounts::from_bytes(bytes))
    }
}

impl AsFd for GuestProcess {
    /// Returns a descriptor that becomes readable when the guest has written its result or exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.result.as_fd()
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        // The process id cannot have been reused: the guest was not waited for.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self {
            begin: Instant::now(),
            cpu: cpu(),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Returns these counts with the wall-clock and CPU time since the start.
    pub(super) fn stop(&self, frames: u64, notifications: u64) -> SideCounts {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        SideCounts {
            frames,
            notifications,
            sleeps: 0,
            wall: nanoseconds(self.elapsed()),
            cpu: nanoseconds(cpu().saturating_sub(self.cpu)),
        }
    }
}

/// Returns the CPU time that this process has used.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

impl SideCounts {
    const BYTES: usize = 40;

    pub(super) fn seconds(&self) -> f64 {
        Duration::from_nanos(self.wall).as_secs_f64()
    }

    /// Returns the CPU time divided by the wall-clock time.
    pub(super) fn load(&self) -> f64 {
        self.cpu as f64 / self.wall as f64
    }

    fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [self.frames, self.notifications, self.sleeps, self.wall, self.cpu];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let mut next = || words.next().unwrap_or_default();
        Self {
            frames: next(),
            notifications: next(),
            sleeps: next(),
            wall: next(),
            cpu: next(),
        }
    }
}

/// Returns a seccomp filter that kills the process at any system call except those for frames, clocks and sleep.
fn filter() -> Result<BpfProgram> {
    let calls = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_ppoll,
        libc::SYS_clock_gettime,
        libc::SYS_exit_group,
    ];
    let rules: BTreeMap<_, _> = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)?;
    Ok(filter.try_into()?)
}
