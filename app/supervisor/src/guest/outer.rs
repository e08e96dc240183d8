//! The outer user namespace of a guest, between that of the caller and that of the command.
//!
//! The command has every capability in its own user namespace, so it could undo what was changed in a mount namespace of that
//! user namespace. Therefore a process in an outer user namespace makes the host's cgroups read-only in a mount namespace of
//! its own, forks the guest's first process into the command's namespaces, and exits. The command's mount namespace is a copy,
//! and no process has capabilities in the outer user namespace any more: the kernel refuses to make such mounts writable, and
//! to remove them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_process::child::spawn::{self, Child};
use pontoon_process::error::{Context as _, Error};
use pontoon_sys::seqpacket;
use rustix::process::Pid;

use crate::guest::command::NAMESPACES;
use crate::guest::handshake::{FromGuest, ToGuest};
use crate::guest::init::{self, InitConfig};
use crate::guest::userns::UserNamespace;
use crate::guest::{cgroups, mounts, userns};

/// Forks the guest's first process, with the channel `channel`, by a process in an outer user namespace with the id maps of
/// `outer`. The user namespace of the guest has the same ids.
///
/// # Errors
/// A namespace cannot be created; the kernel refuses id maps, or mounts and a sandbox is required.
pub(super) fn start(outer: UserNamespace, plan: &InitConfig, channel: &OwnedFd) -> Result<Child, Error> {
    let (ours, theirs) = seqpacket::pair().context("cannot make a socket pair")?;
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    let first = spawn::clone(namespaces, || run(plan, &theirs, channel));
    let first = first.map_err(|error| outer.explain(&error))?;
    drop(theirs);
    let forked = outer.map(first.pid()).and_then(|()| forked(&ours));
    if forked.is_err() {
        first.kill();
    }
    let _ = first.wait();
    // The guest's first process is a child of this process, so its id cannot be reused.
    Child::new(forked?.as_raw_nonzero().get()).context("cannot open the guest's first process")
}

/// Starts the process in the outer user namespace, whose ids are mapped, and returns the id of the process that it has forked.
fn forked(channel: &OwnedFd) -> Result<Pid, Error> {
    ToGuest::Mapped
        .send(channel)
        .context("the process in the outer user namespace has exited")?;
    let received = FromGuest::receive(channel);
    match received.context("cannot receive from the outer user namespace")? {
        Some(FromGuest::Forked(pid)) => Ok(pid),
        Some(FromGuest::Failed(error)) => Err(error),
        Some(_) | None => Err(Error::new(
            "the process in the outer user namespace exited unexpectedly",
        )),
    }
}

/// Runs the process in the outer user namespace, and returns its exit status.
fn run(plan: &InitConfig, supervisor: &OwnedFd, channel: &OwnedFd) -> u8 {
    let forked = spawn::close_all_but(&[supervisor.as_fd(), channel.as_fd()])
        .context("cannot close descriptors")
        .and_then(|()| fork(plan, supervisor.as_fd(), channel));
    let message = match forked {
        Ok(pid) => FromGuest::Forked(pid),
        Err(error) => FromGuest::Failed(error),
    };
    u8::from(message.send(supervisor).is_err())
}

fn fork(plan: &InitConfig, supervisor: BorrowedFd<'_>, channel: &OwnedFd) -> Result<Pid, Error> {
    ToGuest::Mapped
        .expect(supervisor)
        .context("no reply from the supervisor")?;
    mounts::keep_private().map_err(|error| userns::explain_use(&error))?;
    unprotected(plan, cgroups::make_read_only())?;
    // The supervisor becomes the parent of the child.
    let clone = |namespaces| spawn::clone(namespaces | libc::CLONE_PARENT, || init::run(plan, channel));
    let child = match clone(NAMESPACES | libc::CLONE_NEWUSER) {
        Ok(child) => {
            UserNamespace::Same
                .map(child.pid())
                .inspect_err(|_| child.kill())?;
            child
        }
        Err(error) if is_limit(&error) => {
            let what = "cannot make a second user namespace";
            unprotected(plan, Err(Error::io(what, &error)))?;
            clone(NAMESPACES).context("cannot make namespaces")?
        }
        Err(error) => return Err(userns::explain_creation(&error)),
    };
    Ok(child.pid())
}

/// Returns true if the host limits the number of user namespaces, or their depth.
fn is_limit(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSPC | libc::EUSERS | libc::EPERM)
    )
}

/// Logs that the command may write the host's cgroups; returns an error if a sandbox is required.
fn unprotected(plan: &InitConfig, protected: Result<(), Error>) -> Result<(), Error> {
    match protected {
        Err(error) if plan.require_sandbox => Err(error.advise("without --require-sandbox")),
        Err(error) => {
            tracing::warn!("{error}, so the command can write the cgroups of the user");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
