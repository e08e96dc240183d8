//! Events of flows: numbers them, writes them to the audit file, and passes them to clients of the control socket.
//!
//! The workers write events to memory that this process reads (`io/worker/src/events.rs`). They do so only while there is an
//! audit file or a client that reads events. Records are numbered here, without gaps: numbers of events that the workers
//! have lost are skipped, and named by a record.
//!
//! The reader is notified of the first event, and then looks every [`PAUSE`] until there are no more, so that many flows in a
//! second cause few wake-ups, and no flow causes none.

mod audit_file;
mod clients;
mod json;
mod open_flows;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pontoon_engine::egress::DecisionGround;
use pontoon_engine::flow_events::{FlowEventKind, RefusalReason};
use pontoon_process::error::{Context as _, Error};
use pontoon_worker::events::{EventReader, EventRecord, EventSetup, Found, OmittedClass};
use rustix::event::{PollFd, PollFlags};
use rustix::time::{ClockId, clock_gettime};

use crate::audit::Audit;
use crate::statistics::Statistics;
use audit_file::AuditFile;
use clients::{Class, Clients, GAP, OMITTED};
pub(crate) use clients::{Filter, MOST, Subscription, TYPES};
use open_flows::OpenFlows;

/// Events of the guest's flows. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Events(Rc<RefCell<State>>, Rc<OwnedFd>);

#[derive(Debug)]
struct State {
    reader: EventReader,
    log: Log,
    /// True while the workers write events.
    used: bool,
    /// Time to look for events without a notification.
    next_look: Option<Instant>,
    /// Time from which on the numbers of omitted events may be written again.
    next_omitted: Instant,
}

/// The records, and what is needed to make them of events.
#[derive(Debug)]
struct Log {
    /// Number of the next record.
    next: u64,
    flows: OpenFlows,
    rules: RuleTexts,
    audit: Option<AuditFile>,
    clients: Clients,
    /// Difference between the wall clock and the clock of the engine, and the range of times of events.
    offset: Duration,
    earliest: u64,
    latest: u64,
    line: String,
}

/// Texts of the egress rules, for the latest generations.
#[derive(Debug)]
struct RuleTexts {
    statistics: Statistics,
    generations: VecDeque<(u64, Vec<String>)>,
}

/// Time between two looks for events while there are some.
const PAUSE: Duration = Duration::from_millis(20);

/// Time between two records of omitted events.
const OMITTED_PAUSE: Duration = Duration::from_secs(1);

/// Limit on the events of a worker that are read at once.
const BATCH: usize = 4096;

/// Number of generations of rules whose texts are kept.
const GENERATIONS: usize = 4;

impl Events {
    /// Allocates the memory for the events of engines that are forked later, with at most `flows` flows, and opens the audit
    /// file, if there is one.
    ///
    /// # Errors
    /// The audit file cannot be written; out of memory, address space or descriptors.
    pub(crate) fn open(
        workers: u8,
        flows: u32,
        audit: Option<&Audit>,
        statistics: Statistics,
    ) -> Result<Self, Error> {
        let setup = EventSetup::new(workers, flows).context("cannot allocate memory for events")?;
        // Processes that are forked before the engine belong to the guest, and must not have this memory.
        setup
            .rings
            .set_inherited(false)
            .context("cannot withhold memory from child processes")?;
        let audit = audit.map(AuditFile::open).transpose()?;
        Self::new(setup, flows.saturating_add(256), audit, statistics)
    }

    fn new(
        setup: EventSetup,
        flows: u32,
        audit: Option<AuditFile>,
        statistics: Statistics,
    ) -> Result<Self, Error> {
        let doorbell = setup.doorbell().try_clone_to_owned();
        let doorbell = doorbell.context("cannot copy an eventfd")?;
        let mut log = Log {
            next: 1,
            flows: OpenFlows::new(flows),
            rules: RuleTexts::new(statistics),
            audit,
            clients: Clients::default(),
            offset: Duration::ZERO,
            earliest: monotonic(),
            latest: 0,
            line: String::new(),
        };
        log.instance("start");
        let mut state = State {
            reader: EventReader::new(setup),
            log,
            used: false,
            next_look: None,
            next_omitted: Instant::now(),
        };
        state.switch();
        // The first look requests a notification.
        state.next_look = state.used.then(Instant::now);
        Ok(Self(Rc::new(RefCell::new(state)), Rc::new(doorbell)))
    }

    /// Returns the memory and the eventfd for an engine, which inherits them from now on.
    ///
    /// # Errors
    /// No free descriptor; errors of madvise(2).
    pub(crate) fn setup(&self) -> Result<EventSetup, Error> {
        let state = self.0.borrow();
        let setup = state.reader.setup().context("cannot copy an eventfd")?;
        setup
            .rings
            .set_inherited(true)
            .context("cannot share memory with the engine")?;
        Ok(setup)
    }

    /// Returns the descriptor that is readable when there are events.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.1.as_fd(), PollFlags::IN)
    }

    /// Returns the time to call [`Self::serve`] without a notification.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let state = self.0.borrow();
        let retry = state.log.audit.as_ref().and_then(AuditFile::retry_at);
        state.next_look.into_iter().chain(retry).min()
    }

    /// Reads events and writes records. Returns true if there are records for clients.
    pub(crate) fn serve(&self, now: Instant) -> bool {
        let state = &mut *self.0.borrow_mut();
        state.serve(now);
        state.log.clients.have_unsent()
    }

    /// Adds a client, which gets the events from now on; `None` if there are too many.
    pub(crate) fn subscribe(&self, filter: Filter, now: Instant) -> Option<Rc<RefCell<Subscription>>> {
        let state = &mut *self.0.borrow_mut();
        let subscription = state.log.clients.add(filter)?;
        state.switch();
        state.next_look = Some(now);
        Some(subscription)
    }

    /// Returns the number of write errors of the audit file, and of records that were lost because of them; `None` without an
    /// audit file.
    pub(crate) fn audit_counts(&self) -> Option<[u64; 2]> {
        self.0.borrow().log.audit.as_ref().map(AuditFile::counts)
    }

    /// Writes the records of the engine, which has exited: its last events, and its flows without an end as lost.
    pub(crate) fn end_engine(&self, now: Instant) {
        let state = &mut *self.0.borrow_mut();
        state.end_engine(now);
        // The next engine's events cause a notification.
        state.next_look = Some(now);
    }

    /// Writes the last records, when no engine runs and none will be started.
    pub(crate) fn finish(&self, now: Instant) {
        let state = &mut *self.0.borrow_mut();
        state.end_engine(now);
        state.log.instance("end");
        if let Some(audit) = &mut state.log.audit {
            audit.flush(now);
        }
    }
}

impl State {
    fn serve(&mut self, now: Instant) {
        self.switch();
        let Self { reader, log, .. } = self;
        log.set_clock();
        let before = log.next;
        let more = reader.read(BATCH, |found| log.take(found, now));
        if now >= self.next_omitted && reader.has_omitted() {
            self.next_omitted = now + OMITTED_PAUSE;
            log.omitted(reader.take_omitted());
        }
        log.flush(now);
        let is_idle = before == log.next && !more;
        self.next_look = match (self.used, more) {
            (false, _) => None,
            (true, true) => Some(now),
            (true, false) if is_idle && self.reader.wait() => None,
            (true, false) => Some(now + PAUSE),
        };
    }

    /// Switches the workers' events on while something uses them.
    fn switch(&mut self) {
        let used = self.log.audit.is_some() || self.log.clients.count() > 0;
        if used != self.used {
            self.used = used;
            self.reader.set_used(used);
            // Flows end without a record while events are not used.
            self.log.flows.clear();
            let _ = self.reader.take_omitted();
        }
    }

    fn end_engine(&mut self, now: Instant) {
        let Self { reader, log, .. } = self;
        log.set_clock();
        reader.finish(|found| log.take(found, now));
        log.omitted(reader.take_omitted());
        for (flow, open) in log.flows.take() {
            let time = log.offset.saturating_add(Duration::from_nanos(log.latest));
            let (mut line, number) = (std::mem::take(&mut log.line), log.number());
            json::lost(&mut line, number, time, flow, &open.ends, open.number);
            let class = Class {
                kind: "lost",
                protocol: Some(open.ends.protocol),
            };
            log.write((number, number), class, line);
            log.flush_if_half_full(now);
        }
        log.flush(now);
    }
}

impl Log {
    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        number
    }

    fn set_clock(&mut self) {
        self.latest = monotonic();
        self.offset = json::now().saturating_sub(Duration::from_nanos(self.latest));
        self.rules.follow();
    }

    /// Returns the wall-clock time of an event, which is not later than now.
    fn time(&self, at: u64) -> Duration {
        let at = at.min(self.latest).max(self.earliest);
        self.offset.saturating_add(Duration::from_nanos(at))
    }

    fn take(&mut self, found: Found, now: Instant) {
        match found {
            Found::Event(record) => self.event(&record),
            Found::Lost(count) => {
                let from = self.next;
                self.next = self.next.saturating_add(count);
                let mut line = std::mem::take(&mut self.line);
                let numbers = (from, self.next.saturating_sub(1).max(from));
                json::gap(&mut line, json::now(), numbers, "engine");
                let class = Class {
                    kind: GAP,
                    protocol: None,
                };
                self.write(numbers, class, line);
            }
        }
        self.flush_if_half_full(now);
    }

    fn event(&mut self, record: &EventRecord) {
        let event = &record.event;
        let opened = match (event.flow, event.kind) {
            (Some(flow), FlowEventKind::Closed { .. }) => self.flows.remove(flow),
            _ => None,
        };
        let number = self.number();
        if let (Some(flow), FlowEventKind::Opened { .. }) = (event.flow, event.kind) {
            self.flows.insert(flow, event.ends, number);
        }
        let ground = match event.kind {
            FlowEventKind::Decided { ground }
            | FlowEventKind::Refused {
                reason: RefusalReason::Egress(ground),
            } => Some(ground),
            _ => None,
        };
        let rule = match ground {
            Some(DecisionGround::Rule(index)) => self.rules.get(record.generation, index),
            _ => None,
        };
        let mut line = std::mem::take(&mut self.line);
        json::event(&mut line, number, self.time(event.at.0), event, opened, rule);
        let class = Class {
            kind: json::kind(&event.kind),
            protocol: Some(event.ends.protocol),
        };
        self.write((number, number), class, line);
    }

    /// Writes the numbers of events that the workers have omitted.
    fn omitted(&mut self, counts: impl IntoIterator<Item = (OmittedClass, u64)>) {
        for (omitted, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            let (mut line, number) = (std::mem::take(&mut self.line), self.number());
            json::omitted(&mut line, number, json::now(), omitted, count);
            let class = Class {
                kind: OMITTED,
                protocol: None,
            };
            self.write((number, number), class, line);
        }
    }

    /// Writes the first or last record.
    fn instance(&mut self, kind: &'static str) {
        let (mut line, number) = (std::mem::take(&mut self.line), self.number());
        json::instance(&mut line, number, json::now(), kind);
        let class = Class { kind, protocol: None };
        self.write((number, number), class, line);
    }

    fn write(&mut self, numbers: (u64, u64), class: Class, line: String) {
        if let Some(audit) = &mut self.audit {
            audit.push(numbers, &line);
        }
        self.clients.publish(numbers, class, &line);
        self.line = line;
    }

    fn flush(&mut self, now: Instant) {
        if let Some(audit) = &mut self.audit {
            audit.flush(now);
        }
    }

    fn flush_if_half_full(&mut self, now: Instant) {
        if let Some(audit) = &mut self.audit
            && audit.is_half_full()
        {
            audit.flush(now);
        }
    }
}

impl RuleTexts {
    fn new(statistics: Statistics) -> Self {
        let mut texts = Self {
            statistics,
            generations: VecDeque::new(),
        };
        texts.follow();
        texts
    }

    /// Reads the present rules, if they have changed.
    fn follow(&mut self) {
        let generation = self.statistics.generation();
        if self
            .generations
            .back()
            .is_none_or(|(known, _)| *known != generation)
        {
            while self.generations.len() >= GENERATIONS {
                self.generations.pop_front();
            }
            self.generations
                .push_back((generation, self.statistics.rule_texts()));
        }
    }

    fn get(&self, generation: u64, index: u32) -> Option<&str> {
        let mut generations = self.generations.iter();
        let (_, rules) = generations.find(|(known, _)| *known == generation)?;
        rules.get(index as usize).map(String::as_str)
    }
}

/// Ignores the signal of a write beyond the limit on file sizes (`RLIMIT_FSIZE`), whose default action ends the process: the
/// write fails, which is handled like a full disk. Called when the command of the guest has been forked.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: no signal handler is replaced or installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Returns the time of the engine's clock in nanoseconds.
fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
