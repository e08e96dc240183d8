//! Creation of child processes by fork(2) or clone(2), without exec.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use pontoon_sandbox::{Namespaces, namespaces};
use pontoon_sys::disabled::Disabled;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, pidfd_open, pidfd_send_signal,
    waitid, waitpid,
};

use crate::error::reason;
use crate::log::output;

/// Child process that has not been reaped.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
}

/// Exit status that stands for a child whose status waitpid(2) did not return.
const LOST: u8 = 1;

/// Exit status of a child that panicked, as in the standard library.
const PANICKED: u8 = 101;

impl Child {
    /// Wraps a new child. Its id cannot be reused before it is waited for.
    ///
    /// # Errors
    /// Out of descriptors or memory. The child has been killed and reaped.
    pub fn new(pid: libc::pid_t) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { pid, pidfd }),
            Err(error) => {
                // No caller would know of this child, and another one may be started in its place.
                let _ = kill_process(pid, Signal::KILL);
                while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
                Err(error.into())
            }
        }
    }

    /// Returns the process id of the child.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the pidfd of the child, which is readable when the child has exited.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends the signal `number` to the child. It is not an error if the child has exited.
    pub fn signal(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            let _ = pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// Sends SIGKILL to the child.
    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Returns true if a signal has stopped the child, or if it was continued since the last call.
    #[must_use]
    pub(super) fn was_stopped(&self) -> bool {
        let has = |options| {
            matches!(
                waitid(WaitId::PidFd(self.fd()), options | WaitIdOptions::NOHANG),
                Ok(Some(_))
            )
        };
        // The stop is left to be found by the next call, and the continuation is not.
        let is_stopped = has(WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT);
        has(WaitIdOptions::CONTINUED) || is_stopped
    }

    /// Waits until the child exits, and reaps it; returns its exit status, or 128 plus the number of the signal that killed
    /// it.
    #[must_use]
    pub fn wait(&self) -> u8 {
        loop {
            match waitid(WaitId::PidFd(self.fd()), WaitIdOptions::EXITED) {
                Ok(Some(status)) => {
                    let by_signal = status.terminating_signal().map(|number| number + 128);
                    let status = status.exit_status().or(by_signal);
                    return status
                        .and_then(|status| u8::try_from(status).ok())
                        .unwrap_or(LOST);
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(_) => return LOST,
            }
        }
    }
}

/// Runs `body` in a child in new namespaces (`CLONE_NEW*`); in a new PID namespace the child is process 1.
///
/// # Errors
/// The kernel refuses clone(2): ENOSPC and EPERM mean that it refuses user namespaces.
pub fn clone(namespaces: libc::c_int, body: impl FnOnce() -> u8) -> io::Result<Child> {
    single_threaded()?;
    // SAFETY: without CLONE_VM this is fork(2): the child has its own copy of everything and, as there is one thread,
    // no lock that is never released. A null stack means the copy of ours, and the other pointers are unused.
    let pid = unsafe { libc::syscall(libc::SYS_clone, namespaces | libc::SIGCHLD, 0, 0, 0, 0) };
    finish(libc::pid_t::try_from(pid).unwrap_or(-1), body)
}

/// Runs `body` in a child in as many new namespaces as the host allows, and passes the set of these namespaces to `body`,
/// which works on the child's copy of memory. `before` is the set of the process that the child replaces, and is replaced
/// by the child's. The child never has fewer namespaces than `before`: otherwise a guest could exhaust its user's limit on
/// namespaces and then crash an engine, to have it restarted with a weaker sandbox.
///
/// # Errors
/// No memory, or too many processes; the host refuses namespaces in `before`.
pub fn sandboxed(
    disabled: &Disabled,
    before: &mut Option<Namespaces>,
    mut body: impl FnMut(Namespaces) -> u8,
) -> io::Result<Child> {
    if let Some(same) = *before {
        return clone(same.flags(), || body(same)).map_err(|error| match refuses_namespaces(&error) {
            true => {
                let reason = reason(&error);
                let text = format!("the host refuses the namespaces that the previous process had: {reason}");
                io::Error::new(error.kind(), text)
            }
            false => error,
        });
    }
    let (namespaces, child) = first_permitted(namespaces::choices(disabled), |namespaces| {
        clone(namespaces.flags(), || body(namespaces))
    })?;
    *before = Some(namespaces);
    Ok(child)
}

/// Creates a child in the first of `choices` that the host does not refuse.
///
/// # Errors
/// The host refuses all of them. Another error ends the search: with fewer namespaces it may be gone by chance, and the sandbox
/// would be weaker for no reason.
fn first_permitted<T>(
    choices: Vec<Namespaces>,
    mut create: impl FnMut(Namespaces) -> io::Result<T>,
) -> io::Result<(Namespaces, T)> {
    let mut refused = io::ErrorKind::Unsupported.into();
    for namespaces in choices {
        match create(namespaces) {
            Ok(child) => return Ok((namespaces, child)),
            Err(error) if refuses_namespaces(&error) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// Returns true if `error`, of clone(2), means that the host does not permit or support the namespaces: a policy (EPERM, EACCES),
/// a limit on their number (ENOSPC, or EUSERS before Linux 4.9), a kernel that lacks them (EINVAL), or a filter of system calls
/// around this process (EPERM, ENOSYS).
fn refuses_namespaces(error: &io::Error) -> bool {
    let refusals = [
        Errno::PERM,
        Errno::ACCESS,
        Errno::NOSPC,
        Errno::USERS,
        Errno::INVAL,
        Errno::NOSYS,
    ];
    Errno::from_io_error(error).is_some_and(|error| refusals.contains(&error))
}

/// Returns true if a filter of system calls (seccomp(2)) refuses clone(2) with new user namespaces to this process. The kernel
/// itself refuses this combination of flags with EINVAL, before it checks any permission; a filter returns another error.
#[must_use]
pub fn filters_user_namespaces() -> bool {
    let flags = libc::CLONE_NEWUSER | libc::CLONE_FS | libc::SIGCHLD;
    // SAFETY: a null stack means a copy of this one, and the other pointers are unused. The kernel creates no process with
    // these flags; a process that would exist nevertheless exits at once, without touching memory.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        // SAFETY: the call does not return.
        0 => unsafe { libc::_exit(0) },
        1.. => false,
        _ => io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL),
    }
}

/// Runs `body` in a child, in the namespaces of this process.
///
/// # Errors
/// No memory, or too many processes.
pub fn fork(body: impl FnOnce() -> u8) -> io::Result<Child> {
    single_threaded()?;
    // SAFETY: there is one thread, so the child's copy of memory holds no lock that is never released.
    let pid = unsafe { libc::fork() };
    finish(pid, body)
}

/// Forks this process: returns the child in the parent, and `None` in the child, which continues in the caller.
///
/// # Errors
/// No memory, or too many processes.
pub(super) fn fork_process() -> io::Result<Option<Child>> {
    single_threaded()?;
    // SAFETY: there is one thread, so the child's copy of memory holds no lock that is never released.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid @ 1.. => Child::new(pid).map(Some),
        _ => Err(io::Error::last_os_error()),
    }
}

fn finish(pid: libc::pid_t, body: impl FnOnce() -> u8) -> io::Result<Child> {
    match pid {
        0 => {
            output::forget();
            // The child must not return into the parent's frames further up the stack.
            let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
            std::process::exit(status.into());
        }
        1.. => Child::new(pid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns an error if this process has several threads: the kernel then refuses this flag of unshare(2), which has no other
/// effect. `/proc` may be covered by another mount.
fn single_threaded() -> io::Result<()> {
    // SAFETY: the call accesses no memory, and changes nothing.
    let result = unsafe { libc::unshare(libc::CLONE_THREAD) };
    // A filter of system calls around this process may refuse the call with another error.
    if result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        return Err(io::Error::other("several threads where there must be one"));
    }
    Ok(())
}

/// Closes all descriptors except 0, 1, 2 and `keep` in a child process. The same descriptors stay open in the parent, and
/// the child does not use the values that own them.
///
/// # Errors
/// The kernel refuses close_range(2).
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
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

/// Sets close-on-exec on all descriptors except 0, 1 and 2.
///
/// # Errors
/// The kernel refuses close_range(2).
pub fn close_all_on_exec() -> io::Result<()> {
    close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Takes ownership, in a child process, of a descriptor that the child has inherited by fork(2).
///
/// # Safety
/// This process is a child, and neither uses nor drops the parent's value that owns the descriptor, of which it has a copy. This
/// function is called once for each descriptor.
pub unsafe fn take_over(descriptor: impl AsFd) -> OwnedFd {
    // SAFETY: the descriptor is open, and the returned value is the only one that closes it in this process, which the
    // caller ensures.
    unsafe { OwnedFd::from_raw_fd(descriptor.as_fd().as_raw_fd()) }
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: close_range(2) touches no memory. The callers run in a child and do not use the closed descriptors again.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use pontoon_test_support::exhaustion::without_descriptors;
    use pontoon_test_support::process::in_child;
    use rustix::process::{getegid, geteuid};
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;

    /// Enters a user namespace in which no other user namespace may be created.
    fn without_user_namespaces() -> io::Result<()> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        // SAFETY: unshare(2) with this flag does not unshare the descriptor table.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER)? };
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
        fs::write("/proc/sys/user/max_user_namespaces", "0")
    }

    /// In a process of its own, as it takes every descriptor.
    #[test]
    fn child_without_a_pidfd_is_killed_and_reaped() {
        const NAME: &str = "child::spawn::tests::child_without_a_pidfd_is_killed_and_reaped";
        let status = in_child(NAME, || {
            let child = Command::new("sleep").arg("60").spawn().unwrap().id();
            let pid = libc::pid_t::try_from(child).unwrap();
            let error = without_descriptors(|| Child::new(pid)).unwrap_err();
            let status = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            let reaped = matches!(status, Err(Errno::CHILD));
            u8::from(error.raw_os_error() != Some(libc::EMFILE) || !reaped)
        });
        assert_eq!(status, 0);
    }

    #[test]
    fn fewer_namespaces_are_used_only_if_the_host_refuses_them() {
        let choices = || namespaces::choices(&Disabled::default());
        let best = choices()[0];
        let error_of = |number| {
            let all_but_best = |namespaces| match namespaces == best {
                true => Err(io::Error::from_raw_os_error(number)),
                false => Ok(()),
            };
            first_permitted(choices(), all_but_best)
                .err()
                .and_then(|error| error.raw_os_error())
        };
        for number in [
            libc::EPERM,
            libc::EACCES,
            libc::ENOSPC,
            libc::EUSERS,
            libc::EINVAL,
            libc::ENOSYS,
        ] {
            assert_eq!(error_of(number), None, "{}", io::Error::from_raw_os_error(number));
        }
        for number in [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE] {
            assert_eq!(error_of(number), Some(number));
        }
    }

    #[test]
    fn a_restarted_process_has_no_fewer_namespaces() {
        const NAME: &str = "child::spawn::tests::a_restarted_process_has_no_fewer_namespaces";
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
            let message = refused.map_err(|error| error.to_string());
            let clear =
                "the host refuses the namespaces that the previous process had: no space left on device";
            let mut none = None;
            let other = sandboxed(&disabled, &mut none, |_| 0).map(|child| child.wait());
            let weaker = other.ok() == Some(0) && none.is_some_and(|namespaces| namespaces != best);
            u8::from(!(message == Err(clear.to_owned()) && before == Some(best) && weaker))
        });
        if status == SKIPPED {
            eprintln!("SKIPPED: {NAME}: no user namespaces");
            return;
        }
        assert_eq!(status, 0);
    }
}
