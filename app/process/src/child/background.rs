//! Continuation of a program in the background (`--daemon`): the program forks before it creates anything, and the parent exits
//! when the child reports that the network is ready, or with the child's exit status if that comes first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setsid};

use super::spawn::{self, Child};
use super::stdio;
use crate::error::{Context as _, Error};
use crate::log::output;

/// Side of a fork on which [`fork`] returns.
#[derive(Debug)]
pub enum Side {
    /// The process that the caller of the program waits for, with its exit status. It exits without any other action.
    Parent(u8),
    /// The process that continues in the background.
    Child(Background),
}

/// Process that continues in the background once it has reported to its parent.
#[derive(Debug)]
pub struct Background {
    /// Writing end of the pipe from which the parent reads one byte.
    ready: OwnedFd,
}

/// Forks this process. The child has a session of its own, and no inherited descriptors except 0, 1, 2 and `keep`; it is
/// terminated with its parent until [`Background::detach`]. The call returns in the parent when the child has called
/// that function, with the exit status 0, or when the child has exited.
///
/// # Errors
/// No free descriptor, no memory, or too many processes; the child was killed or has exited with status 0 too early.
pub fn fork(keep: &[BorrowedFd<'_>]) -> Result<Side, Error> {
    let cannot = "cannot continue in the background";
    let (done, ready) = pipe_with(PipeFlags::CLOEXEC).context(cannot)?;
    let parent = getpid();
    match spawn::fork_process().context(cannot)? {
        Some(child) => {
            drop(ready);
            wait_for(&done, &child).map(Side::Parent)
        }
        None => {
            drop(done);
            let background = Background { ready };
            background.separate(parent, keep).context(cannot)?;
            Ok(Side::Child(background))
        }
    }
}

/// Waits until the child has written to the pipe or closed it, and returns the exit status of this process.
fn wait_for(done: &OwnedFd, child: &Child) -> Result<u8, Error> {
    let mut byte = [0];
    loop {
        match rustix::io::read(done, &mut byte) {
            Ok(1..) => return Ok(0),
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => break,
        }
    }
    match child.wait() {
        0 => Err(Error::new(
            "the background process exited before the network was ready",
        )),
        // An exit status after an error, which the child has logged.
        status @ 1..=128 => Ok(status),
        killed => Err(Error::new(format!(
            "the background process was killed by signal {}",
            killed - 128
        ))),
    }
}

impl Background {
    /// Separates the child from the caller of the program.
    fn separate(&self, parent: Pid, keep: &[BorrowedFd<'_>]) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // A parent that exited before that call has sent no signal.
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        setsid()?;
        let mut keep = keep.to_vec();
        keep.push(self.ready.as_fd());
        spawn::close_all_but(&keep)
    }

    /// Replaces standard input, output and error by `/dev/null`, and has the parent exit with status 0.
    ///
    /// # Errors
    /// `/dev/null` cannot be opened.
    pub fn detach(self) -> Result<(), Error> {
        output::finish();
        output::leave_stderr();
        stdio::leave_all_to_the_command().context("cannot open /dev/null")?;
        set_parent_process_death_signal(None).context("PR_SET_PDEATHSIG")?;
        // The caller may have killed the parent, in which case nothing reads the pipe.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.ready, b"1"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pontoon_test_support::process::in_child;

    use super::*;

    #[test]
    fn parent_returns_when_the_child_is_ready_or_has_failed() {
        const NAME: &str = "child::background::tests::parent_returns_when_the_child_is_ready_or_has_failed";
        let status = in_child(NAME, || {
            let (mut ready, mut failed, mut early) = (false, false, false);
            match fork(&[]) {
                Ok(Side::Parent(status)) => ready = status == 0,
                Ok(Side::Child(background)) => std::process::exit(background.detach().is_err().into()),
                Err(_) => {}
            }
            match fork(&[]) {
                Ok(Side::Parent(status)) => failed = status == 7,
                Ok(Side::Child(_)) => std::process::exit(7),
                Err(_) => {}
            }
            match fork(&[]) {
                Ok(Side::Parent(_)) => {}
                Ok(Side::Child(_)) => std::process::exit(0),
                Err(error) => early = error.to_string().contains("before the network was ready"),
            }
            u8::from(!(ready && failed && early))
        });
        assert_eq!(status, 0);
    }
}
