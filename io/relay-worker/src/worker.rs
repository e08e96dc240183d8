//! Loop of a relay worker: receives datagrams from its inputs and sends them to outputs, or runs queriers.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pontoon_ipc::Descriptor;
use pontoon_relay::membership::{LimitCounts, SourceFilter};
use pontoon_sandbox::trap;
use pontoon_sys::Family;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_relative};
use tracing::warn;

use crate::counters::Counters;
use crate::forwarder::Forwarder;
use crate::input::{PacketInput, RingInput, SocketInput};
use crate::messages::{
    InputKind, OutputConfig, RelayReport, RelayUpdate, RuleEntry, Settings, WorkerChannel,
};
use crate::querier::{self, QuerierSocket, Queriers, Reporting};
use crate::sender::Sender;

/// Relay worker that has received its settings.
#[derive(Debug)]
pub(crate) struct RelayWorker {
    control: WorkerChannel,
    settings: Settings,
    inputs: BTreeMap<u32, RelayInput>,
    queriers: Queriers,
    /// Number of the querier whose changed memberships are reported first.
    first_reporter: u32,
    /// Memberships of queriers whose sockets have not been received yet, by the querier's number.
    restored: BTreeMap<u32, Vec<(IpAddr, SourceFilter)>>,
    /// True if changed memberships are still to be reported, because the control channel was full.
    unreported: bool,
    /// Time of the last log line about a limit on groups.
    full_logged: Option<Duration>,
    /// Time from which queriers count.
    started: Instant,
    forwarder: Forwarder,
    /// Rules to add, and rows of rules to remove, at the next commit.
    added: Vec<RuleEntry>,
    removed: Vec<u32>,
}

/// Minimum interval between log lines about a limit on groups.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Input with its table of rules and its row of counters.
#[derive(Debug)]
struct RelayInput {
    table: u32,
    row: u32,
    input: PacketInput,
}

impl RelayWorker {
    /// Receives the supervisor's first message.
    ///
    /// # Errors
    /// The message is not [`RelayUpdate::Start`], or the receive fails.
    pub(crate) fn new(mut control: WorkerChannel) -> io::Result<Self> {
        // The wait has no timeout: the supervisor kills a worker that is not ready in time.
        poll(&mut [PollFd::new(&control, PollFlags::IN)], None)?;
        let message = control.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let RelayUpdate::Start(settings, memory) = message else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let memory = received(memory)?;
        Ok(Self {
            control,
            settings,
            inputs: BTreeMap::new(),
            queriers: Queriers::new(),
            first_reporter: 0,
            restored: BTreeMap::new(),
            unreported: false,
            full_logged: None,
            started: Instant::now(),
            forwarder: Forwarder::new(Counters::map(&memory)?),
            added: Vec::new(),
            removed: Vec::new(),
        })
    }

    /// Runs until the supervisor closes the control channel.
    ///
    /// # Errors
    /// The supervisor has sent an invalid message, or a system call fails.
    pub(crate) fn run(mut self) -> io::Result<()> {
        self.control.try_send(&RelayReport::Ready)?;
        let mut more = false;
        loop {
            let ready = self.wait(more)?;
            if ready.supervisor && self.receive_messages()? == ChannelState::Closed {
                return Ok(());
            }
            if ready.input && !more {
                self.wait_for_more();
            }
            more = false;
            for source in self.inputs.values_mut() {
                let packets = self
                    .forwarder
                    .forward_batch(&mut source.input, source.table, source.row);
                more |= packets >= source.input.full_batch();
            }
            self.run_queriers()?;
            self.forwarder.count_refusals(trap::refused());
        }
    }

    /// Waits for messages and packets, or only polls if there is `more` to receive.
    ///
    /// It uses poll(2), whose wait queue entries exist only while the worker waits: with epoll(7) the sender of each packet
    /// that arrives during a batch or the batch delay would perform a wake-up.
    fn wait(&self, more: bool) -> io::Result<Ready> {
        let mut of_control = PollFlags::IN;
        of_control.set(PollFlags::OUT, self.unreported);
        let mut fds = vec![PollFd::new(&self.control, of_control)];
        let inputs = self.inputs.values();
        fds.extend(inputs.map(|source| PollFd::new(&source.input, PollFlags::IN)));
        fds.extend(self.queriers.values().map(QuerierSocket::poll_fd));
        let timeout = if more {
            Some(Duration::ZERO)
        } else {
            let due = self.queriers.values().map(QuerierSocket::due).min();
            due.map(|due| due.saturating_sub(self.started.elapsed()))
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (control, others) = fds.split_at(1);
        let inputs = &others[..self.inputs.len()];
        for (fd, source) in inputs.iter().zip(self.inputs.values()) {
            if fd.revents().contains(PollFlags::ERR) {
                // An error means, for example, that the interface is down; reading the error clears it.
                let _ = rustix::net::sockopt::socket_error(&source.input);
            }
        }
        Ok(Ready {
            supervisor: control.iter().any(ready),
            input: inputs.iter().any(ready),
        })
    }

    /// Receives reports, sends the queries that are due, and reports changed memberships to the supervisor.
    fn run_queriers(&mut self) -> io::Result<()> {
        let now = self.started.elapsed();
        for querier in self.queriers.values_mut() {
            querier.run(now);
            let counts = querier.take_limit_counts();
            if counts != LimitCounts::default() {
                self.forwarder.count_limits(counts);
                if self.full_logged.is_none_or(|at| now >= at + LOG_INTERVAL) {
                    self.full_logged = Some(now);
                    let LimitCounts { ignored, evicted } = counts;
                    warn!("too many multicast groups: {ignored} reports ignored, {evicted} groups removed");
                }
            }
        }
        let reporting =
            querier::report_in_turns(&mut self.queriers, &mut self.first_reporter, &self.control)?;
        self.unreported = reporting == Reporting::ChannelFull;
        Ok(())
    }

    /// Sleeps for the batch delay (`--max-delay`).
    fn wait_for_more(&self) {
        if self.settings.max_delay.is_zero() {
            return;
        }
        if let Ok(time) = Timespec::try_from(self.settings.max_delay) {
            // A signal may end the sleep early, which only makes the batch shorter.
            let _ = clock_nanosleep_relative(ClockId::Monotonic, &time);
        }
    }

    /// Handles all messages of the supervisor that have arrived.
    fn receive_messages(&mut self) -> io::Result<ChannelState> {
        loop {
            let update = match self.control.receive() {
                Ok(Some(update)) => update,
                Ok(None) => return Ok(ChannelState::Closed),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ChannelState::Drained),
                Err(error) => return Err(error),
            };
            self.apply(update)?;
        }
    }

    fn apply(&mut self, update: RelayUpdate) -> io::Result<()> {
        match update {
            RelayUpdate::Input(input, socket) => {
                let socket = received(socket)?;
                let source = RelayInput {
                    table: input.table,
                    row: input.row,
                    input: match input.kind {
                        InputKind::Ring { size, used } => {
                            let position = used.then(|| self.forwarder.position(input.row));
                            PacketInput::Ring(RingInput::new(socket, size, position)?)
                        }
                        InputKind::Socket(port) => PacketInput::Socket(SocketInput::new(socket, port)),
                    },
                };
                self.inputs.insert(input.id, source);
            }
            RelayUpdate::RemoveInput(id) => {
                if let Some(mut source) = self.inputs.remove(&id) {
                    while self
                        .forwarder
                        .forward_batch(&mut source.input, source.table, source.row)
                        > 0
                    {}
                }
            }
            RelayUpdate::Output(OutputConfig { id, v6, multicast }, socket) => {
                let family = if v6 { Family::V6 } else { Family::V4 };
                let sender = Sender::new(received(socket)?, family, multicast, self.settings.segment);
                self.forwarder.set_sender(id, Some(sender));
            }
            RelayUpdate::RemoveOutput(id) => self.forwarder.set_sender(id, None),
            RelayUpdate::Rule(entry) => self.added.push(*entry),
            RelayUpdate::RemoveRule(row) => self.removed.push(row),
            RelayUpdate::Commit => {
                let added = std::mem::take(&mut self.added);
                self.forwarder.change(&std::mem::take(&mut self.removed), added);
            }
            RelayUpdate::Querier(querier, socket) => {
                let (socket, now) = (received(socket)?, self.started.elapsed());
                let mut socket = QuerierSocket::new(querier.interface, querier.address, socket, now);
                for (group, filter) in self.restored.remove(&querier.id).unwrap_or_default() {
                    socket.restore(group, filter, now + querier.restored_for);
                }
                self.queriers.insert(querier.id, socket);
            }
            RelayUpdate::QuerierAddress(id, address) => {
                let now = self.started.elapsed();
                if let Some(querier) = self.queriers.get_mut(&id) {
                    querier.set_address(address, now);
                }
            }
            RelayUpdate::RemoveQuerier(id) => {
                self.queriers.remove(&id);
            }
            RelayUpdate::Member(member) => {
                let restored = self.restored.entry(member.querier).or_default();
                restored.push((member.group, member.filter));
            }
            RelayUpdate::Start(..) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a second first message",
                ));
            }
        }
        Ok(())
    }
}

/// Returns the descriptor of a received message, of which no other copy exists.
fn received(descriptor: Descriptor) -> io::Result<OwnedFd> {
    descriptor
        .into_owned()
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Descriptors that are ready after a wait.
#[derive(Debug, Default)]
struct Ready {
    supervisor: bool,
    input: bool,
}

/// State of the supervisor's channel after its messages were received.
#[derive(Debug, PartialEq, Eq)]
enum ChannelState {
    Drained,
    Closed,
}
