//! The engine process as the supervisor manages it: start, updates, reports, restart after a crash.
//!
//! The supervisor keeps the engine's current configuration and the descriptors of its links and published ports, so that a
//! new engine can be started with them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_engine::config::{Protocol, Published};
use pontoon_ipc::OutboxOverflow;
use pontoon_process::child::restart_policy::{RestartPolicy, StartAttempts};
use pontoon_process::child::spawn::{self, Child};
use pontoon_process::child::stderr_pipe::StderrPipe;
use pontoon_process::child::{environment, stdio};
use pontoon_process::error::{Context as _, Error, one_line};
use pontoon_process::log::{output, panics};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::seqpacket;
use pontoon_worker::messages::{CaptureCommand, EngineChannel, PortUpdate, Report, SupervisorChannel};
use pontoon_worker::{Attachment, Outbound, Setup, Update};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit, set_parent_process_death_signal};

use crate::publish::{bind_again, disconnect_last, listen_again};

/// The engine and the state from which it is restarted. Dropping this ends the engine.
#[derive(Debug)]
pub(crate) struct Engine {
    state: ProcessState,
    /// Configuration of the next engine, with all updates applied.
    setup: Setup,
    /// The sockets of the published ports in `setup`, in the same order, shared with the control socket.
    ports: Vec<Arc<OwnedFd>>,
    /// The index of each published port in `ports`.
    indexes: PortIndexes,
    attachment: Attachment,
    require_sandbox: bool,
    /// Namespaces of the first engine. A later engine with fewer of them is not started.
    namespaces: Option<Namespaces>,
    restart_policy: RestartPolicy,
}

/// Index of each published port, for lists with tens of thousands of ports.
type PortIndexes = BTreeMap<(Protocol, SocketAddr), usize>;

#[derive(Debug)]
enum ProcessState {
    /// It runs, or has exited and has not been reaped.
    Running(Process),
    /// Not running, because the last start failed; the next attempt is scheduled.
    Backoff(StartAttempts),
}

/// Result of [`Engine::replace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// A new engine runs.
    Done,
    /// The start failed; the next attempt is due at [`Engine::next_turn`].
    Scheduled,
    /// No engine follows: the guest has closed the link for good.
    Final,
}

/// One engine process, from fork to reaping.
#[derive(Debug)]
struct Process {
    child: Child,
    channel: SupervisorChannel,
    /// Reading end of its standard error.
    stderr: StderrPipe,
    /// The error that it reported before it exited.
    error: Option<String>,
}

/// Limit on the time from start to [`Report::Ready`], which is normally a few milliseconds.
const READY_TIMEOUT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Time that the engine has to exit before it is killed; it normally needs about a millisecond.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// Limit on the updates that wait for an engine that does not read: more than changes of all ports at once.
const MAX_QUEUED: usize = 1 << 14;

/// Reports that are received in one turn of the loop, so that an engine that the guest controls cannot keep the supervisor
/// busy.
const MAX_REPORTS: usize = 64;

/// More messages than can be unread when the engine has exited: the kernel accounts several hundred bytes for each message
/// and limits a socket buffer to several hundred thousand bytes.
const MAX_UNREAD_REPORTS: usize = 4096;

impl Engine {
    /// Starts the engine, and waits until its loop runs. `ports` are the sockets of the published ports in `setup`.
    ///
    /// # Errors
    /// The engine could not start.
    pub(crate) fn start(
        mut setup: Setup,
        ports: Vec<Arc<OwnedFd>>,
        attachment: Attachment,
        require_sandbox: bool,
    ) -> Result<Self, Error> {
        let mut namespaces = None;
        let mut process = Process::start(&mut setup, &ports, &attachment, require_sandbox, &mut namespaces)?;
        process.ready()?;
        let published = setup.config.published.iter().enumerate();
        let indexes = published.map(|(place, port)| ((port.protocol, port.host), place));
        Ok(Self {
            state: ProcessState::Running(process),
            indexes: indexes.collect(),
            setup,
            ports,
            attachment,
            require_sandbox,
            namespaces,
            restart_policy: RestartPolicy::default(),
        })
    }

    /// Reaps the engine and starts a new one with the same links, published ports and updates, unless the engine exited with
    /// status 0. Flows are lost. To be called when [`Self::fd`] is readable or [`Self::next_turn`] has passed.
    ///
    /// # Errors
    /// The engine crashed too often, the guest's only connection closed with it, or no engine could be started for
    /// [`RestartPolicy::WITHIN`].
    pub(crate) fn replace(&mut self, now: Instant) -> Result<Restart, Error> {
        let mut attempts = match &mut self.state {
            ProcessState::Backoff(attempts) => *attempts,
            ProcessState::Running(process) => match process.reap() {
                ExitReason::Clean => return Ok(Restart::Final),
                ExitReason::Failed(why) => {
                    self.record_crash(&why, now)?;
                    StartAttempts::new(now)
                }
            },
        };
        // The old process is dropped first: its memory and descriptors may be those that the new one needs.
        self.state = ProcessState::Backoff(attempts);
        let begin = Instant::now();
        let Err(error) = self.restart() else {
            return Ok(Restart::Done);
        };
        let first = attempts.is_first();
        if attempts.too_long(now + begin.elapsed()) {
            let what = format!(
                "the engine could not be restarted in {:?}: {error}",
                RestartPolicy::WITHIN
            );
            return Err(Error::new(what));
        }
        if first {
            tracing::warn!("{error}; retrying for {:?}", RestartPolicy::WITHIN);
        }
        self.state = ProcessState::Backoff(attempts);
        Ok(Restart::Scheduled)
    }

    /// Records and logs a crash.
    ///
    /// # Errors
    /// The engine must not be restarted.
    fn record_crash(&mut self, why: &str, now: Instant) -> Result<(), Error> {
        if !self.attachment.outlives_engine() {
            let what = format!("{why}, and a new engine cannot take over the guest's connection");
            return Err(Error::new(what).advise("--socket, or a listening socket as --fd"));
        }
        if self.restart_policy.record_exceeds(now) {
            return Err(Error::new(format!(
                "{why}; it was the third crash in {:?}",
                RestartPolicy::WITHIN
            )));
        }
        tracing::warn!("{why}; restarting it, its flows are lost");
        Ok(())
    }

    /// Starts a new engine. An exit before its loop runs is not a crash: the engine has not received anything from the guest, so
    /// the host caused it.
    fn restart(&mut self) -> Result<(), Error> {
        reopen_ports(&self.setup.config.published, &self.ports);
        let mut process = Process::start(
            &mut self.setup,
            &self.ports,
            &self.attachment,
            self.require_sandbox,
            &mut self.namespaces,
        )?;
        process.ready()?;
        self.state = ProcessState::Running(process);
        Ok(())
    }

    fn process(&self) -> Option<&Process> {
        match &self.state {
            ProcessState::Running(process) => Some(process),
            ProcessState::Backoff(_) => None,
        }
    }

    /// Returns the pidfd, which is readable when the engine has exited.
    #[must_use]
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.process().map(|process| process.child.fd())
    }

    /// Returns the time to call [`Self::replace`], if no engine runs.
    #[must_use]
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        match &self.state {
            ProcessState::Running(_) => None,
            ProcessState::Backoff(attempts) => Some(attempts.next()),
        }
    }

    /// Returns the control channel, which is readable when a report has arrived.
    #[must_use]
    pub(crate) fn report_fd(&self) -> Option<BorrowedFd<'_>> {
        self.process().map(|process| process.channel.as_fd())
    }

    /// Returns the pipe of the engine's standard error.
    #[must_use]
    pub(crate) fn stderr_fd(&self) -> Option<BorrowedFd<'_>> {
        self.process().and_then(|process| process.stderr.fd())
    }

    /// Forwards lines from the engine's standard error to the log.
    pub(crate) fn forward_stderr(&mut self) {
        if let ProcessState::Running(process) = &mut self.state {
            process.stderr.forward();
        }
    }

    /// Receives up to [`MAX_REPORTS`] reports of the engine's workers.
    pub(crate) fn receive(&mut self) -> Vec<Report> {
        match &mut self.state {
            ProcessState::Running(process) => process.receive(MAX_REPORTS),
            ProcessState::Backoff(_) => Vec::new(),
        }
    }

    /// Sends an update to the engine, or queues it until the channel has room, and applies it to the configuration of the next
    /// engine.
    pub(crate) fn send(&mut self, update: Update) {
        let config = &mut self.setup.config;
        match &update {
            Update::Resolvers(list) => config.resolvers.clone_from(list),
            Update::Owned(list) => self.setup.owned.clone_from(list),
            Update::Ipv6Route(exists) => {
                if let Some(v6) = &mut config.addresses.v6 {
                    v6.default_route = *exists;
                }
            }
            Update::Rules(list) => config.egress.set(list),
            Update::Published(port_updates) => {
                change_ports(
                    &mut config.published,
                    &mut self.ports,
                    &mut self.indexes,
                    port_updates,
                );
            }
            // The next engine inherits the level, as it is forked from this process.
            Update::LogLevel(_) => {}
            Update::Capture(CaptureCommand::Start(start)) => {
                if let ProcessState::Running(process) = &self.state {
                    process.limit_files(start.size);
                }
            }
            Update::OwnedPart(_)
            | Update::Ask(_)
            | Update::Flows(_)
            | Update::Capture(CaptureCommand::Stop(_)) => {}
        }
        let ProcessState::Running(process) = &mut self.state else {
            return;
        };
        let updates = match update {
            Update::Owned(list) => Update::owned(list),
            update => vec![update],
        };
        for update in updates {
            if process.channel.send(update) == Err(OutboxOverflow) {
                tracing::error!("the engine does not read its messages");
                process.child.kill();
            }
        }
    }

    /// Returns the control channel, to be polled for writing, if updates wait for room in it.
    #[must_use]
    pub(crate) fn unsent(&self) -> Option<BorrowedFd<'_>> {
        let process = self.process()?;
        process.channel.wants_room().then(|| process.channel.as_fd())
    }

    /// Returns the time to call [`Self::flush`], if a failed send is to be retried.
    #[must_use]
    pub(crate) fn next_flush(&self) -> Option<Instant> {
        self.process()?.channel.retry_at()
    }

    /// Sends queued updates.
    pub(crate) fn flush(&mut self) {
        if let ProcessState::Running(process) = &mut self.state {
            process.channel.flush(Instant::now());
        }
    }
}

impl Process {
    /// Forks an engine into as many new namespaces as the host allows, or into those that `before` names.
    fn start(
        setup: &mut Setup,
        ports: &[Arc<OwnedFd>],
        attachment: &Attachment,
        require_sandbox: bool,
        before: &mut Option<Namespaces>,
    ) -> Result<Self, Error> {
        let (ours, theirs) = seqpacket::pair_with_untrusted().context("cannot make a socket pair")?;
        let channel = SupervisorChannel::new(ours, MAX_QUEUED).context("cannot set up a socket")?;
        let disabled = Disabled::from_env().context("cannot read the environment")?;
        let (stderr, stderr_end) = StderrPipe::pair().context("cannot make a pipe")?;
        let role = match setup.outbound {
            Some(Outbound::Interface(_)) => Role::EngineOnInterface,
            Some(Outbound::Address(_)) | None => Role::Engine,
        };
        let child = spawn::sandboxed(&disabled, before, |namespaces| {
            let sandbox = Sandbox {
                role,
                namespaces,
                required: require_sandbox,
            };
            let own = rustix::stdio::dup2_stderr(&stderr_end);
            own.map_or(1, |()| {
                output::is_own_pipe();
                become_engine(setup, ports, attachment, sandbox, &disabled, &theirs)
            })
        });
        Ok(Self {
            child: child.context("cannot fork the engine")?,
            channel,
            stderr,
            error: None,
        })
    }

    /// Waits until its loop runs.
    ///
    /// # Errors
    /// The engine could not start; it has exited.
    fn ready(&mut self) -> Result<(), Error> {
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        if poll(&mut fds, Some(&READY_TIMEOUT)).context("cannot wait for the engine")? == 0 {
            return Err(Error::new("the engine does not respond"));
        }
        let report = self.channel.receive();
        self.stderr.forward_all();
        let error = match report {
            Ok(Some(Report::Ready)) => {
                self.limit_files(Some(0));
                return Ok(());
            }
            Ok(Some(Report::Failed(error))) => Some(error),
            Ok(Some(Report::Stats(_) | Report::Flows(_) | Report::Captured(_)) | None) | Err(_) => None,
        };
        // An engine that broke the protocol has not exited.
        self.end();
        Err(Error::new(failure_text(error.as_deref(), self.child.wait())))
    }

    /// Limits the size of files that it writes to (`RLIMIT_FSIZE`), of which a capture's is the only one. The hard limit
    /// stays, so that this process may raise the soft one later; the engine's own filter refuses it to the engine.
    fn limit_files(&self, most: Option<u64>) {
        let maximum = getrlimit(Resource::Fsize).maximum;
        let limit = Rlimit {
            current: most.into_iter().chain(maximum).min(),
            maximum,
        };
        if let Err(error) = prlimit(Some(self.child.pid()), Resource::Fsize, limit) {
            tracing::debug!(%error, "cannot limit the file size");
        }
    }

    /// Receives up to `most` reports.
    fn receive(&mut self, most: usize) -> Vec<Report> {
        let mut reports = Vec::new();
        for _ in 0..most {
            match self.channel.receive() {
                Ok(Some(Report::Failed(error))) => self.error = Some(error),
                Ok(Some(report)) => reports.push(report),
                // It closed its end and will send no more reports, while the channel stays readable.
                Ok(None) => {
                    self.end();
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::debug!(%error, "a report of the engine was refused");
                }
                Err(_) => break,
            }
        }
        reports
    }

    /// Waits up to [`STOP_TIMEOUT`] for the process to exit, then kills it.
    fn end(&mut self) {
        let until = Instant::now() + STOP_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let child = self.child.fd();
            let mut fds = vec![PollFd::new(&child, PollFlags::IN)];
            fds.extend(
                self.stderr
                    .fd()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
            let timeout = Timespec::try_from(left).ok().filter(|_| !left.is_zero());
            let ready = timeout.and_then(|timeout| poll(&mut fds, Some(&timeout)).ok());
            if ready.is_none_or(|ready| ready == 0) {
                return self.child.kill();
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            self.stderr.forward();
        }
    }

    /// Reads the last reports and waits for the process, which has exited or been killed.
    fn reap(&mut self) -> ExitReason {
        // The reports are dropped: pending queries are sent again to the next engine.
        drop(self.receive(MAX_UNREAD_REPORTS));
        self.stderr.forward_all();
        match self.child.wait() {
            0 => ExitReason::Clean,
            status => ExitReason::Failed(failure_text(self.error.as_deref(), status)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The engine exits, and logs its counters, when the socket is shut down.
        self.channel.shutdown();
        self.end();
        let _ = self.child.wait();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The process is reaped first: it shares the sockets.
        self.state = ProcessState::Backoff(StartAttempts::new(Instant::now()));
        self.ports.iter().for_each(disconnect_last);
    }
}

/// Has published TCP sockets listen again, and binds UDP sockets again. The old engine shared them, and may have shut them down,
/// connected them or set options.
fn reopen_ports(published: &[Published], sockets: &[impl AsFd]) {
    for (port, socket) in published.iter().zip(sockets) {
        let host = port.host;
        let reopened = match port.protocol {
            Protocol::Tcp => listen_again(socket),
            Protocol::Udp => bind_again(socket, host).map(|()| false),
        };
        match reopened {
            Ok(false) => {}
            Ok(true) => tracing::warn!("port {host}/tcp, which the engine had shut down, listens again"),
            Err(error) => tracing::warn!("cannot reopen port {host}/{}: {error}", port.protocol),
        }
    }
}

/// Applies port updates to the configuration of the next engine.
fn change_ports(
    published: &mut Vec<Published>,
    sockets: &mut Vec<Arc<OwnedFd>>,
    indexes: &mut PortIndexes,
    port_updates: &[PortUpdate],
) {
    for port_update in port_updates {
        let port = port_update.published();
        let key = (port.protocol, port.host);
        match (port_update, indexes.get(&key).copied()) {
            (PortUpdate::Open(port, socket), None) => {
                if let Some(socket) = socket.clone().into_inner() {
                    indexes.insert(key, published.len());
                    sockets.push(socket);
                    published.push(*port);
                }
            }
            (PortUpdate::Redirect(port), Some(place)) => published[place] = *port,
            (PortUpdate::Close(_), Some(place)) => {
                indexes.remove(&key);
                published.swap_remove(place);
                disconnect_last(&sockets.swap_remove(place));
                if let Some(moved) = published.get(place) {
                    indexes.insert((moved.protocol, moved.host), place);
                }
            }
            (PortUpdate::Open(..), Some(_)) | (PortUpdate::Redirect(_) | PortUpdate::Close(_), None) => {}
        }
    }
}

/// The reason why an engine has exited.
enum ExitReason {
    /// Status 0: its link is closed.
    Clean,
    /// Any other exit, with a description for the log.
    Failed(String),
}

fn failure_text(error: Option<&str>, status: u8) -> String {
    if let Some(error) = error {
        return format!("the engine: {}", one_line(error));
    }
    match status {
        129.. => format!("the engine was killed by signal {}", status - 128),
        status => format!("the engine exited with status {status}"),
    }
}

/// The body of the engine process; returns its exit status. In a PID namespace of its own it is process 1, which only SIGKILL
/// and its own faults can kill.
fn become_engine(
    setup: &mut Setup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    sandbox: Sandbox,
    disabled: &Disabled,
    socket: &OwnedFd,
) -> u8 {
    // SAFETY: the child of a single-threaded process has one thread, and the supervisor keeps no reference into its
    // environment.
    unsafe { environment::erase() };
    let _ = rustix::thread::set_name(c"pontoon-engine");
    // A capture that meets its limit ends with an error instead.
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    panics::set_hook();
    match prepare(setup, ports, attachment, socket) {
        Ok(EngineResources {
            setup,
            attachment,
            supervisor,
            reports,
        }) => match pontoon_worker::run(setup, attachment, sandbox, disabled, supervisor) {
            Ok(()) => 0,
            Err(error) => {
                let _ = reports.try_send(&Report::failed(&error));
                1
            }
        },
        Err(error) => {
            tracing::error!(%error, "engine");
            1
        }
    }
}

/// Values that the engine process keeps from the supervisor's.
struct EngineResources {
    setup: Setup,
    attachment: Attachment,
    /// Its end of the channel.
    supervisor: EngineChannel,
    /// A copy of `supervisor`, for the error before the exit.
    reports: EngineChannel,
}

/// Closes all descriptors that belong to the supervisor; returns the values that the engine keeps.
fn prepare(
    setup: &mut Setup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    socket: &OwnedFd,
) -> io::Result<EngineResources> {
    // This dies with the supervisor. Where that is dead already, its end of the channel is closed, too.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // There can be nearly as many published ports as descriptors: they are not copied, and before the rest is, the
    // supervisor's own make room.
    let mut setup = setup.take();
    setup.published = ports.iter().map(spawn::take_over).collect();
    let originals = attachment.descriptors().into_iter().chain([socket.as_fd()]);
    let keep: Vec<_> = setup.descriptors().chain(originals).collect();
    spawn::close_all_but(&keep)?;
    let own = EngineResources {
        setup,
        attachment: attachment.try_clone()?,
        supervisor: EngineChannel::new(socket.try_clone()?, 0)?,
        reports: EngineChannel::new(socket.try_clone()?, 0)?,
    };
    let copies = own.attachment.descriptors().into_iter();
    let copies = copies.chain([own.supervisor.as_fd(), own.reports.as_fd()]);
    let keep: Vec<_> = own.setup.descriptors().chain(copies).collect();
    spawn::close_all_but(&keep)?;
    stdio::leave_to_the_command()?;
    Ok(own)
}

#[cfg(test)]
mod tests;
