//! Making processes out of this one, without exec.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use pontoon_sandbox::{Namespaces, namespaces};
use pontoon_sys::disabled::Disabled;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

/// A child of ours, not yet waited for.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    pidfd: OwnedFd,
}

/// Status of a child that could not be asked.
const LOST: u8 = 1;

/// Status of a child that panicked, as the standard library has it.
const PANICKED: u8 = 101;

impl Child {
    /// A child just made: its id cannot be another's before it is waited for.
    pub(crate) fn new(pid: libc::pid_t) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid, pidfd })
    }

    /// Its process id.
    #[must_use]
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Readable when the child is dead.
    #[must_use]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends a signal. A child that is dead already is no error.
    pub(crate) fn signal(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            let _ = pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Waits for its death: the status it exited with, or 128 and the signal's number.
    #[must_use]
    pub(crate) fn wait(&self) -> u8 {
        loop {
            match waitid(WaitId::PidFd(self.fd()), WaitIdOptions::EXITED) {
                Ok(Some(status)) => {
                    let by_signal = status.terminating_signal().map(|number| number + 128);
                    let status = status.exit_status().or(by_signal);
                    return status
                        .and_then(|status| u8::try_from(status).ok())
                        .unwrap_or(LOST);
                }
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return LOST,
            }
        }
    }
}

/// Runs `body` in a child that is born in new namespaces (`CLONE_NEW*`); in a new pid namespace it is process 1.
///
/// # Errors
/// The kernel's: ENOSPC and EPERM say that user namespaces are not to be had.
pub(crate) fn clone(namespaces: libc::c_int, body: impl FnOnce() -> u8) -> io::Result<Child> {
    single_threaded()?;
    // SAFETY: without CLONE_VM this is fork(2): the child has its own copy of everything and, as there is one thread,
    // no lock that nobody will release. A null stack means the copy of ours, and the other pointers are unused.
    let pid = unsafe { libc::syscall(libc::SYS_clone, namespaces | libc::SIGCHLD, 0, 0, 0, 0) };
    finish(libc::pid_t::try_from(pid).unwrap_or(-1), body)
}

/// Runs `body` in a child that is born in as many namespaces of its own as the host allows, which it is told. What it
/// changes is the child's copy.
///
/// # Errors
/// No memory, or too many processes.
pub(crate) fn sandboxed(disabled: &Disabled, mut body: impl FnMut(Namespaces) -> u8) -> io::Result<Child> {
    let mut refused = io::ErrorKind::Unsupported.into();
    for born_in in namespaces::choices(disabled) {
        match clone(born_in.flags(), || body(born_in)) {
            Ok(child) => return Ok(child),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Runs `body` in a child.
///
/// # Errors
/// No memory, or too many processes.
pub(crate) fn fork(body: impl FnOnce() -> u8) -> io::Result<Child> {
    single_threaded()?;
    // SAFETY: there is one thread, so the child's copy of memory holds no lock that nobody will release.
    let pid = unsafe { libc::fork() };
    finish(pid, body)
}

fn finish(pid: libc::pid_t, body: impl FnOnce() -> u8) -> io::Result<Child> {
    match pid {
        0 => {
            // Nothing of the parent's that is further up the stack may run in the child.
            let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
            std::process::exit(status.into());
        }
        1.. => Child::new(pid),
        _ => Err(io::Error::last_os_error()),
    }
}

fn single_threaded() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        threads => Err(io::Error::other(format!(
            "{threads} threads where there must be one"
        ))),
    }
}

/// Closes every descriptor of this process but 0, 1, 2 and `keep`. For a child: what its parent's values own stays
/// open in the parent, and nobody in the child will use those values.
///
/// # Errors
/// The kernel's.
pub(crate) fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        if fd > first {
            close_range(first, fd - 1, 0)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, u32::MAX, 0)
}

/// Keeps every descriptor but 0, 1 and 2 from passing an exec.
///
/// # Errors
/// The kernel's.
pub(crate) fn close_all_on_exec() -> io::Result<()> {
    close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Takes over a descriptor of the parent's. For a child: nobody there will use or drop the value that it is of.
pub(crate) fn take_over(descriptor: impl AsFd) -> OwnedFd {
    // SAFETY: it is open, and the only value that closes it in this process is this one: those of the parent's, of which
    // the child has copies, are never dropped, as it exits on the spot.
    unsafe { OwnedFd::from_raw_fd(descriptor.as_fd().as_raw_fd()) }
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: it touches no memory. Whoever calls this is in a child and uses none of what it closes again.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
