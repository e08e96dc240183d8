//! Management of the engine process by the supervisor: start, updates, reports, restart after a crash.
//!
//! The supervisor keeps the engine's current configuration and the descriptors of its links and published ports, so that a
//! new engine can be started with them.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_process::child::restart_policy::{RestartPolicy, StartAttempts};
use pontoon_process::child::{ChildProcess, ExitReason, ProcessState};
use pontoon_process::error::{Context as _, Error};
use pontoon_sandbox::Namespaces;
use pontoon_worker::messages::{CaptureCommand, ForwardUpdate, Report};
use pontoon_worker::{Attachment, DeciderPlace, DeciderSetup, EngineSetup, SocketHelperChannels, Update};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_acceptconn;
use rustix::process::{Signal, pidfd_send_signal};

use crate::events::Events;
use crate::guest::socket_helper::SocketHelper;
use crate::host::replace_raw_icmp;
use crate::publish::{disconnect_last, reopen_ports};
use crate::statistics::Statistics;
use hang_watch::HangWatch;
use ports::{PortIndexes, change_ports};

mod child;
mod hang_watch;
mod ports;

/// Engine process, and the state from which the supervisor restarts it. Dropping this value ends the process.
#[derive(Debug)]
pub(crate) struct Engine {
    state: ProcessState<Update, Report, StartAttempts>,
    /// Configuration of the next engine process, with all updates applied.
    setup: EngineSetup,
    /// The sockets of the published ports in `setup`, in the same order, shared with the control socket.
    ports: Vec<Arc<OwnedFd>>,
    /// The index of each published port in `ports`.
    indexes: PortIndexes,
    attachment: Attachment,
    /// Process that opens sockets in the guest's network namespace, if it is a namespace of this host.
    helper: Option<SocketHelper>,
    statistics: Statistics,
    /// Events of flows, which are read when an engine has exited.
    events: Option<Events>,
    require_sandbox: bool,
    /// Namespaces of the first engine process. A later one that would have fewer of them is not started.
    namespaces: Option<Namespaces>,
    restart_policy: RestartPolicy,
    hang_watch: HangWatch,
}

type EngineProcess = ChildProcess<Update, Report>;

/// Result of [`Engine::replace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// A new engine runs.
    Done,
    /// The new engine could not be started; the next attempt is due at [`Engine::next_turn`].
    Scheduled,
    /// No engine is started again, because the guest has closed the link and cannot reopen it.
    Final,
}

/// Time in which an engine that has closed its channels to the socket helper exits.
const ENGINE_ENDS: Duration = Duration::from_millis(10);

/// Limit on the reports that are received in one turn of the supervisor's loop, so that an engine that an attacker controls
/// cannot keep the supervisor busy.
const MAX_REPORTS: usize = 64;

/// Limit on the reports that are read after the engine has exited. It exceeds what a socket buffer holds: the kernel
/// accounts several hundred bytes for each message and limits a buffer to several hundred thousand bytes.
const MAX_UNREAD_REPORTS: usize = 4096;

impl Engine {
    /// Starts the engine, and waits until its loop runs. `ports` are the sockets of the published ports in `setup`.
    ///
    /// # Errors
    /// The engine could not be started.
    pub(crate) fn start(
        mut setup: EngineSetup,
        ports: Vec<Arc<OwnedFd>>,
        attachment: Attachment,
        mut helper: Option<SocketHelper>,
        statistics: Statistics,
        require_sandbox: bool,
    ) -> Result<Self, Error> {
        let mut namespaces = None;
        setup.socket_helper = helper.as_mut().and_then(SocketHelper::start);
        let process = child::start(&mut setup, &ports, &attachment, require_sandbox, &mut namespaces)?;
        let published = setup.config.published.iter().enumerate();
        let indexes = published.map(|(place, port)| (port.key(), place));
        let hang_watch = HangWatch::new(statistics.workers(), Instant::now());
        Ok(Self {
            state: ProcessState::Running(process),
            indexes: indexes.collect(),
            setup,
            ports,
            attachment,
            helper,
            statistics,
            events: None,
            require_sandbox,
            namespaces,
            restart_policy: RestartPolicy::default(),
            hang_watch,
        })
    }

    /// Reads the last events of each engine that exits from `events`.
    pub(crate) fn set_events(&mut self, events: Option<Events>) {
        self.events = events;
    }

    /// Reaps the engine and starts a new one with the same links, published ports and updates, unless the engine exited
    /// with status 0. Flows are lost. It is called when [`Self::fd`] is readable or the time [`Self::next_turn`] has
    /// passed.
    ///
    /// # Errors
    /// The engine crashed too often, the guest's only connection was closed with it, or no engine could be started for
    /// [`RestartPolicy::WITHIN`].
    pub(crate) fn replace(&mut self, now: Instant) -> Result<Restart, Error> {
        let mut attempts = match &mut self.state {
            ProcessState::Backoff(attempts) => *attempts,
            ProcessState::Running(process) => match reap(process) {
                // The engine exits with status 0 when its link is closed.
                ExitReason::Exited(0) => return Ok(Restart::Final),
                reason => {
                    self.record_crash(&failure_text(&reason), now)?;
                    StartAttempts::new(now)
                }
            },
        };
        // The process value is dropped first: a new engine may need the memory and descriptors that it holds.
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

    /// Records and logs a crash of the engine at the time `now`.
    ///
    /// # Errors
    /// The engine must not be restarted.
    fn record_crash(&mut self, why: &str, now: Instant) -> Result<(), Error> {
        if !self.attachment.outlives_engine() {
            let what = format!("{why}, and a new engine cannot take over the guest's connection");
            return Err(Error::new(what).advise("--socket, or a listening socket as --fd"));
        }
        if self.attachment.descriptors().into_iter().any(is_shut_down) {
            let what = format!("{why}, and it has shut down the socket that the guest connects to");
            return Err(Error::new(what));
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

    /// Starts a new engine. An exit before the engine's loop runs is not counted as a crash: the engine has received
    /// nothing from the guest, so the cause is the host.
    fn restart(&mut self) -> Result<(), Error> {
        self.statistics.end_engine();
        if let Some(events) = &self.events {
            events.end_engine(Instant::now());
        }
        reopen_ports(&self.setup.config.published, &self.ports)
            .context("cannot reopen the published ports")?;
        replace_raw_icmp(&mut self.setup.raw_icmp).context("cannot open raw ICMP sockets")?;
        self.setup.restarted = true;
        // The sockets and channels of the old engine are closed with the old helper.
        self.setup.socket_helper = self.helper.as_mut().and_then(SocketHelper::start);
        let process = child::start(
            &mut self.setup,
            &self.ports,
            &self.attachment,
            self.require_sandbox,
            &mut self.namespaces,
        )?;
        self.state = ProcessState::Running(process);
        self.hang_watch = HangWatch::new(self.statistics.workers(), Instant::now());
        Ok(())
    }

    /// Returns the time to call [`Self::look_for_hang`], if an engine runs.
    #[must_use]
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let runs = self.state.process().is_some_and(|process| !process.has_failed());
        runs.then(|| self.hang_watch.next())
    }

    /// Kills the engine if it hangs. [`Self::replace`] then replaces it like an engine that has crashed.
    pub(crate) fn look_for_hang(&mut self, now: Instant) {
        let Some(process) = self.state.process_mut() else {
            return;
        };
        let table = self.statistics.table();
        let began = |worker| table.turn_began(worker);
        if let Some(time) = self.hang_watch.look(now, began, process.run_state()) {
            process.fail(&format!("a worker has been in one turn of its loop for {time:?}"));
            process.kill();
        }
    }

    /// Returns the engine's pidfd, which is readable when the engine has exited.
    #[must_use]
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.state.process().map(ChildProcess::fd)
    }

    /// Returns the pidfd of the socket helper, which is readable when the process has exited.
    #[must_use]
    pub(crate) fn helper_fd(&self) -> Option<BorrowedFd<'_>> {
        self.helper.as_ref()?.fd()
    }

    /// Starts another socket helper, because the one before has exited.
    pub(crate) fn replace_helper(&mut self, now: Instant) {
        // A helper exits with its engine, and the next engine gets a helper of its own.
        let is_ending = match self.state.process_mut() {
            Some(process) => process.exits_within(ENGINE_ENDS),
            None => true,
        };
        if is_ending {
            return self.helper.as_mut().map_or((), SocketHelper::end);
        }
        let helper = self.helper.as_mut();
        let Some(SocketHelperChannels { cookie, channels }) = helper.and_then(|helper| helper.restart(now))
        else {
            return;
        };
        let channels = channels.into_iter().map(Into::into).collect();
        self.send(Update::SocketHelper(cookie, channels));
    }

    /// Sends a signal to the engine, if one runs.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(process) = self.state.process() {
            let _ = pidfd_send_signal(process.fd(), signal);
        }
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
        self.state.process().map(ChildProcess::report_fd)
    }

    /// Returns the reading end of the pipe that is the engine's standard error.
    #[must_use]
    pub(crate) fn stderr_fd(&self) -> Option<BorrowedFd<'_>> {
        self.state.process().and_then(ChildProcess::stderr_fd)
    }

    /// Forwards lines from the engine's standard error to the log.
    pub(crate) fn forward_stderr(&mut self) {
        if let Some(process) = self.state.process_mut() {
            process.forward_stderr();
        }
    }

    /// Receives up to [`MAX_REPORTS`] reports of the engine's workers.
    pub(crate) fn receive(&mut self) -> Vec<Report> {
        let process = self.state.process_mut();
        process.map_or_else(Vec::new, |process| receive(process, MAX_REPORTS))
    }

    /// Sends an update to the engine, or queues it until the channel has room, and applies it to the configuration of the next
    /// engine.
    pub(crate) fn send(&mut self, update: Update) {
        let config = &mut self.setup.config;
        match &update {
            Update::Resolvers(list) => config.resolvers.clone_from(list),
            Update::Owned(list) => self.setup.owned.clone_from(list),
            Update::HostAddresses(addresses) => config.host = *addresses,
            Update::Ipv6Route(exists) => {
                if let Some(v6) = &mut config.plan.v6 {
                    v6.default_route = *exists;
                }
            }
            Update::Rules(update) => {
                config.egress.set(&update.rules);
                self.setup.rules_generation = update.generation;
            }
            Update::Published(port_updates) => {
                change_ports(
                    &mut config.published,
                    &mut self.ports,
                    &mut self.indexes,
                    port_updates,
                );
            }
            Update::Forwards(updates) => {
                for update in updates {
                    match update {
                        ForwardUpdate::Add(forward) => config.forwards.push(*forward),
                        ForwardUpdate::Remove(forward) => config.forwards.retain(|other| other != forward),
                    }
                }
            }
            // The next engine inherits the level, as it is forked from this process.
            Update::LogLevel(_) => {}
            Update::Capture(CaptureCommand::Start(start)) => {
                if let Some(process) = self.state.process() {
                    child::limit_files(process, start.size);
                }
            }
            Update::DeciderConnected(connected) => {
                if let Some(DeciderSetup {
                    decider: DeciderPlace::Program { connected: is_connected },
                    ..
                }) = &mut self.setup.decider
                {
                    *is_connected = *connected;
                }
            }
            Update::OwnedPart(_)
            | Update::SocketHelper(..)
            | Update::Verdicts(_)
            | Update::Confirm(_)
            | Update::Flows(_)
            // The flows end with the engine.
            | Update::EndFlows(_)
            | Update::Capture(CaptureCommand::Stop(_)) => {}
        }
        let Some(process) = self.state.process_mut() else {
            return;
        };
        let updates = match update {
            Update::Owned(list) => Update::owned(list),
            update => vec![update],
        };
        for update in updates {
            if process.send(update).is_err() {
                tracing::error!("the engine does not read its messages");
            }
        }
    }

    /// Returns the control channel, to be polled for writing, if updates wait for room in it.
    #[must_use]
    pub(crate) fn unsent(&self) -> Option<BorrowedFd<'_>> {
        self.state.process()?.unsent()
    }

    /// Returns the time to call [`Self::flush`], if a failed send of an update is to be retried.
    #[must_use]
    pub(crate) fn next_flush(&self) -> Option<Instant> {
        self.state.process()?.retry_at()
    }

    /// Sends queued updates to the engine until the control channel has no more room.
    pub(crate) fn flush(&mut self) {
        if let Some(process) = self.state.process_mut() {
            process.flush();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The engine process is reaped first, because it shares the sockets of published ports.
        self.state = ProcessState::Backoff(StartAttempts::new(Instant::now()));
        self.ports.iter().for_each(disconnect_last);
    }
}

/// Returns true if a descriptor is a listening Unix socket that was shut down: it accepts no connection any more, and listen(2)
/// does not change that.
fn is_shut_down(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
    let at_once = Timespec::default();
    socket_acceptconn(socket) == Ok(true)
        && poll(&mut polled, Some(&at_once)).is_ok()
        && polled[0].revents().contains(PollFlags::RDHUP)
}

/// Receives up to `most` reports of the engine's workers.
fn receive(process: &mut EngineProcess, most: usize) -> Vec<Report> {
    let mut reports = Vec::new();
    let closed = process.receive(most, |report| {
        match report {
            Ok(report) => reports.push(report),
            Err(error) => tracing::debug!(%error, "a report of the engine was refused"),
        }
        Ok(())
    });
    if closed {
        process.end();
    }
    reports
}

/// Receives the last reports of the engine, which has exited or been killed, and reaps it.
fn reap(process: &mut EngineProcess) -> ExitReason {
    // Reports are discarded here: pending queries are sent again to the next engine.
    drop(receive(process, MAX_UNREAD_REPORTS));
    process.reap()
}

fn failure_text(reason: &ExitReason) -> String {
    match reason {
        ExitReason::Reported(_) => format!("the engine: {reason}"),
        ExitReason::Killed(_) => format!("the engine was {reason}"),
        ExitReason::Exited(_) => format!("the engine {reason}"),
        ExitReason::Unresponsive => "the engine does not respond".to_owned(),
    }
}

#[cfg(test)]
mod tests;
