//! Events of flows: numbers them, writes them to the audit file, and passes them to clients of the control socket.
//!
//! The workers write events to memory that this process reads (`io/worker/src/events.rs`). They do so only while there is an
//! audit file or a client that reads events.
//!
//! The reader is notified of the first event, and then looks every [`PAUSE`] until there are no more, so that many flows in a
//! second cause few wake-ups, and no flow causes none.

mod audit_file;
mod audit_queue;
mod audit_writer;
mod clients;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pontoon_control::role::Role;
use pontoon_process::error::{Context as _, Error};
use pontoon_worker::events::recorder::{OMITTED_PAUSE, Record, Recorder};
use pontoon_worker::events::{EventReader, EventSetup, Found};
use rustix::event::{PollFd, PollFlags};

use crate::audit::Audit;
use crate::statistics::Statistics;
use audit_queue::AuditQueue;
use clients::Clients;
pub(crate) use clients::{Filter, MOST, Subscription, TYPES};

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

/// The records, and their readers.
#[derive(Debug)]
struct Log {
    recorder: Recorder,
    /// Source of the texts of the egress rules.
    statistics: Statistics,
    outputs: Outputs,
}

/// The readers of records.
#[derive(Debug)]
struct Outputs {
    audit: Option<AuditQueue>,
    clients: Clients,
}

/// Time between two looks for events while there are some.
const PAUSE: Duration = Duration::from_millis(20);

/// Limit on the events of a worker that are read at once.
const BATCH: usize = 4096;

impl Events {
    /// Opens the audit file, if there is one, forks the process that writes it, and allocates the memory for the events of engines
    /// that are forked later, with at most `flows` flows.
    ///
    /// # Errors
    /// The audit file cannot be written; out of memory, address space, descriptors or processes.
    pub(crate) fn open(
        workers: u8,
        flows: u32,
        audit: Option<&Audit>,
        statistics: Statistics,
    ) -> Result<Self, Error> {
        let audit = audit.map(AuditQueue::open).transpose()?;
        Self::with(workers, flows, audit, statistics)
    }

    fn with(
        workers: u8,
        flows: u32,
        audit: Option<AuditQueue>,
        statistics: Statistics,
    ) -> Result<Self, Error> {
        let setup = EventSetup::new(workers, flows).context("cannot allocate memory for events")?;
        // Processes that are forked before the engine belong to the guest, and must not have this memory.
        setup
            .rings
            .set_inherited(false)
            .context("cannot withhold memory from child processes")?;
        Self::new(setup, flows, audit, statistics)
    }

    fn new(
        setup: EventSetup,
        flows: u32,
        audit: Option<AuditQueue>,
        statistics: Statistics,
    ) -> Result<Self, Error> {
        let doorbell = setup.doorbell().try_clone_to_owned();
        let doorbell = doorbell.context("cannot copy an eventfd")?;
        let mut log = Log {
            recorder: Recorder::new(flows),
            statistics,
            outputs: Outputs {
                audit,
                clients: Clients::default(),
            },
        };
        log.follow();
        log.outputs.write(&log.recorder.start());
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

    /// Returns the pipes of the process that writes the audit file, to be polled as well.
    pub(crate) fn audit_pipes(&self) -> Vec<(Rc<OwnedFd>, PollFlags)> {
        let state = self.0.borrow();
        let audit = state.log.outputs.audit.as_ref();
        audit.map(AuditQueue::pipes).unwrap_or_default()
    }

    /// Returns the time to call [`Self::serve`] without a notification.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let state = self.0.borrow();
        let audit = state.log.outputs.audit.as_ref().and_then(AuditQueue::deadline);
        state.next_look.into_iter().chain(audit).min()
    }

    /// Reads events and writes records. Returns true if there are records for clients.
    pub(crate) fn serve(&self, now: Instant) -> bool {
        let state = &mut *self.0.borrow_mut();
        state.serve(now);
        state.log.outputs.clients.have_unsent()
    }

    /// Adds a client, which gets the events from now on; `None` if there are too many of its role.
    pub(crate) fn subscribe(
        &self,
        filter: Filter,
        role: Role,
        now: Instant,
    ) -> Option<Rc<RefCell<Subscription>>> {
        let state = &mut *self.0.borrow_mut();
        let subscription = state.log.outputs.clients.add(filter, role)?;
        state.switch();
        state.next_look = Some(now);
        Some(subscription)
    }

    /// Returns the number of write errors of the audit file, and of records that were lost because of them; `None` without an
    /// audit file.
    pub(crate) fn audit_counts(&self) -> Option<[u64; 2]> {
        self.0.borrow().log.outputs.audit.as_ref().map(AuditQueue::counts)
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
        let Log {
            recorder, outputs, ..
        } = &mut state.log;
        outputs.write(&recorder.end());
        if let Some(audit) = &mut outputs.audit {
            audit.finish(now);
        }
    }
}

impl State {
    fn serve(&mut self, now: Instant) {
        self.switch();
        let Self { reader, log, .. } = self;
        log.follow();
        let before = log.recorder.next_number();
        let more = reader.read(BATCH, |found| log.take(&found));
        if now >= self.next_omitted && reader.has_omitted() {
            self.next_omitted = now + OMITTED_PAUSE;
            let Log {
                recorder, outputs, ..
            } = &mut *log;
            recorder.take_omitted(reader, |record| outputs.write(record));
        }
        log.outputs.serve(now);
        let is_idle = before == log.recorder.next_number() && !more;
        self.next_look = match (self.used, more) {
            (false, _) => None,
            (true, true) => Some(now),
            (true, false) if is_idle && self.reader.wait() => None,
            (true, false) => Some(now + PAUSE),
        };
    }

    /// Switches the workers' events on while something uses them.
    fn switch(&mut self) {
        let outputs = &mut self.log.outputs;
        let used = outputs.audit.is_some() || outputs.clients.count() > 0;
        if used != self.used {
            self.used = used;
            self.reader.set_used(used);
            // Flows end without a record while events are not used.
            self.log.recorder.forget_flows();
            let _ = self.reader.take_omitted();
        }
    }

    fn end_engine(&mut self, now: Instant) {
        let Self { reader, log, .. } = self;
        log.follow();
        reader.finish(|found| log.take(&found));
        let Log {
            recorder, outputs, ..
        } = log;
        recorder.take_omitted(reader, |record| outputs.write(record));
        recorder.end_flows(|record| {
            outputs.write(&record);
            outputs.make_room();
        });
        outputs.serve(now);
    }
}

impl Log {
    /// Reads the clocks, and the rules that were set since the last call.
    fn follow(&mut self) {
        self.recorder.set_clock();
        for (generation, rules) in self.statistics.take_generations() {
            let texts = rules.iter().map(ToString::to_string);
            self.recorder.set_rules(generation, texts.collect());
        }
    }

    fn take(&mut self, found: &Found) {
        if let Some(record) = self.recorder.take(found) {
            self.outputs.write(&record);
        }
        self.outputs.make_room();
    }
}

impl Outputs {
    fn write(&mut self, record: &Record<'_>) {
        if let Some(audit) = &mut self.audit {
            audit.push(record.numbers, record.line);
        }
        self.clients.publish(record);
    }

    fn serve(&mut self, now: Instant) {
        if let Some(audit) = &mut self.audit {
            audit.serve(now);
        }
    }

    fn make_room(&mut self) {
        if let Some(audit) = &mut self.audit {
            audit.make_room();
        }
    }
}

/// Ignores the signal of a write beyond the limit on file sizes (`RLIMIT_FSIZE`), whose default action ends the process: the
/// write fails, which is handled like a full disk. Called in the process that writes the audit file, and in one that writes a log file
/// when the command of the guest has been forked.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: no signal handler is replaced or installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
