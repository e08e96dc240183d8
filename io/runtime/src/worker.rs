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
use pontoon_sandbox::{Layers, trap};
use pontoon_sys::{Family, seqpacket};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tracing::level_filters::LevelFilter;
use tracing::{debug, info, warn};

use crate::capture::{Deck, Tape};
use crate::host::KernelHost;
use crate::host::event::{EVENTS, Edge, Events};
use crate::host::ping::Next;
use crate::limits::Limits;
use crate::link::{BURST, BURSTS, Burst, For, Gone, Link, Receive, Rest, Until};
use crate::mesh::Member;
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
    /// The supervisor's channel: one worker hears it, and passes on what it says.
    pub(crate) supervisor: Option<OwnedFd>,
    /// To answer the supervisor.
    pub(crate) voice: OwnedFd,
    /// The others, where there are any.
    pub(crate) member: Option<Member>,
    pub(crate) pacer: Pacer,
    pub(crate) limits: Limits,
    /// Frames that the link dropped for meaningless offload metadata, or a meaningless length.
    pub(crate) malformed: u64,
    /// How many frames a burst had that had any.
    pub(crate) bursts: Histogram<{ BURSTS.len() }>,
    /// Connections of an engine before this one, until there is a guest to be asked about them.
    pub(crate) orphans: Vec<Ends>,
    /// The process's sandbox, which the first worker speaks for.
    pub(crate) sandbox: Option<Layers>,
    /// Where the process's captures are begun and ended.
    pub(crate) deck: Arc<Deck>,
    /// Where frames are to be written down from the next turn on; `None`: nowhere.
    pub(crate) tape: Option<Arc<Tape>>,
    /// More of the host's addresses than a message has room for, as far as they came.
    pub(crate) gathered: Gathered,
    /// Sets how much the process says.
    pub(crate) set_log_level: fn(LevelFilter),
    /// Published ports that the supervisor tells of, and this worker could not have.
    pub(crate) refused: BTreeMap<(Protocol, SocketAddr), Refused>,
    /// What the last turn has left.
    pub(crate) left: Left,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The supervisor closed its end.
    Supervisor,
    /// The guest is gone, and no other will come.
    Link,
    /// Another worker's loop has ended.
    Peer,
    /// Not at all: it is to be run again, on a link that captures or on one that no longer does.
    Capture,
}

/// Sources with something left that no event will tell again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Left {
    frames: bool,
    icmp: bool,
    icmpv6: bool,
    supervisor: bool,
    inbox: bool,
    /// The link had no room.
    room: bool,
    /// The link has affairs of its own.
    control: bool,
    /// The guest is gone, and how.
    gone: Option<Gone>,
    /// Frames are to be captured, or no longer.
    capture: bool,
}

/// The time, for a turn.
pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

impl<L: Link> Worker<L> {
    /// Moves packets until the supervisor goes away, or the guest for good.
    ///
    /// One turn: at most [`BURST`] frames, [`EVENTS`] events and one quantum of each ready flow; then it waits, and
    /// nothing else does.
    pub(crate) fn run(&mut self) -> io::Result<End> {
        let mut events = Events::new();
        let mut left = std::mem::take(&mut self.left);
        left.frames = true;
        left.supervisor = self.supervisor.is_some();
        let mut sockets_first = false;
        let mut until = Until::Empty;
        loop {
            let begin = now();
            let mut worked = None;
            left.note(&events);
            if let Some(member) = &self.member {
                self.engine.set_guest_mac(member.guest_mac());
            }

            // In: frames from the guest, and events on the host's sockets; each is first in every other turn.
            for sockets in [sockets_first, !sockets_first] {
                if sockets {
                    if self.sockets(&events, begin) {
                        worked = worked.or(Some(Side::Host));
                    }
                } else if left.frames
                    && let most @ 1.. = self.engine.frames_allowed(begin)
                {
                    let burst = self.frames(most.min(BURST), until, begin);
                    if burst.frames > 0 {
                        worked = Some(Side::Guest);
                    }
                    left.frames = burst.rest == Rest::More;
                    if let Rest::Gone(how) = burst.rest {
                        left.gone = Some(how);
                    }
                }
            }
            sockets_first = !sockets_first;

            // In: what other workers have for this one.
            if left.inbox {
                match self.inbox(begin) {
                    None => return Ok(End::Peer),
                    Some((frames, more)) => {
                        if frames > 0 {
                            worked = worked.or(Some(Side::Host));
                        }
                        left.inbox = more;
                    }
                }
            }

            // In: packets of the sockets that all echo ids share.
            left.icmp = left.icmp && self.shared(Family::V4, begin);
            left.icmpv6 = left.icmpv6 && self.shared(Family::V6, begin);

            // In: the link's own affairs.
            if std::mem::take(&mut left.control) {
                left.frames = true;
                if let Err(how) = self.link.control(self.host.epoll()) {
                    left.gone = Some(how);
                }
            }

            if !self.orphans.is_empty() && self.link.has_guest() {
                self.engine.ask_about(std::mem::take(&mut self.orphans));
            }

            // In: the supervisor's word.
            if left.supervisor && !self.supervisor(begin)? {
                return Ok(End::Supervisor);
            }
            left.supervisor = false;

            // In: time.
            if self.engine.next_timeout().is_some_and(|due| due <= begin) {
                self.engine
                    .handle_timeout(&mut self.link.transmitter(), &mut self.host, begin);
            }

            // Out: what waited for the link, then one quantum of each flow that has more.
            let mut link = self.link.transmitter();
            if std::mem::take(&mut left.room) {
                self.engine.handle_link_ready(&mut link, &mut self.host, begin);
            }
            let more = self.engine.handle_ready(&mut link, &mut self.host, begin);
            link.flush();
            drop(link);
            left.refused(self.link.take_full());

            // A guest that is gone takes its flows along.
            if let Some(how) = left.gone.take() {
                match how {
                    Gone::Interface(_) | Gone::Closed => info!("{how}"),
                    Gone::Connection(_) | Gone::Protocol(_) => warn!("{how}"),
                }
                if !self.link.part(self.host.epoll()) {
                    return Ok(End::Link);
                }
                self.engine
                    .forget_guest(&mut self.link.transmitter(), &mut self.host, begin);
                // An order that the guest's front-end has left behind waits for who looks for frames.
                left.frames = true;
            }

            for news in self.engine.take_news() {
                warn!("{news}");
            }
            if let Some(bite) = self.limits.bite(self.engine.counters(), begin) {
                warn!("{bite}");
            }

            // As the link is another type then, whoever captures nothing never asks whether a frame is to be captured.
            if std::mem::take(&mut self.left.capture) {
                self.left = left;
                return Ok(End::Capture);
            }

            // What needs doing at some time is best done now that all is on its way.
            self.host.prepare();
            left.frames |= self.link.has_frames();

            // Wait. Frames that would be too fast stay where they are until a timer of the engine's ends that.
            let frames = left.frames && self.engine.frames_allowed(begin) > 0;
            let more = more || frames || left.inbox || left.icmp || left.icmpv6;
            self.link.end_turn(more);
            let wait = match worked {
                _ if more => self.pacer.busy(),
                _ if left.room => self.pacer.blocked(),
                Some(from) => self.pacer.worked(from, begin, now()),
                None => self.pacer.idle(begin),
            };
            until = match worked.is_some() && wait == Wait::No {
                true => Until::Empty,
                false => Until::Question,
            };
            let timeout = match wait {
                Wait::No => Some(Duration::ZERO),
                Wait::Sleep => {
                    self.engine
                        .handle_idle(&mut self.link.transmitter(), &mut self.host, begin);
                    left.refused(self.link.take_full());
                    match left.gone {
                        Some(_) => Some(Duration::ZERO),
                        None => {
                            let (frames, room) = (!left.frames, left.room);
                            self.until_due(begin, For { frames, room })
                        }
                    }
                }
            };
            self.host.epoll().wait(&mut events, timeout)?;
        }
    }

    /// A burst of frames, `most` at most.
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

    /// Events on the flows' sockets. Says whether there was one.
    fn sockets(&mut self, events: &Events, now: Instant) -> bool {
        let mut worked = false;
        for (flow, ready) in events.flows() {
            self.engine
                .handle_socket(flow, ready, &mut self.link.transmitter(), &mut self.host, now);
            worked = true;
        }
        worked
    }

    /// Deals out packets of a shared socket, as many as a turn takes; true where there may be more.
    fn shared(&mut self, family: Family, now: Instant) -> bool {
        for _ in 0..EVENTS {
            match self.host.take_shared(family) {
                Next::Drained => return false,
                Next::Stranger => {}
                Next::Flow(flow, ready) => {
                    self.engine
                        .handle_socket(flow, ready, &mut self.link.transmitter(), &mut self.host, now);
                }
            }
        }
        true
    }

    /// Takes the supervisor's messages; false when its end is closed.
    fn supervisor(&mut self, now: Instant) -> io::Result<bool> {
        let mut buffer = vec![0; MAX_LEN];
        while let Some(supervisor) = &self.supervisor {
            // Out of descriptors, it says so of the ports whose sockets came along.
            let (message, descriptors) = match seqpacket::receive_what_fits(supervisor, &mut buffer) {
                Ok(Some(message)) => (&buffer[..message.len], message.descriptors),
                Ok(None) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    warn!("the supervisor was not understood: {error}");
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            };
            match Update::decode(message, descriptors) {
                Ok(update) => {
                    // Once the others hear of a UDP port this worker has it: their endpoints behind it go, and are not
                    // opened again.
                    let passed_on = self.member.is_some().then(|| update.clone());
                    self.obey(update, now);
                    if let (Some(member), Some(update)) = (&self.member, passed_on) {
                        member.pass_on(&update);
                    }
                }
                Err(error) => warn!("the supervisor said something else: {error}"),
            }
        }
        Ok(true)
    }

    /// Does what the supervisor says.
    fn obey(&mut self, update: Update, now: Instant) {
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
                self.tape = self.deck.obey(order, &self.voice);
                self.left.capture = true;
            }
        }
    }

    /// A published port comes, leads elsewhere, or goes.
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

    /// The same.
    ///
    /// # Errors
    /// It cannot be, and why.
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
            Door::Open(_, socket) => match host.open_door(published, socket.into_inner()) {
                Ok(place) => (Some(place), true),
                Err(error) => return Err(error.to_string()),
            },
            Door::Lost(_) => return Err(Errno::MFILE.to_string()),
            Door::Lead(_) => (host.door(&published), true),
            Door::Close(_) => (host.door(&published), false),
        };
        let Some(place) = place else {
            return Ok(());
        };
        if stays {
            return engine
                .publish(place, published, link, host, now)
                .map_err(|failure| match failure {
                    Failure::Invalid => format!("too many lead to port {} already", published.guest_port),
                    failure => failure.to_string(),
                });
        }
        engine.unpublish(place, link, host, now);
        host.close_door(place);
        Ok(())
    }

    /// Says what it knows.
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
                .chain([
                    ("link_malformed", self.malformed),
                    ("link_withdrawals", self.link.withdrawals()),
                    ("link_queue_faults", self.link.queue_faults()),
                ])
                .chain(self.of_the_process())
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        };
        self.report(&Report::Stats(stats));
    }

    /// Where the supervisor has no room, it will find that nobody answers.
    fn report(&self, report: &Report) {
        if let Err(error) = seqpacket::send(&self.voice, &report.encode(), &[]) {
            debug!("the supervisor was not answered: {error}");
        }
    }

    /// What is not counted by one worker or another.
    fn of_the_process(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let layers = self.sandbox.iter();
        let layers = layers.flat_map(|layers| layers.counts().chain([("sandbox_refused", trap::refused())]));
        let first = self.engine.worker() == siblings::FIRST;
        layers.chain(first.then(|| self.deck.counts()).into_iter().flatten())
    }

    /// Takes what other workers put into the inbox: how many frames, and whether there may be more. `None`: it is over.
    fn inbox(&mut self, now: Instant) -> Option<(usize, bool)> {
        let Self {
            engine,
            host,
            link,
            member,
            ..
        } = self;
        let Some(member) = member else {
            return Some((0, false));
        };
        let received =
            member.receive(|frames| engine.handle_handed(frames, &mut link.transmitter(), host, now));
        let (updates, is_over) = (member.updates(), member.is_over());
        for update in updates {
            self.obey(update, now);
        }
        (!is_over).then_some(received)
    }

    /// The same on another link.
    pub(crate) fn on<M: Link>(self, link: impl FnOnce(L) -> M) -> Worker<M> {
        Worker {
            engine: self.engine,
            host: self.host,
            link: link(self.link),
            supervisor: self.supervisor,
            voice: self.voice,
            member: self.member,
            pacer: self.pacer,
            limits: self.limits,
            malformed: self.malformed,
            bursts: self.bursts,
            orphans: self.orphans,
            sandbox: self.sandbox,
            deck: self.deck,
            tape: self.tape,
            gathered: self.gathered,
            set_log_level: self.set_log_level,
            left: self.left,
            refused: self.refused,
        }
    }

    /// How long to sleep: until the next timer, for ever without one.
    fn until_due(&mut self, now: Instant, wait: For) -> Option<Duration> {
        let due = self.engine.next_timeout().map(|due| due.since(now));
        let link = self.link.sleep(self.host.epoll(), wait);
        due.into_iter().chain(link).chain(self.host.look_again()).min()
    }

    /// What happened.
    pub(crate) fn tally(&self) -> Tally {
        Tally {
            counters: *self.engine.counters(),
            malformed: self.malformed,
            withdrawals: self.link.withdrawals(),
            queue_faults: self.link.queue_faults(),
            flows: self.engine.flows(),
        }
    }
}

/// What happened, in one worker or in several.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    counters: Counters,
    malformed: u64,
    /// Times that a link went on by a slower way.
    withdrawals: u64,
    /// Queues that were given up.
    queue_faults: u64,
    /// Flows at the end.
    flows: usize,
}

impl Tally {
    /// Adds another worker's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.counters.add(&other.counters);
        self.malformed += other.malformed;
        self.withdrawals += other.withdrawals;
        self.queue_faults += other.queue_faults;
        self.flows += other.flows;
    }

    pub(crate) fn log(&self) {
        for (name, count) in self.counters.iter().filter(|(_, count)| *count > 0) {
            debug!("{name} {count}");
        }
        debug!(
            "link_malformed {}, link_withdrawals {}, link_queue_faults {}, flows {}",
            self.malformed, self.withdrawals, self.queue_faults, self.flows
        );
        debug!("sandbox_refused {}", trap::refused());
    }
}

impl Left {
    /// Notes what has come of sending.
    fn refused(&mut self, full: Result<bool, Gone>) {
        match full {
            Ok(full) => self.room |= full,
            Err(how) => self.gone = Some(how),
        }
    }

    /// Notes the events on the worker's own sources.
    fn note(&mut self, events: &Events) {
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
