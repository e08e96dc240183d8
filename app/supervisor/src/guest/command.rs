//! Guest that the supervisor starts: a command in new namespaces.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_process::child::spawn::{self, Child};
use pontoon_process::error::{Context as _, Error};
use pontoon_process::signals::{Sender, Signal};
use pontoon_sys::seqpacket;
use rustix::process::Pid;

use crate::guest::handshake::{FromGuest, Stop, ToGuest};
use crate::guest::init;
use crate::guest::outer;
use crate::guest::tap;
use crate::guest::terminal::{Job, Reaction};
use crate::guest::userns::UserNamespace;

/// Namespaces of a guest, as flags of clone(2), beside its user namespace.
pub(crate) const NAMESPACES: libc::c_int =
    libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;

/// First process of the guest, process 1 of its PID namespace.
#[derive(Debug)]
pub(crate) struct InitProcess {
    init: Child,
    /// Channel to the guest's first process; `None` once that has closed its end.
    socket: Option<OwnedFd>,
    /// Job of the command, once it is started.
    job: Option<Job>,
}

/// Forks the guest's first process into new namespaces, where it creates the tap.
///
/// # Errors
/// A namespace or the tap cannot be created, or the guest's first process reports another error.
pub(crate) fn start(plan: &init::InitConfig) -> Result<(InitProcess, tap::CreatedTap), Error> {
    let (ours, theirs) = seqpacket::pair().context("cannot make a socket pair")?;
    let init = match UserNamespace::choose(plan.keep_capabilities) {
        Some(user_namespace) => outer::start(user_namespace, plan, &theirs)?,
        None => {
            spawn::clone(NAMESPACES, || init::run(plan, &theirs, None)).context("cannot make namespaces")?
        }
    };
    drop(theirs);
    let guest = InitProcess {
        init,
        socket: Some(ours),
        job: None,
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

    /// Starts the command, in the foreground of the terminal if this process is there.
    ///
    /// # Errors
    /// The command cannot be executed: the exit status is 127 or 126.
    pub(crate) fn go(&mut self) -> Result<(), Error> {
        let mut job = Job::new(self.init.pid());
        job.begin();
        self.job = Some(job);
        self.send(ToGuest::Go)?;
        match self.next()? {
            FromGuest::Started => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the channel that is readable when the guest's first process reports a change of the job.
    #[must_use]
    pub(crate) fn job_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Receives a change of the job. Returns the stop of the command, if this process has to stop, too.
    pub(crate) fn job_changed(&mut self) -> Option<(Stop, Reaction)> {
        let received = self
            .socket
            .as_ref()
            .and_then(|socket| FromGuest::receive(socket).ok()?);
        let job = self.job.as_mut();
        match (received, job) {
            (Some(FromGuest::Signalled(number)), Some(job)) => job.pass_on(number),
            (Some(FromGuest::Stopped(stop)), Some(job)) => match job.reaction(stop) {
                Reaction::Keep => {}
                Reaction::Continue => job.resume(),
                reaction => return Some((stop, reaction)),
            },
            _ => self.socket = None,
        }
        None
    }

    /// Stops this process until its shell continues it, and then continues the command.
    pub(crate) fn stop_with_the_command(&mut self, stop: Stop, reaction: Reaction) {
        if let Some(job) = &mut self.job {
            job.stop(stop, reaction);
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

    /// Opens the network namespace of the guest. It can be opened until the command is started.
    ///
    /// # Errors
    /// The guest's first process has exited, or no descriptor is free.
    pub(crate) fn network(&self) -> io::Result<File> {
        File::open(format!("/proc/{}/ns/net", self.pid().as_raw_nonzero()))
    }

    /// Returns the id of the guest's first process.
    #[must_use]
    pub(crate) fn pid(&self) -> Pid {
        self.init.pid()
    }

    /// Forwards a signal of another process to the guest's first process, which sends it to the command, and a signal of the
    /// terminal to the command's process group.
    pub(crate) fn signal(&mut self, signal: Signal) {
        match (signal.by, &mut self.job) {
            (Sender::Process, _) => self.init.signal(signal.number),
            (Sender::Terminal, Some(job)) => job.forward(signal),
            (Sender::Terminal, None) | (Sender::Itself, _) => {}
        }
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
