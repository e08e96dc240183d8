//! Guest that the supervisor starts: a command in new namespaces.

use std::os::fd::{BorrowedFd, OwnedFd};

use pontoon_process::child::spawn::{self, Child};
use pontoon_process::error::{Context as _, Error};
use pontoon_sys::seqpacket;
use rustix::process::Pid;

use crate::guest::handshake::{FromGuest, ToGuest};
use crate::guest::init;
use crate::guest::outer;
use crate::guest::tap;
use crate::guest::userns::UserNamespace;

/// Namespaces of a guest, as flags of clone(2), beside its user namespace.
pub(crate) const NAMESPACES: libc::c_int =
    libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;

/// First process of the guest, process 1 of its PID namespace.
#[derive(Debug)]
pub(crate) struct InitProcess {
    init: Child,
    /// Channel to the guest's first process; `None` once the command runs.
    socket: Option<OwnedFd>,
}

/// Forks the guest's first process into new namespaces, where it creates the tap.
///
/// # Errors
/// A namespace or the tap cannot be created, or the guest's first process reports another error.
pub(crate) fn start(plan: &init::InitConfig) -> Result<(InitProcess, tap::CreatedTap), Error> {
    let (ours, theirs) = seqpacket::pair().context("cannot make a socket pair")?;
    let init = match UserNamespace::choose(plan.keep_capabilities) {
        Some(user_namespace) => outer::start(user_namespace, plan, &theirs)?,
        None => spawn::clone(NAMESPACES, || init::run(plan, &theirs)).context("cannot make namespaces")?,
    };
    drop(theirs);
    let guest = InitProcess {
        init,
        socket: Some(ours),
    };
    guest.send(ToGuest::Mapped)?;
    match guest.next()? {
        FromGuest::Tap(tap) => Ok((guest, tap)),
        other => Err(unexpected(&other)),
    }
}

impl InitProcess {
    /// Waits until everything in the guest's namespaces is set up, so that only the command remains to be started.
    ///
    /// # Errors
    /// The guest's first process reports an error.
    pub(crate) fn prepared(&self) -> Result<(), Error> {
        match self.next()? {
            FromGuest::Prepared => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts the command, and closes the channel to the guest's first process.
    ///
    /// # Errors
    /// The command cannot be executed: the exit status is 127 or 126.
    pub(crate) fn go(&mut self) -> Result<(), Error> {
        self.send(ToGuest::Go)?;
        match self.next()? {
            FromGuest::Started => {
                self.socket = None;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    fn channel(&self) -> Result<&OwnedFd, Error> {
        let closed = || Error::new("the channel to the guest's first process is closed");
        self.socket.as_ref().ok_or_else(closed)
    }

    fn send(&self, message: ToGuest) -> Result<(), Error> {
        message
            .send(self.channel()?)
            .context("the guest's first process has exited")
    }

    fn next(&self) -> Result<FromGuest, Error> {
        let received = FromGuest::receive(self.channel()?);
        match received.context("cannot receive from the guest's first process")? {
            Some(FromGuest::Failed(error)) => Err(error),
            Some(message) => Ok(message),
            None => Err(Error::new("the guest's first process exited unexpectedly")),
        }
    }

    /// Returns the pidfd of the guest's first process, which is readable when the guest has ended.
    #[must_use]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.init.fd()
    }

    /// Returns the id of the guest's first process.
    #[must_use]
    pub(crate) fn pid(&self) -> Pid {
        self.init.pid()
    }

    /// Forwards the signal `number` to the guest's first process, which sends it to the command.
    pub(crate) fn signal(&self, number: i32) {
        self.init.signal(number);
    }

    /// Signals to the guest's first process that the host's resolv.conf has changed.
    pub(crate) fn resolv_conf_changed(&self) {
        self.init.signal(init::RESOLV_CONF_CHANGED);
    }

    /// Waits until the guest ends, and returns the exit status of the command.
    #[must_use]
    pub(crate) fn wait(&self) -> u8 {
        self.init.wait()
    }
}

/// Kills the guest's first process; the kernel then kills all processes in its PID namespace.
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
