//! A guest of our own: a command in new namespaces.

use std::os::fd::{BorrowedFd, OwnedFd};

use pontoon_process::child::spawn::{self, Child};
use pontoon_process::error::{Context as _, Error};
use pontoon_sys::seqpacket;
use rustix::process::Pid;

use crate::guest::handshake::{FromGuest, ToGuest};
use crate::guest::init;
use crate::guest::tap;
use crate::guest::userns::UserNamespace;

/// The guest's first process, waiting for the network.
#[derive(Debug)]
pub(crate) struct InitProcess {
    init: Child,
    socket: OwnedFd,
}

/// Makes the namespaces and, in them, the tap.
///
/// # Errors
/// User namespaces cannot be had; the tap cannot be made; and whatever else the guest's side reports.
pub(crate) fn start(plan: &init::InitConfig) -> Result<(InitProcess, tap::Made), Error> {
    let (ours, theirs) = seqpacket::pair().context("cannot make a socket pair")?;
    let user_namespace = UserNamespace::choose(plan.keep_capabilities);
    let mut namespaces =
        libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;
    if user_namespace.is_some() {
        namespaces |= libc::CLONE_NEWUSER;
    }
    let init =
        spawn::clone(namespaces, || init::run(plan, &theirs)).map_err(|error| match user_namespace {
            Some(user_namespace) => user_namespace.explain(&error),
            None => Error::io("cannot make namespaces", &error),
        })?;
    drop(theirs);
    let guest = InitProcess { init, socket: ours };
    if let Some(user_namespace) = user_namespace {
        user_namespace.map(guest.init.pid())?;
    }
    ToGuest::Mapped
        .send(&guest.socket)
        .context("the guest's first process has exited")?;
    match guest.next()? {
        FromGuest::Tap(tap) => Ok((guest, tap)),
        other => Err(unexpected(&other)),
    }
}

impl InitProcess {
    /// Waits until everything but the command stands.
    ///
    /// # Errors
    /// What the guest's side reports.
    pub(crate) fn prepared(&self) -> Result<(), Error> {
        match self.next()? {
            FromGuest::Prepared => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts the command.
    ///
    /// # Errors
    /// It cannot be run: status 127 or 126.
    pub(crate) fn go(&self) -> Result<(), Error> {
        ToGuest::Go
            .send(&self.socket)
            .context("the guest's first process has exited")?;
        match self.next()? {
            FromGuest::Started => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn next(&self) -> Result<FromGuest, Error> {
        match FromGuest::receive(&self.socket).context("cannot receive from the guest's first process")? {
            Some(FromGuest::Failed(error)) => Err(error),
            Some(message) => Ok(message),
            None => Err(Error::new("the guest's first process exited unexpectedly")),
        }
    }

    /// Readable when the guest is gone.
    #[must_use]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.init.fd()
    }

    /// Its first process.
    #[must_use]
    pub(crate) fn pid(&self) -> Pid {
        self.init.pid()
    }

    /// Hands a signal on to the command.
    pub(crate) fn signal(&self, number: i32) {
        self.init.signal(number);
    }

    /// Says that something has happened to the host's resolv.conf.
    pub(crate) fn resolve_anew(&self) {
        self.init.signal(init::HOST_RESOLVES_ANEW);
    }

    /// Waits for the guest's end, and returns the command's status.
    #[must_use]
    pub(crate) fn wait(&self) -> u8 {
        self.init.wait()
    }
}

/// Whatever ends the supervisor's part ends the guest: the kernel kills all that lives in its pid namespace.
impl Drop for InitProcess {
    fn drop(&mut self) {
        self.init.kill();
        let _ = self.init.wait();
    }
}

fn unexpected(message: &FromGuest) -> Error {
    Error::new(format!(
        "unexpected message from the guest's first process: {message:?}"
    ))
}
