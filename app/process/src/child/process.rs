//! Child process in the sandbox, with its message channel and the pipe of its standard error.

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
use super::run_state::RunState;
use super::spawn::{self, Child};
use super::stderr_pipe::StderrPipe;
use crate::error::{Context as _, Error};
use crate::log::{output, panics};

/// Child process from its fork until it is reaped. It receives messages `S` and sends reports `R` over a channel. Dropping
/// this value closes the channel, gives the process `STOP_TIMEOUT` to exit, kills it if it has not exited, and reaps it if it exits
/// in `KILL_TIMEOUT`.
#[derive(Debug)]
pub struct ChildProcess<S, R> {
    child: Child,
    channel: Channel<S, R>,
    /// Reading end of the pipe that is the process's standard error.
    stderr: StderrPipe,
    started: Instant,
    /// Time by which the process must report that it is ready; `None` once it has. Messages to it are queued meanwhile.
    ready_deadline: Option<Instant>,
    /// Error that the process has reported, or a description of its violation of the channel's protocol.
    error: Option<String>,
}

/// State of a process that is restarted after each exit; `B` is the supervisor's state while the process does not run.
#[derive(Debug)]
pub enum ProcessState<S, R, B> {
    /// The process runs, or has exited and has not been reaped.
    Running(ChildProcess<S, R>),
    /// The process does not run; the time of its next start is known.
    Backoff(B),
}

/// Configuration of a child process that [`ChildProcess::spawn`] creates.
#[derive(Clone, Copy, Debug)]
pub struct ProcessConfig<'a> {
    /// Name of the process in messages of errors, with an article.
    pub name: &'static str,
    /// Role of the process, which selects the system calls that its sandbox permits.
    pub role: Role,
    /// True if it is an error that the host refuses a layer of the sandbox.
    pub require_sandbox: bool,
    /// Kernel features that the environment variable `PONTOON_DISABLE` disables for tests.
    pub disabled: &'a Disabled,
    /// Limit on the number of messages that are queued for a process that does not read its channel.
    pub max_queued: usize,
}

/// Limit on the time from start to [`ReportKind::Ready`], which is normally a few milliseconds.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a process has to exit before it is killed; it normally needs about a millisecond.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// Time that a process has to exit after it was killed. The kernel closes the sockets of many flows in less. It does not end a
/// process that waits for a file system: for a page of a file that a virtual machine has shared, or to close that file.
const KILL_TIMEOUT: Duration = Duration::from_secs(3);

impl<S: ChannelMessage, R: ProcessReport> ChildProcess<S, R> {
    /// Forks a process into as many new namespaces as the host allows, or into those that `before` names. `body` runs in
    /// the child with the child's end of the channel and without environment variables, and returns the exit status.
    ///
    /// # Errors
    /// No free descriptor, no memory, or too many processes; the host refuses the namespaces.
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

    /// Wraps the child process `child`, which was forked at the time `started`.
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

    /// Waits until the process reports that it is ready. If it does not, it is killed unless it has exited, and the reason
    /// is returned.
    ///
    /// # Errors
    /// The kernel refuses poll(2).
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
        // A process that violated the protocol may not have exited.
        self.end();
        Ok(Some(self.reap()))
    }

    /// Receives up to `most` reports, but none after an error of the process. Calls `handle` for each report that is not
    /// about the process's own state, and for the error of each report that is refused; an error that `handle` returns is
    /// recorded as the process's. Returns true if the process has closed its end: it will send no more reports, although
    /// the channel stays readable.
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

    /// Sends a message to the process, or queues it while the channel has no room. If the queue is full, the process is
    /// killed.
    ///
    /// # Errors
    /// The queue was full and the process was killed. The error is returned once.
    pub fn send(&mut self, message: S) -> Result<(), OutboxOverflow> {
        let sent = self.channel.send(message);
        if sent.is_err() {
            self.child.kill();
        }
        sent
    }

    /// Sends queued messages to the process until the channel has no more room.
    pub fn flush(&mut self) {
        self.channel.flush(Instant::now());
    }

    /// Returns the channel, to be polled for writing, if queued messages wait for room in it.
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
    /// Returns the process id of the child.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Returns the state of the process; `None` if it has exited, or `/proc` does not show it.
    #[must_use]
    pub fn run_state(&self) -> Option<RunState> {
        RunState::of(&self.child)
    }

    /// Returns the pidfd of the process, which is readable when the process has exited.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.child.fd()
    }

    /// Returns the supervisor's end of the channel, which is readable when a report has arrived.
    #[must_use]
    pub fn report_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns the pipe of the process's standard error, unless its writing end is closed.
    #[must_use]
    pub fn stderr_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stderr.fd()
    }

    /// Returns the time by which the process must report that it is ready; `None` once it has.
    #[must_use]
    pub fn ready_deadline(&self) -> Option<Instant> {
        self.ready_deadline
    }

    /// Returns the time at which the process was forked.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns true if the process has reported an error or violated the protocol.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Records a violation of the channel's protocol by the process.
    pub fn fail(&mut self, error: &str) {
        self.error = Some(error.to_owned());
    }

    /// Forwards lines from the process's standard error to the log.
    pub fn forward_stderr(&mut self) {
        self.stderr.forward();
    }

    /// Sends SIGKILL to the process.
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

    /// Reaps the process, which has exited or been killed, and forwards the rest of its standard error. Returns the error
    /// that the process has reported, or its exit status.
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
        // The process logs its counters and exits when the socket is shut down.
        self.channel.shutdown();
        self.end();
        if self.exits_within(KILL_TIMEOUT) {
            let _ = self.child.wait();
        } else {
            tracing::warn!("process {} was killed and does not exit", self.child.pid());
        }
    }
}

impl<S, R, B> ProcessState<S, R, B> {
    /// Returns the process, if it runs or has not been reaped.
    #[must_use]
    pub fn process(&self) -> Option<&ChildProcess<S, R>> {
        match self {
            Self::Running(process) => Some(process),
            Self::Backoff(_) => None,
        }
    }

    /// Returns the process, if it runs or has not been reaped.
    #[must_use]
    pub fn process_mut(&mut self) -> Option<&mut ChildProcess<S, R>> {
        match self {
            Self::Running(process) => Some(process),
            Self::Backoff(_) => None,
        }
    }
}

/// Returns the exit status of a child process that ends with `result`. An error is sent to the supervisor first; it is lost
/// if the channel has no room.
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
