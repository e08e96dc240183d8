//! Loop of a worker: waits for events, processes frames and sockets, and expires timers.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::config::PublishedKey;
use pontoon_engine::ledger::Ends;
use pontoon_engine::{Engine, Instant, siblings};
use pontoon_event::Events;
use pontoon_host::KernelHost;
use pontoon_link::capturing::CaptureQueue;
use pontoon_link::{AwaitedEvents, Disconnected, Link, NextGuest, StopAt};
use pontoon_sandbox::Layers;
use rustix::time::{ClockId, clock_gettime};
use tracing::level_filters::LevelFilter;
use tracing::{info, warn};

use crate::capture::CaptureControl;
use crate::events::Doorbell;
use crate::limits::FlowLimits;
use crate::mesh::WorkerHandle;
use crate::messages::{EndedFlows, EngineChannel, OwnedParts, PortError};
use crate::pacing::{Pacer, Side, Wait};
use crate::stats::{ProcessRow, RowWriter, WorkerHistograms};

mod decide;
mod reports;
mod steps;
mod updates;

pub(crate) use decide::{ChannelDecider, decider};
pub(crate) use reports::Tally;
pub(crate) use steps::PendingInput;

/// Worker: an engine between the two halves of a link and the host's sockets.
#[derive(Debug)]
pub(crate) struct Worker<L> {
    pub(crate) engine: Engine<KernelHost>,
    pub(crate) host: KernelHost,
    pub(crate) link: L,
    /// Channel to the supervisor, in the first worker only, which forwards updates to the other workers.
    pub(crate) supervisor: Option<EngineChannel>,
    /// Channel for reports to the supervisor, on which all workers send.
    pub(crate) reports: EngineChannel,
    /// Access to the other workers; `None` for a single worker.
    pub(crate) handle: Option<WorkerHandle>,
    pub(crate) pacer: Pacer,
    pub(crate) limits: FlowLimits,
    /// Number of frames that the link dropped for invalid offload metadata or an invalid length.
    pub(crate) malformed: u64,
    /// Histogram of the number of frames in each burst that was not empty.
    pub(crate) histograms: WorkerHistograms,
    /// Memory for the statistics, and the time at which they were last copied there.
    pub(crate) stats: RowWriter,
    pub(crate) process_stats: ProcessRow,
    /// Notification of the reader of flow events; `None` if no program can read them.
    pub(crate) doorbell: Option<Doorbell>,
    pub(crate) published_at: Instant,
    /// The generation of the egress rules and the number of their matches that were copied last.
    pub(crate) published_rules: Option<(u64, u64)>,
    /// The generation of the egress rules.
    pub(crate) rules_generation: u64,
    /// TCP connections of the previous engine, which are reset when a guest is attached.
    pub(crate) orphans: Vec<Ends>,
    /// True if the guest's Ethernet address has to be requested when a guest is attached, in the first worker only.
    pub(crate) solicits: bool,
    /// Layers of the process's sandbox, in the first worker only, which reports them.
    pub(crate) sandbox: Option<Layers>,
    /// Control of the captures of the process.
    pub(crate) capture_control: Arc<CaptureControl>,
    /// Queue for copies of frames, from the next turn on; `None` if frames are not captured.
    pub(crate) capture_queue: Option<Arc<CaptureQueue>>,
    /// The decider of the engine, if a program decides.
    pub(crate) decider: Option<ChannelDecider>,
    /// Parts of the list of the host's addresses that were received so far, if the list does not fit into one message.
    pub(crate) gathered: OwnedParts,
    /// Function that sets the level of the process's log.
    pub(crate) set_log_level: fn(LevelFilter),
    /// Published ports that this worker could not take over, with the reasons.
    pub(crate) port_errors: BTreeMap<PublishedKey, PortError>,
    /// Results of requests to end flows that no confirmation has contained, at most [`EndedFlows::MOST`].
    pub(crate) ended: VecDeque<EndedFlows>,
    /// Sources whose input was not completely processed in the last turn.
    pub(crate) pending: PendingInput,
}

/// Reason for which the loop of a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopEnd {
    /// The supervisor closed its end of the channel.
    Supervisor,
    /// The guest disconnected, and no other guest can connect.
    Link,
    /// The loop of another worker has ended.
    Peer,
    /// A capture starts or stops: the loop has to be run again on a link of the other type.
    Capture,
}

/// State that the turns of a worker's loop hand on to each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnState {
    pending: PendingInput,
    /// True if the events on host sockets are processed before the frames of the guest.
    sockets_first: bool,
    stop_at: StopAt,
}

/// Result of one turn of a worker's loop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// The worker waits for events, for at most this time; `None` if there is no timer.
    Wait(Option<Duration>),
    /// The loop has ended.
    End(LoopEnd),
}

/// Returns the current time (CLOCK_MONOTONIC). A worker reads it once or twice in a turn.
pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

impl<L: Link> Worker<L> {
    /// Runs the worker's loop until the supervisor closes its end of the channel, or the guest disconnects and no other can
    /// connect. No other function of a worker waits.
    pub(crate) fn run(&mut self) -> io::Result<LoopEnd> {
        let mut events = Events::new();
        let mut state = self.begin();
        loop {
            match self.turn(&events, &mut state)? {
                Turn::Wait(timeout) => self.host.epoll().wait(&mut events, timeout)?,
                Turn::End(end) => return Ok(end),
            }
        }
    }

    /// Returns the state of the loop before its first turn.
    pub(crate) fn begin(&mut self) -> TurnState {
        let mut pending = std::mem::take(&mut self.pending);
        pending.frames = true;
        pending.supervisor = self.supervisor.is_some();
        TurnState {
            pending,
            sockets_first: false,
            stop_at: StopAt::Empty,
        }
    }

    /// Executes one turn of the loop after the wait that has returned `events`. It processes at most [`BURST`](pontoon_link::BURST) frames,
    /// [`EVENTS`](pontoon_event::EVENTS) events and one quantum of each ready flow. Returns how long to wait for the events of
    /// the next turn.
    #[inline]
    pub(crate) fn turn(&mut self, events: &Events, state: &mut TurnState) -> io::Result<Turn> {
        let TurnState {
            pending,
            sockets_first,
            stop_at,
        } = state;
        let begin = now();
        self.stats.begin_turn(begin);
        pending.note_events(events);
        if let Some(handle) = &self.handle {
            self.engine.set_guest_mac(handle.guest_mac());
        }

        // Each of the two kinds of input, frames of the guest and events on host sockets, is processed first in every
        // other turn.
        let mut worked = None;
        for sockets in [*sockets_first, !*sockets_first] {
            if sockets {
                let events = self.handle_sockets(events, begin);
                worked = worked.or((events > 0).then_some(Side::Host));
            } else {
                let frames = self.receive_frames(pending, *stop_at, begin);
                worked = (frames > 0).then_some(Side::Guest).or(worked);
            }
        }
        *sockets_first = !*sockets_first;

        if let Some(end) = self.handle_other_input(pending, &mut worked, begin)? {
            return Ok(Turn::End(end));
        }
        self.send_output(pending, begin);
        let more = self.engine.has_ready();

        if let Some(reason) = pending.disconnected.take() {
            if self.disconnect(reason, begin) == NextGuest::Never {
                return Ok(Turn::End(LoopEnd::Link));
            }
            // Receiving frames also processes a command that the front-end wrote before it disconnected.
            pending.frames = true;
        }
        self.log_failures(begin);
        self.send_requests();

        // A worker that captures runs on a link of another type, so that a worker that does not capture need not check
        // for each frame whether to copy it.
        if std::mem::take(&mut self.pending.capture) {
            self.pending = *pending;
            return Ok(Turn::End(LoopEnd::Capture));
        }

        // Sockets for the next flows are opened here, after all output of this turn was sent.
        self.host.prepare();
        self.link.retry_accept(self.host.epoll());
        let wait = self.wait(pending, worked, more, begin);
        *stop_at = if worked.is_some() && wait == Wait::No {
            StopAt::Empty
        } else {
            StopAt::Request
        };
        let timeout = match wait {
            Wait::No => {
                self.publish_awake(begin);
                Some(Duration::ZERO)
            }
            Wait::Sleep => {
                let timeout = self.sleep_timeout(pending, begin);
                self.publish(begin);
                timeout
            }
        };
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.notify();
        }
        if timeout != Some(Duration::ZERO) {
            self.stats.end_turn();
        }
        Ok(Turn::Wait(timeout))
    }

    /// Detaches the guest and closes its flows. If no other guest can connect, the flows are kept, because the loop ends.
    #[cold]
    fn disconnect(&mut self, reason: Disconnected, now: Instant) -> NextGuest {
        match reason {
            Disconnected::Interface(_) | Disconnected::Closed => info!("{reason}"),
            Disconnected::Connection(_) | Disconnected::Protocol(_) => warn!("{reason}"),
        }
        let next = self.link.detach(self.host.epoll());
        if next == NextGuest::CanConnect {
            self.solicits = L::UNKNOWN_GUESTS && self.engine.worker() == siblings::FIRST;
            self.engine
                .forget_guest(&mut self.link.transmitter(), &mut self.host, now);
        }
        next
    }

    /// Reports the flows that are still open as closed, because the loop has ended, and notifies the reader.
    pub(crate) fn end_events(&mut self, now: Instant) {
        self.engine.report_end(now);
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.notify();
        }
    }

    /// Logs failures of the engine, and limits that flows have reached.
    #[inline]
    fn log_failures(&mut self, now: Instant) {
        for news in self.engine.take_news() {
            warn!("{news}");
        }
        if let Some(refused) = self.limits.take_refused(self.engine.counters(), now) {
            warn!("{refused}");
        }
    }

    /// Ends a turn that began at `begin`, had input from the side `worked`, and left `more` to send. Returns how to wait.
    #[inline]
    fn wait(&mut self, pending: &mut PendingInput, worked: Option<Side>, more: bool, begin: Instant) -> Wait {
        pending.frames |= self.link.poll_frames();
        // Frames beyond the rate limit stay in the link; a timer of the engine ends the sleep when they are permitted.
        let frames = pending.frames && self.engine.frames_allowed(begin) > 0;
        let more = more || frames || pending.inbox || pending.icmp || pending.icmpv6;
        self.link.end_turn(more);
        match worked {
            _ if more => self.pacer.busy(),
            _ if pending.room => self.pacer.blocked(),
            Some(from) => self.pacer.worked(from, begin, now()),
            None => self.pacer.idle(begin),
        }
    }

    /// Does the work that was deferred to idle times, and returns the time for which to sleep: until the next timer, or
    /// `None` if there is none.
    #[inline]
    fn sleep_timeout(&mut self, pending: &mut PendingInput, now: Instant) -> Option<Duration> {
        self.engine
            .handle_idle(&mut self.link.transmitter(), &mut self.host, now);
        pending.note_full(self.link.take_full());
        if pending.disconnected.is_some() {
            return Some(Duration::ZERO);
        }
        let wait = AwaitedEvents {
            frames: !pending.frames,
            room: pending.room,
        };
        let due = self.engine.next_timeout().map(|due| due.since(now));
        let epoll = self.host.epoll();
        due.into_iter()
            .chain(self.link.sleep(epoll, wait))
            .chain(self.link.retry_accept(epoll))
            .chain(self.host.retry_accept())
            .min()
    }

    /// Returns the worker with another link, which `link` makes of the current one.
    pub(crate) fn on<M: Link>(self, link: impl FnOnce(L) -> M) -> Worker<M> {
        Worker {
            engine: self.engine,
            host: self.host,
            link: link(self.link),
            supervisor: self.supervisor,
            reports: self.reports,
            handle: self.handle,
            pacer: self.pacer,
            limits: self.limits,
            malformed: self.malformed,
            histograms: self.histograms,
            stats: self.stats,
            process_stats: self.process_stats,
            doorbell: self.doorbell,
            published_at: self.published_at,
            published_rules: self.published_rules,
            rules_generation: self.rules_generation,
            orphans: self.orphans,
            solicits: self.solicits,
            sandbox: self.sandbox,
            capture_control: self.capture_control,
            capture_queue: self.capture_queue,
            decider: self.decider,
            gathered: self.gathered,
            set_log_level: self.set_log_level,
            pending: self.pending,
            port_errors: self.port_errors,
            ended: self.ended,
        }
    }
}
