//! The loop of a worker.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::config::Protocol;
use pontoon_engine::ledger::Ends;
use pontoon_engine::{Counters, Engine, Failure, Histogram, Instant, Transmit as _, siblings};
use pontoon_event::{EVENTS, Edge, Events};
use pontoon_host::KernelHost;
use pontoon_host::ping::Next;
use pontoon_link::capturing::CaptureQueue;
use pontoon_link::{BURST, BURSTS, Burst, Disconnected, For, Link, LinkCounters, Receive, Rest, Until};
use pontoon_sandbox::{Layers, trap};
use pontoon_sys::{Family, seqpacket};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tracing::level_filters::LevelFilter;
use tracing::{debug, info, warn};

use crate::capture::CaptureControl;
use crate::limits::Limits;
use crate::mesh::WorkerHandle;
use crate::messages::{
    BATCHES, CONNECT_TIMES, Distribution, Door, Flows, Gathered, MAX_LEN, Refused, Report, Stats, Update,
};
use crate::pacing::{Pacer, Side, Wait};

/// A worker: an engine between the two halves of a link and the host's sockets.
#[derive(Debug)]
pub(crate) struct Worker<L> {
    pub(crate) engine: Engine<KernelHost>,
    pub(crate) host: KernelHost,
    pub(crate) link: L,
    /// The supervisor's channel, in the first worker only, which forwards updates to the others.
    pub(crate) supervisor: Option<OwnedFd>,
    /// The channel for reports to the supervisor. All workers send on it.
    pub(crate) report_fd: OwnedFd,
    /// Access to the other workers, if there are any.
    pub(crate) handle: Option<WorkerHandle>,
    pub(crate) pacer: Pacer,
    pub(crate) limits: Limits,
    /// Frames that the link dropped for invalid offload metadata or an invalid length.
    pub(crate) malformed: u64,
    /// The number of frames in each burst that was not empty.
    pub(crate) bursts: Histogram<{ BURSTS.len() }>,
    /// Connections of the engine before this one. They are resolved when a guest is attached.
    pub(crate) orphans: Vec<Ends>,
    /// The process's sandbox, in the first worker only, which reports it.
    pub(crate) sandbox: Option<Layers>,
    /// Starts and stops the process's captures.
    pub(crate) capture_control: Arc<CaptureControl>,
    /// The queue for copies of frames, from the next turn on; `None`: frames are not captured.
    pub(crate) capture_queue: Option<Arc<CaptureQueue>>,
    /// The part of the host's addresses received so far, if they do not fit into one message.
    pub(crate) gathered: Gathered,
    /// Sets the level of the process's log.
    pub(crate) set_log_level: fn(LevelFilter),
    /// Published ports that this worker could not take over, with the reasons.
    pub(crate) refused: BTreeMap<(Protocol, SocketAddr), Refused>,
    /// Sources with input that is left from the last turn.
    pub(crate) pending: Pending,
}

/// The reason for which the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The supervisor closed its end.
    Supervisor,
    /// The guest disconnected, and no other can connect.
    Link,
    /// Another worker's loop has ended.
    Peer,
    /// A capture starts or stops: the loop has to be run again on a link of the other type.
    Capture,
}

/// Input and conditions that no further event reports, as their events are edge triggered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pending {
    frames: bool,
    icmp: bool,
    icmpv6: bool,
    supervisor: bool,
    inbox: bool,
    /// The link had no room.
    room: bool,
    /// [`Link::control`] has to be called.
    control: bool,
    /// The guest disconnected, for this reason.
    disconnected: Option<Disconnected>,
    /// A capture starts or stops.
    capture: bool,
}

/// Returns the current time (CLOCK_MONOTONIC). It is read once or twice a turn.
pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

impl<L: Link> Worker<L> {
    /// Moves packets until the supervisor closes its end of the channel, or the guest disconnects for good.
    ///
    /// One turn processes at most [`BURST`] frames, [`EVENTS`] events and one quantum of each ready flow, then waits. No
    /// other function of a worker waits.
    pub(crate) fn run(&mut self) -> io::Result<End> {
        let mut events = Events::new();
        let mut pending = std::mem::take(&mut self.pending);
        pending.frames = true;
        pending.supervisor = self.supervisor.is_some();
        let mut sockets_first = false;
        let mut until = Until::Empty;
        loop {
            let begin = now();
            pending.note_events(&events);
            if let Some(handle) = &self.handle {
                self.engine.set_guest_mac(handle.guest_mac());
            }

            // Input: frames from the guest and events on the host's sockets. Each of them is first in every other turn.
            let mut worked = None;
            for sockets in [sockets_first, !sockets_first] {
                if sockets {
                    if self.sockets(&events, begin) {
                        worked = worked.or(Some(Side::Host));
                    }
                } else if self.guest_frames(&mut pending, until, begin) {
                    worked = Some(Side::Guest);
                }
            }
            sockets_first = !sockets_first;

            if let Some(end) = self.other_input(&mut pending, &mut worked, begin)? {
                return Ok(end);
            }
            let more = self.output(&mut pending, begin);

            if let Some(reason) = pending.disconnected.take() {
                if !self.disconnect(reason, begin) {
                    return Ok(End::Link);
                }
                // A command that the front-end wrote before it disconnected is processed when frames are received.
                pending.frames = true;
            }
            self.log_failures(begin);

            // A worker that captures runs on a link of another type, so that one that does not capture need not check for
            // each frame whether to copy it.
            if std::mem::take(&mut self.pending.capture) {
                self.pending = pending;
                return Ok(End::Capture);
            }

            // Sockets for the next flows are opened here, when all output of this turn has been sent.
            self.host.prepare();
            let wait = self.wait(&mut pending, worked, more, begin);
            until = if worked.is_some() && wait == Wait::No {
                Until::Empty
            } else {
                Until::Question
            };
            let timeout = match wait {
                Wait::No => Some(Duration::ZERO),
                Wait::Sleep => self.sleep_timeout(&mut pending, begin),
            };
            self.host.epoll().wait(&mut events, timeout)?;
        }
    }

    /// Receives a burst of frames from the guest, if some may be pending and the rate limit permits. Returns true if there
    /// was a frame.
    #[inline]
    fn guest_frames(&mut self, pending: &mut Pending, until: Until, now: Instant) -> bool {
        if !pending.frames {
            return false;
        }
        let most @ 1.. = self.engine.frames_allowed(now) else {
            return false;
        };
        let burst = self.frames(most.min(BURST), until, now);
        pending.frames = burst.rest == Rest::More;
        if let Rest::Disconnected(reason) = burst.rest {
            pending.disconnected = Some(reason);
        }
        burst.frames > 0
    }

    /// Processes the input that is neither a frame of the guest nor an event on a flow's socket: frames handed over by
    /// other workers, shared ICMP sockets, the link's control events, the supervisor's messages and timers. Returns the
    /// reason if the loop has to end.
    #[inline]
    fn other_input(
        &mut self,
        pending: &mut Pending,
        worked: &mut Option<Side>,
        now: Instant,
    ) -> io::Result<Option<End>> {
        if pending.inbox {
            let Some((frames, more)) = self.inbox(now) else {
                return Ok(Some(End::Peer));
            };
            if frames > 0 {
                *worked = worked.or(Some(Side::Host));
            }
            pending.inbox = more;
        }

        // The raw ICMP sockets, which all flows share.
        pending.icmp = pending.icmp && self.shared(Family::V4, now);
        pending.icmpv6 = pending.icmpv6 && self.shared(Family::V6, now);

        if std::mem::take(&mut pending.control) {
            pending.frames = true;
            if let Err(reason) = self.link.control(self.host.epoll()) {
                pending.disconnected = Some(reason);
            }
        }

        if !self.orphans.is_empty() && self.link.has_guest() {
            self.engine.ask_about(std::mem::take(&mut self.orphans));
        }

        if pending.supervisor && !self.supervisor(now)? {
            return Ok(Some(End::Supervisor));
        }
        pending.supervisor = false;

        if self.engine.next_timeout().is_some_and(|due| due <= now) {
            self.engine
                .handle_timeout(&mut self.link.transmitter(), &mut self.host, now);
        }
        Ok(None)
    }

    /// Sends frames that waited for room in the link, then one quantum of each ready flow. Returns true if a flow has more
    /// to send.
    #[inline]
    fn output(&mut self, pending: &mut Pending, now: Instant) -> bool {
        let mut link = self.link.transmitter();
        if std::mem::take(&mut pending.room) {
            self.engine.handle_link_ready(&mut link, &mut self.host, now);
        }
        let more = self.engine.handle_ready(&mut link, &mut self.host, now);
        link.flush();
        drop(link);
        pending.note_full(self.link.take_full());
        more
    }

    /// Detaches the guest and closes its flows. Returns false if no other guest can connect; its flows remain then, as the
    /// loop ends.
    #[cold]
    fn disconnect(&mut self, reason: Disconnected, now: Instant) -> bool {
        match reason {
            Disconnected::Interface(_) | Disconnected::Closed => info!("{reason}"),
            Disconnected::Connection(_) | Disconnected::Protocol(_) => warn!("{reason}"),
        }
        let may_reconnect = self.link.detach(self.host.epoll());
        if may_reconnect {
            self.engine
                .forget_guest(&mut self.link.transmitter(), &mut self.host, now);
        }
        may_reconnect
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
    fn wait(&mut self, pending: &mut Pending, worked: Option<Side>, more: bool, begin: Instant) -> Wait {
        pending.frames |= self.link.has_frames();
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

    /// Does the work that is left for idle times, and returns how long to sleep: until the next timer, without limit if
    /// there is none.
    #[inline]
    fn sleep_timeout(&mut self, pending: &mut Pending, now: Instant) -> Option<Duration> {
        self.engine
            .handle_idle(&mut self.link.transmitter(), &mut self.host, now);
        pending.note_full(self.link.take_full());
        if pending.disconnected.is_some() {
            return Some(Duration::ZERO);
        }
        let wait = For {
            frames: !pending.frames,
            room: pending.room,
        };
        let due = self.engine.next_timeout().map(|due| due.since(now));
        let link = self.link.sleep(self.host.epoll(), wait);
        due.into_iter().chain(link).chain(self.host.retry_accept()).min()
    }

    /// Receives a burst of at most `most` frames.
    fn frames(&mut self, most: usize, until: Until, now: Instant) -> Burst {
        let Self {
            engine, host, link, ..
        } = self;
        let (mut receiver, mut transmitter) = link.halves();
        let burst = receiver.receive(most, until, |frames| {
            engine.handle_frames(frames, &mut transmitter, host, now)
        });
        self.malformed += burst.malformed;
        if burst.frames > 0 {
            self.bursts.count(burst.frames as u64);
        }
        burst
    }

    /// Processes the events on the flows' sockets. Returns true if there was one.
    fn sockets(&mut self, events: &Events, now: Instant) -> bool {
        let mut worked = false;
        for (flow, ready) in events.flows() {
            self.engine
                .handle_socket(flow, ready, &mut self.link.transmitter(), &mut self.host, now);
            worked = true;
        }
        worked
    }

    /// Dispatches at most [`EVENTS`] packets of a shared socket to their flows. Returns true if there may be more.
    fn shared(&mut self, family: Family, now: Instant) -> bool {
        for _ in 0..EVENTS {
            match self.host.take_shared(family) {
                Next::Drained => return false,
                Next::Unmatched => {}
                Next::Flow(flow, ready) => {
                    self.engine
                        .handle_socket(flow, ready, &mut self.link.transmitter(), &mut self.host, now);
                }
            }
        }
        true
    }

    /// Receives and applies the supervisor's messages. Returns false if its end is closed.
    fn supervisor(&mut self, now: Instant) -> io::Result<bool> {
        let mut buffer = vec![0; MAX_LEN];
        while let Some(supervisor) = &self.supervisor {
            // If this process is out of descriptors, ports without their socket are decoded as `Door::Lost`.
            let (message, descriptors) = match seqpacket::receive_what_fits(supervisor, &mut buffer) {
                Ok(Some(message)) => (&buffer[..message.len], message.descriptors),
                Ok(None) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    warn!("ignoring unreadable supervisor message: {error}");
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            };
            match Update::decode(message, descriptors) {
                Ok(update) => {
                    // The other workers get a UDP port after this worker has its socket: their endpoints that the port
                    // replaces are closed then, and are not opened again.
                    let forwarded = self.handle.is_some().then(|| update.clone());
                    self.apply(update, now);
                    if let (Some(handle), Some(update)) = (&self.handle, forwarded) {
                        handle.forward(&update);
                    }
                }
                Err(error) => warn!("ignoring malformed supervisor message: {error}"),
            }
        }
        Ok(true)
    }

    /// Applies an update of the supervisor's.
    fn apply(&mut self, update: Update, now: Instant) {
        let Self {
            engine, host, link, ..
        } = self;
        match update {
            Update::Resolvers(list) => engine.set_resolvers(list),
            Update::Owned(list) => engine.set_owned_addresses(&list, &mut link.transmitter(), host, now),
            Update::SomeOwned(some) => {
                if let Some(list) = self.gathered.add(some) {
                    engine.set_owned_addresses(&list, &mut link.transmitter(), host, now);
                }
            }
            Update::Ipv6Route(exists) => engine.set_ipv6_route(exists),
            Update::Rules(list) => engine.set_rules(&list, &mut link.transmitter(), host, now),
            Update::Published(doors) => {
                for door in doors {
                    self.change(door, now);
                }
            }
            Update::LogLevel(level) => (self.set_log_level)(level),
            Update::Ask(round) => self.answer(round),
            Update::Flows(turn) if turn.worker == engine.worker().0 => {
                let page = engine.flows_from(turn.from, now);
                self.report(&Report::Flows(Flows {
                    number: turn.number,
                    page,
                }));
            }
            Update::Flows(_) => {}
            Update::Capture(order) => {
                self.capture_queue = self.capture_control.apply(order, &self.report_fd);
                self.pending.capture = true;
            }
        }
    }

    /// Opens, redirects or closes a published port, and records a failure for the next report.
    fn change(&mut self, door: Door, now: Instant) {
        let published = door.published();
        let key = (published.protocol, published.host);
        self.refused.remove(&key);
        if let Err(why) = self.try_change(door, now) {
            warn!("cannot publish {}: {why}", published.host);
            let port = published;
            self.refused.insert(key, Refused { port, why });
        }
    }

    /// Opens, redirects or closes a published port.
    ///
    /// # Errors
    /// The reason, for the user.
    fn try_change(&mut self, door: Door, now: Instant) -> Result<(), String> {
        let Self {
            engine, host, link, ..
        } = self;
        let link = &mut link.transmitter();
        let published = door.published();
        if published.protocol == Protocol::Udp && engine.worker() != siblings::FIRST {
            // The first worker has it, and with it the guest's endpoint.
            engine.yield_port(published, link, host, now);
            return Ok(());
        }
        let (place, stays) = match door {
            Door::Open(_, socket) => match host.add_published(published, socket.into_inner()) {
                Ok(place) => (Some(place), true),
                Err(error) => return Err(error.to_string()),
            },
            Door::Lost(_) => return Err(Errno::MFILE.to_string()),
            Door::Lead(_) => (host.find_published(&published), true),
            Door::Close(_) => (host.find_published(&published), false),
        };
        let Some(place) = place else {
            return Ok(());
        };
        if stays {
            return engine
                .publish(place, published, link, host, now)
                .map_err(|failure| match failure {
                    Failure::Invalid => format!(
                        "too many published ports lead to guest port {} already",
                        published.guest_port
                    ),
                    failure => failure.to_string(),
                });
        }
        engine.unpublish(place, link, host, now);
        host.remove_published(place);
        Ok(())
    }

    /// Reports the worker's counters and state.
    fn answer(&self, round: u64) {
        let counters = self.engine.counters().iter();
        let stats = Stats {
            round,
            worker: self.engine.worker().0,
            flows: self.engine.flows() as u64,
            pool_bytes: self.engine.pool_in_use() as u64,
            rules: self.engine.egress().counts().map(|(_, hits)| hits).collect(),
            refused: self.refused.values().take(Refused::MOST).cloned().collect(),
            histograms: vec![
                Distribution::of(CONNECT_TIMES, self.engine.connect_times()),
                Distribution::of(BATCHES, &self.bursts),
            ],
            counters: counters
                .chain(self.link_counters().iter())
                .chain(self.of_the_process())
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        };
        self.report(&Report::Stats(stats));
    }

    /// Sends a report. If the socket has no room the report is lost, and the supervisor's request times out.
    fn report(&self, report: &Report) {
        if let Err(error) = seqpacket::send(&self.report_fd, &report.encode(), &[]) {
            debug!("cannot send a report to the supervisor: {error}");
        }
    }

    /// Returns the counters that do not belong to one worker.
    fn of_the_process(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let layers = self.sandbox.iter();
        let layers = layers.flat_map(|layers| layers.counts().chain([("sandbox_refused", trap::refused())]));
        let first = self.engine.worker() == siblings::FIRST;
        layers.chain(first.then(|| self.capture_control.counts()).into_iter().flatten())
    }

    /// Processes frames and updates that other workers put into the inbox. Returns the number of frames, and true if there
    /// may be more; `None` if another worker's loop has ended.
    fn inbox(&mut self, now: Instant) -> Option<(usize, bool)> {
        let Self {
            engine,
            host,
            link,
            handle,
            ..
        } = self;
        let Some(handle) = handle else {
            return Some((0, false));
        };
        let received =
            handle.receive(|frames| engine.handle_handed(frames, &mut link.transmitter(), host, now));
        let (updates, is_over) = (handle.updates(), handle.is_over());
        for update in updates {
            self.apply(update, now);
        }
        (!is_over).then_some(received)
    }

    /// Returns the worker with another link, which `link` makes of the present one.
    pub(crate) fn on<M: Link>(self, link: impl FnOnce(L) -> M) -> Worker<M> {
        Worker {
            engine: self.engine,
            host: self.host,
            link: link(self.link),
            supervisor: self.supervisor,
            report_fd: self.report_fd,
            handle: self.handle,
            pacer: self.pacer,
            limits: self.limits,
            malformed: self.malformed,
            bursts: self.bursts,
            orphans: self.orphans,
            sandbox: self.sandbox,
            capture_control: self.capture_control,
            capture_queue: self.capture_queue,
            gathered: self.gathered,
            set_log_level: self.set_log_level,
            pending: self.pending,
            refused: self.refused,
        }
    }

    /// Returns the counters of the worker.
    pub(crate) fn tally(&self) -> Tally {
        Tally {
            engine: *self.engine.counters(),
            link: self.link_counters(),
            flows: self.engine.flows(),
        }
    }

    /// Returns the counters of the link, with the malformed frames of its bursts.
    fn link_counters(&self) -> LinkCounters {
        LinkCounters {
            malformed: self.malformed,
            ..self.link.counters()
        }
    }
}

/// Counters of one worker or the sum of several.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    engine: Counters,
    link: LinkCounters,
    /// Flows at the end.
    flows: usize,
}

impl Tally {
    /// Adds the counters of another worker.
    pub(crate) fn add(&mut self, other: &Self) {
        self.engine.add(&other.engine);
        self.link.add(&other.link);
        self.flows += other.flows;
    }

    pub(crate) fn log(&self) {
        let counters = self.engine.iter().chain(self.link.iter());
        let rest = [("flows", self.flows as u64), ("sandbox_refused", trap::refused())];
        for (name, count) in counters.chain(rest).filter(|(_, count)| *count > 0) {
            debug!("{name} {count}");
        }
    }
}

impl Pending {
    /// Notes a full link, or a disconnected guest, after sending.
    fn note_full(&mut self, full: Result<bool, Disconnected>) {
        match full {
            Ok(full) => self.room |= full,
            Err(how) => self.disconnected = Some(how),
        }
    }

    /// Notes the events on the worker's own sources.
    fn note_events(&mut self, events: &Events) {
        for (edge, ready) in events.edges() {
            match edge {
                Edge::Link => self.frames |= ready.readable || ready.error,
                Edge::Supervisor => self.supervisor = true,
                Edge::Icmp => self.icmp = true,
                Edge::Icmpv6 => self.icmpv6 = true,
                Edge::Inbox => self.inbox = true,
                Edge::Room => self.room = true,
                Edge::Control => self.control = true,
            }
        }
    }
}
