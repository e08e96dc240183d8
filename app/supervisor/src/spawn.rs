//! Making processes out of this one, without exec.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use pontoon_sandbox::{Namespaces, namespaces};
use pontoon_sys::disabled::Disabled;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use crate::error::reason;
use crate::output;

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
/// changes is the child's copy. `before` has those of the child whose place this one takes, and gets this one's: it is born
/// in no fewer. A guest can use up what its user may have of them, and then make an engine die.
///
/// # Errors
/// No memory, or too many processes; those of the one before are not to be had now.
pub(crate) fn sandboxed(
    disabled: &Disabled,
    before: &mut Option<Namespaces>,
    mut body: impl FnMut(Namespaces) -> u8,
) -> io::Result<Child> {
    let choices = before.map_or_else(|| namespaces::choices(disabled), |same| vec![same]);
    let mut refused = io::ErrorKind::Unsupported.into();
    for namespaces in choices {
        match clone(namespaces.flags(), || body(namespaces)) {
            Ok(child) => {
                *before = Some(namespaces);
                return Ok(child);
            }
            Err(error) => refused = error,
        }
    }
    match (&before, refused.raw_os_error()) {
        (Some(_), Some(libc::ENOSPC | libc::EPERM)) => {
            let text = format!(
                "the host refuses the namespaces of the one before: {}",
                reason(&refused)
            );
            Err(io::Error::new(refused.kind(), text))
        }
        _ => Err(refused),
    }
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
            output::forget();
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

/// Runs the test of that full name once more, in a process of its own; says what came of it. In that process: `None`.
#[cfg(test)]
#[track_caller]
pub(crate) fn alone(name: &str) -> Option<std::process::Output> {
    const INSIDE: &str = "PONTOON_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(output)
}

/// Runs `body` in a child of the test of that full name, which has one thread; returns its status. First the test is run
/// once more in a process of its own, where nobody else's descriptors are copied.
#[cfg(test)]
pub(crate) fn in_child(name: &str, body: impl FnOnce() -> u8) -> u8 {
    if let Some(output) = alone(name) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 passed"), "{said}{output:?}");
        // Past the test harness, which keeps what passing tests print to itself.
        io::Write::write_all(&mut io::stderr(), &output.stderr).unwrap();
        return 0;
    }
    // SAFETY: the child has what its one thread had. glibc makes its allocator work in it, and it takes no lock of the
    // harness: it says nothing, and leaves without what is done at an exit.
    match unsafe { libc::fork() } {
        0 => {
            let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
            // SAFETY: it touches no memory of ours.
            unsafe { libc::_exit(status.into()) }
        }
        pid => Child::new(pid).map_or(LOST, |child| child.wait()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::process::{getegid, geteuid};
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;

    /// A user namespace in which no other one may be made.
    fn without_user_namespaces() -> io::Result<()> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        // SAFETY: it takes no descriptors from anybody.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER)? };
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
        fs::write("/proc/sys/user/max_user_namespaces", "0")
    }

    #[test]
    fn a_successor_is_born_in_no_fewer_namespaces() {
        const NAME: &str = "spawn::tests::a_successor_is_born_in_no_fewer_namespaces";
        const SKIPPED: u8 = 77;
        let status = in_child(NAME, || {
            let disabled = Disabled::default();
            let mut before = None;
            let first = sandboxed(&disabled, &mut before, |_| 0).map(|child| child.wait());
            let best = namespaces::choices(&disabled)[0];
            if first.ok() != Some(0) || before != Some(best) || without_user_namespaces().is_err() {
                return SKIPPED;
            }
            let refused = sandboxed(&disabled, &mut before, |_| 0).map(|_| ());
            let said = refused.map_err(|error| error.to_string());
            let clear = "the host refuses the namespaces of the one before: no space left on device";
            let mut none = None;
            let other = sandboxed(&disabled, &mut none, |_| 0).map(|child| child.wait());
            let weaker = other.ok() == Some(0) && none.is_some_and(|namespaces| namespaces != best);
            u8::from(!(said == Err(clear.to_owned()) && before == Some(best) && weaker))
        });
        if status == SKIPPED {
            eprintln!("SKIPPED: {NAME}: no user namespaces");
            return;
        }
        assert_eq!(status, 0);
    }
}
