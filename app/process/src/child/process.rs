//! A process in the sandbox, with its channel and its standard error.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use pontoon_ipc::{Channel, ChannelMessage, OutboxOverflow, ProcessReport, ReportKind};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::environment;
use super::exit_reason::ExitReason;
use super::spawn::{self, Child};
use super::stderr_pipe::StderrPipe;
use crate::error::{Context as _, Error};
use crate::log::{output, panics};

/// One process from its fork until it is reaped, to which messages `S` are sent and which reports `R`. Dropping this closes
/// the channel, gives the process `STOP_TIMEOUT` to exit, kills it if it has not, and reaps it.
#[derive(Debug)]
pub struct ChildProcess<S, R> {
    child: Child,
    channel: Channel<S, R>,
    /// Reading end of its standard error.
    stderr: StderrPipe,
    started: Instant,
    /// Time by which the process must report that it is ready; `None` once it has. Messages to it are queued meanwhile.
    ready_deadline: Option<Instant>,
    /// The error that it has reported, or its violation of the protocol.
    error: Option<String>,
}

/// A process that is restarted after each exit; `B` is the state between two processes.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are few, and nearly always it is the larger variant"
)]
pub enum ProcessState<S, R, B> {
    /// It runs, or has exited and has not been reaped.
    Running(ChildProcess<S, R>),
    /// Not running; the next start is scheduled.
    Backoff(B),
}

/// Configuration of a new process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessConfig<'a> {
    /// Name in errors, with an article.
    pub name: &'static str,
    /// Selects the rules of the sandbox.
    pub role: Role,
    /// A layer of the sandbox that the host refuses is an error.
    pub require_sandbox: bool,
    /// Kernel features that tests switch off.
    pub disabled: &'a Disabled,
    /// Limit on the messages that are queued for a process that does not read.
    pub max_queued: usize,
}

/// Limit on the time from start to [`ReportKind::Ready`], which is normally a few milliseconds.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a process has to exit before it is killed; it normally needs about a millisecond.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

impl<S: ChannelMessage, R: ProcessReport> ChildProcess<S, R> {
    /// Forks a process into as many new namespaces as the host allows, or into those that `before` names. `body` runs in it
    /// with its end of the channel, without environment, and returns its exit status.
    ///
    /// # Errors
    /// Out of descriptors, memory or processes; the host refuses the namespaces.
    pub fn spawn(
        config: &ProcessConfig<'_>,
        before: &mut Option<Namespaces>,
        mut body: impl FnMut(&OwnedFd, Sandbox) -> u8,
    ) -> Result<Self, Error> {
        let name = config.name;
        let (ours, theirs) = seqpacket::pair_with_untrusted().context("cannot make a socket pair")?;
        let channel = Channel::new(ours, config.max_queued)
            .context(format_args!("cannot set up the channel to {name}"))?;
        let (stderr, stderr_end) = StderrPipe::pair().context("cannot make a pipe")?;
        let child = spawn::sandboxed(config.disabled, before, |namespaces| {
            let sandbox = Sandbox {
                role: config.role,
                namespaces,
                required: config.require_sandbox,
            };
            if rustix::stdio::dup2_stderr(&stderr_end).is_err() {
                return 1;
            }
            output::is_own_pipe();
            // SAFETY: the child of a single-threaded process has one thread, and a supervisor reads its environment by
            // functions that copy the variables.
            unsafe { environment::erase() };
            panics::set_hook();
            body(&theirs, sandbox)
        });
        let child = child.context(format_args!("cannot fork {name}"))?;
        Ok(Self::new(child, channel, stderr, Instant::now()))
    }

    /// A process that was forked at `started`.
    #[must_use]
    pub fn new(child: Child, channel: Channel<S, R>, stderr: StderrPipe, started: Instant) -> Self {
        Self {
            child,
            channel,
            stderr,
            started,
            ready_deadline: Some(started + READY_TIMEOUT),
            error: None,
        }
    }

    /// Waits until the process reports that it is ready. Returns the reason if it does not; it has exited then or is killed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait_until_ready(&mut self) -> io::Result<Option<ExitReason>> {
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        let left = self.ready_deadline.map(remaining).unwrap_or_default();
        if poll(&mut fds, Some(&left))? == 0 {
            return Ok(Some(ExitReason::Unresponsive));
        }
        let report = self.channel.receive();
        self.stderr.forward_all();
        match report.map(|report| report.map(R::classify)) {
            Ok(Some(ReportKind::Ready)) => {
                self.ready_deadline = None;
                return Ok(None);
            }
            Ok(Some(ReportKind::Failed(error))) => self.error = Some(error),
            Ok(Some(ReportKind::Other(_)) | None) | Err(_) => {}
        }
        // A process that broke the protocol has not exited.
        self.end();
        Ok(Some(self.reap()))
    }

    /// Receives up to `most` reports, but no more after an error of the process. Calls `handle` for each that is not about the
    /// process itself, and for the error of each that is refused; its error is the process's. Returns true if the process has
    /// closed its end: it will send no more reports, while the channel stays readable.
    pub fn receive(
        &mut self,
        most: usize,
        mut handle: impl FnMut(io::Result<R>) -> Result<(), String>,
    ) -> bool {
        for _ in 0..most {
            let handled = match self.channel.receive() {
                Ok(Some(report)) => match report.classify() {
                    ReportKind::Ready => {
                        self.ready_deadline = None;
                        Ok(())
                    }
                    ReportKind::Failed(text) => Err(text),
                    ReportKind::Other(report) => handle(Ok(report)),
                },
                Ok(None) => return true,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => handle(Err(error)),
                Err(_) => return false,
            };
            if let Err(error) = handled {
                self.error = Some(error);
                return false;
            }
        }
        false
    }

    /// Sends a message, or queues it. A process that has not read for so long that the queue is full is killed.
    ///
    /// # Errors
    /// The process was killed. Returned once.
    pub fn send(&mut self, message: S) -> Result<(), OutboxOverflow> {
        let sent = self.channel.send(message);
        if sent.is_err() {
            self.child.kill();
        }
        sent
    }

    /// Sends queued messages as far as there is room.
    pub fn flush(&mut self) {
        self.channel.flush(Instant::now());
    }

    /// Returns the channel, to be polled for writing, if messages wait for room in it.
    #[must_use]
    pub fn unsent(&self) -> Option<BorrowedFd<'_>> {
        self.channel.wants_room().then(|| self.channel.as_fd())
    }

    /// Returns the time to call [`Self::flush`], if a failed send is to be retried.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.channel.retry_at()
    }
}

impl<S, R> ChildProcess<S, R> {
    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Returns the pidfd, which is readable when the process has exited.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.child.fd()
    }

    /// Returns the channel, which is readable when a report has arrived.
    #[must_use]
    pub fn report_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns the pipe of its standard error, unless the other end is closed.
    #[must_use]
    pub fn stderr_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stderr.fd()
    }

    /// Returns the time by which the process must report that it is ready; `None` once it has.
    #[must_use]
    pub fn ready_deadline(&self) -> Option<Instant> {
        self.ready_deadline
    }

    /// Returns the time of its start.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns true if the process has reported an error or violated the protocol.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Records a violation of the protocol.
    pub fn fail(&mut self, error: &str) {
        self.error = Some(error.to_owned());
    }

    /// Forwards lines from its standard error to the log.
    pub fn forward_stderr(&mut self) {
        self.stderr.forward();
    }

    /// Kills it.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Waits up to `STOP_TIMEOUT` for the process to exit, then kills it.
    pub fn end(&mut self) {
        if !self.exits_within(STOP_TIMEOUT) {
            self.child.kill();
        }
    }

    /// Waits up to `limit` for the process to exit, and forwards its standard error meanwhile; returns true if it has exited.
    pub fn exits_within(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            let child = self.child.fd();
            let mut fds = vec![PollFd::new(&child, PollFlags::IN)];
            let stderr = self.stderr.fd();
            fds.extend(stderr.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            if !poll(&mut fds, Some(&remaining(until))).is_ok_and(|ready| ready > 0) {
                return false;
            }
            if !fds[0].revents().is_empty() {
                return true;
            }
            if until <= Instant::now() {
                return false;
            }
            self.stderr.forward();
        }
    }

    /// Waits for the process, which has exited or been killed, and forwards the rest of its standard error. Returns the error
    /// that it has reported, or its exit status.
    pub fn reap(&mut self) -> ExitReason {
        let status = self.child.wait();
        self.stderr.forward_all();
        match self.error.take() {
            Some(error) => ExitReason::Reported(error),
            None => ExitReason::of_status(status),
        }
    }
}

impl<S, R> Drop for ChildProcess<S, R> {
    fn drop(&mut self) {
        // The process exits, and logs its counters, when the socket is shut down.
        self.channel.shutdown();
        self.end();
        let _ = self.child.wait();
    }
}

impl<S, R, B> ProcessState<S, R, B> {
    /// Returns the process, if it runs.
    #[must_use]
    pub fn process(&self) -> Option<&ChildProcess<S, R>> {
        match self {
            Self::Running(process) => Some(process),
            Self::Backoff(_) => None,
        }
    }

    /// Returns the process, if it runs.
    #[must_use]
    pub fn process_mut(&mut self) -> Option<&mut ChildProcess<S, R>> {
        match self {
            Self::Running(process) => Some(process),
            Self::Backoff(_) => None,
        }
    }
}

/// The status with which a process exits after `result`. An error is sent to the supervisor first; it is lost if the channel has
/// no room.
pub fn exit_status<R: ProcessReport, S: ChannelMessage>(
    result: io::Result<()>,
    reports: &Channel<R, S>,
) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            let _ = reports.try_send(&R::failed(&error));
            1
        }
    }
}

fn remaining(until: Instant) -> Timespec {
    let left = until.saturating_duration_since(Instant::now());
    Timespec::try_from(left).unwrap_or_default()
}
