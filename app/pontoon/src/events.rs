//! Events of flows for a function of the program: a thread, or the program's own in a network without a thread, reads them,
//! numbers them and calls the function.
//!
//! A worker writes its events to bounded memory and never waits (`io/worker/src/events.rs`). While the function does not
//! return, events wait there; those for which there is no room are lost, and a record names their numbers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pontoon_engine::egress::EgressRule;
use pontoon_worker::events::recorder::{OMITTED_PAUSE, Record, Recorder};
use pontoon_worker::events::{EventReader, EventRings, EventSetup};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::{Event, EventQueue};

/// Time between two looks for events while there are some.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Limit on the events of a worker that are read at once.
const BATCH: usize = 4096;

/// Maximum number of records for an event: another one is about lost events before it.
const RECORDS: usize = 2;

/// Room in a queue for records that are not about an event that was read: lost events at the end of each worker's events, and
/// omitted events of each class.
const RESERVED: usize = 256 + 16;

/// Limit on the sets of rules whose texts wait for the thread.
const MOST_RULE_SETS: usize = 4;

/// Function of the program that receives the records of a network's flows.
pub(crate) type EventFunction = Box<dyn FnMut(&Event<'_>) + Send>;

/// Texts of sets of egress rules, with their generations.
type RuleTexts = Arc<Mutex<Vec<(u64, Vec<String>)>>>;

/// Memory for the events of networks that have ended, with the numbers of workers and flows that it is for. It is used for the
/// next such network, because it is never unmapped.
static SPARE: Mutex<Vec<(u8, u32, EventRings)>> = Mutex::new(Vec::new());

/// Reader of the events of an engine. Before it is dropped, the engine must have ended and [`Self::finish`] have been called.
#[derive(Debug)]
pub(crate) struct Events {
    rules: RuleTexts,
    runner: Runner,
}

#[derive(Debug)]
enum Runner {
    /// A thread reads the events, until `stop` is readable.
    Thread {
        stop: OwnedFd,
        thread: Option<JoinHandle<bool>>,
    },
    /// The program's thread reads them.
    Polled(Box<Reader>),
}

impl Events {
    /// Starts a thread that reads the events. Returns the memory and the eventfd for the engine, which has at most `flows`
    /// flows.
    pub(crate) fn start(function: EventFunction, workers: u8, flows: u32) -> io::Result<(Self, EventSetup)> {
        let (mut reader, engine) = Reader::new(function, workers, flows)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let rules = Arc::clone(&reader.rules);
        let thread = thread::Builder::new()
            .name("pontoon-events".to_owned())
            .spawn(move || {
                reader.serve(&stopped);
                reader.finish()
            })?;
        let thread = Some(thread);
        let runner = Runner::Thread { stop, thread };
        Ok((Self { rules, runner }, engine))
    }

    /// Returns a reader without a thread, whose events [`Self::dispatch`] passes on. If the function adds the records to `queue`,
    /// no more are passed on than it has room for.
    pub(crate) fn polled(
        function: EventFunction,
        queue: Option<EventQueue>,
        workers: u8,
        flows: u32,
    ) -> io::Result<(Self, EventSetup)> {
        let (mut reader, engine) = Reader::new(function, workers, flows)?;
        reader.queue = queue;
        reader.begin();
        let rules = Arc::clone(&reader.rules);
        let runner = Runner::Polled(Box::new(reader));
        Ok((Self { rules, runner }, engine))
    }

    /// Adds the texts of the egress rules of a generation, before the engine decides by them.
    pub(crate) fn set_rules<'a>(&self, generation: u64, rules: impl Iterator<Item = &'a EgressRule>) {
        let mut sets = lock(&self.rules);
        if sets.len() >= MOST_RULE_SETS {
            sets.remove(0);
        }
        sets.push((generation, rules.map(ToString::to_string).collect()));
    }

    /// Passes the events to the function, if no thread does so.
    pub(crate) fn dispatch(&mut self) {
        if let Runner::Polled(reader) = &mut self.runner {
            reader.read();
        }
    }

    /// Passes the rest of the events to the function, after the engine has ended. Returns false if the function has panicked.
    pub(crate) fn finish(self) -> bool {
        match self.runner {
            Runner::Polled(mut reader) => reader.finish(),
            Runner::Thread { stop, mut thread } => {
                // A write fails only if the count is at its maximum; then the descriptor is readable.
                let _ = rustix::io::write(&stop, &1_u64.to_ne_bytes());
                let joined = thread.take().map(JoinHandle::join);
                matches!(joined, Some(Ok(true)))
            }
        }
    }
}

/// Returns the memory of an earlier network, or allocates it. Processes that are forked later do not have it.
fn open(workers: u8, flows: u32) -> io::Result<EventSetup> {
    let mut spare = lock(&SPARE);
    let found = spare.iter().position(|(w, f, _)| (*w, *f) == (workers, flows));
    if let Some(found) = found {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (_, _, rings) = spare.swap_remove(found);
        return Ok(EventSetup { rings, doorbell });
    }
    let setup = EventSetup::new(workers, flows)?;
    setup.rings.set_inherited(false)?;
    Ok(setup)
}

/// State of the reading of events.
struct Reader {
    reader: EventReader,
    recorder: Recorder,
    rules: RuleTexts,
    target: Target,
    /// Queue to which the function adds the records, if this thread must not wait for room in it.
    queue: Option<EventQueue>,
    workers: usize,
    next_omitted: Instant,
    /// The memory, to be used by a later network.
    spare: Option<(u8, u32, EventRings)>,
}

/// Function of the program, which is not called any more after it has panicked.
struct Target {
    function: EventFunction,
    has_panicked: bool,
}

impl Target {
    fn call(&mut self, record: &Record<'_>) {
        if self.has_panicked {
            return;
        }
        let event = Event::of(record);
        // The function is not called again after a panic, so that its state does not matter.
        let called = catch_unwind(AssertUnwindSafe(|| (self.function)(&event)));
        self.has_panicked = called.is_err();
    }
}

impl Reader {
    fn new(function: EventFunction, workers: u8, flows: u32) -> io::Result<(Self, EventSetup)> {
        let setup = open(workers, flows)?;
        let engine = setup.try_clone()?;
        let reader = EventReader::new(setup);
        reader.set_used(true);
        let reader = Self {
            reader,
            recorder: Recorder::new(flows),
            rules: RuleTexts::default(),
            target: Target {
                function,
                has_panicked: false,
            },
            queue: None,
            workers: usize::from(workers).max(1),
            next_omitted: Instant::now(),
            spare: Some((workers, flows, engine.rings)),
        };
        Ok((reader, engine))
    }

    /// Passes the first record to the function.
    fn begin(&mut self) {
        self.target.call(&self.recorder.start());
    }

    /// Reads events until `stop` is readable.
    fn serve(&mut self, stop: &OwnedFd) {
        self.begin();
        loop {
            let before = self.recorder.next_number();
            let more = self.read();
            let is_idle = before == self.recorder.next_number() && !more;
            let stopped = match more {
                true => is_ready(&[stop.as_fd()], Some(Timespec::default())),
                false if is_idle && self.reader.wait() => {
                    let _ = is_ready(&[stop.as_fd(), self.reader.doorbell()], None);
                    is_ready(&[stop.as_fd()], Some(Timespec::default()))
                }
                false => is_ready(&[stop.as_fd()], Some(PAUSE)),
            };
            if stopped {
                return;
            }
        }
    }

    /// Reads some events. Returns true if there are more.
    fn read(&mut self) -> bool {
        self.follow();
        let room = self.queue.as_ref().map_or(usize::MAX, |queue| queue.0.room());
        let batch = room.saturating_sub(RESERVED) / (RECORDS * self.workers);
        let Self {
            reader,
            recorder,
            target,
            ..
        } = self;
        let more = reader.read(batch.min(BATCH), |found| {
            if let Some(record) = recorder.take(&found) {
                target.call(&record);
            }
        });
        if room >= RESERVED && self.next_omitted <= Instant::now() && reader.has_omitted() {
            self.next_omitted = Instant::now() + OMITTED_PAUSE;
            recorder.take_omitted(reader, |record| target.call(record));
        }
        more
    }

    /// Reads the events that the engine has left, and clears the memory. Returns false if the function has panicked.
    fn finish(&mut self) -> bool {
        self.follow();
        let Self {
            reader,
            recorder,
            target,
            ..
        } = self;
        reader.finish(|found| {
            if let Some(record) = recorder.take(&found) {
                target.call(&record);
            }
        });
        recorder.take_omitted(reader, |record| target.call(record));
        recorder.end_flows(|record| target.call(&record));
        target.call(&recorder.end());
        reader.set_used(false);
        if let Some(spare) = self.spare.take() {
            lock(&SPARE).push(spare);
        }
        !self.target.has_panicked
    }

    /// Reads the clocks, and the rules that were set since.
    fn follow(&mut self) {
        self.recorder.set_clock();
        for (generation, rules) in std::mem::take(&mut *lock(&self.rules)) {
            self.recorder.set_rules(generation, rules);
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("recorder", &self.recorder)
            .finish_non_exhaustive()
    }
}

/// Waits until one of the descriptors is readable; returns false at the timeout.
fn is_ready(descriptors: &[BorrowedFd<'_>], timeout: Option<Timespec>) -> bool {
    let mut polled: Vec<_> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .collect();
    match poll(&mut polled, timeout.as_ref()) {
        Ok(count) => count > 0,
        // The next call waits again.
        Err(rustix::io::Errno::INTR) => false,
        Err(_) => {
            // Out of memory: events are looked for after a pause.
            thread::sleep(Duration::from_millis(20));
            false
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
