//! Events of flows for a function of the VMM: a thread reads them, numbers them and calls the function.
//!
//! A worker writes its events to bounded memory and never waits (`io/worker/src/events.rs`). While the function does not
//! return, events wait there; those for which there is no room are lost, and a record names their numbers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pontoon_engine::egress::EgressRule;
use pontoon_worker::events::recorder::{OMITTED_PAUSE, Record, Recorder};
use pontoon_worker::events::{EventReader, EventRings, EventSetup};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Time between two looks for events while there are some.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Limit on the events of a worker that are read at once.
const BATCH: usize = 4096;

/// Limit on the sets of rules whose texts wait for the thread.
const MOST_RULE_SETS: usize = 4;

/// Function that receives the records of a network's flows.
pub struct FlowEventCallback(Box<dyn FnMut(&Record<'_>) + Send>);

impl FlowEventCallback {
    /// Wraps a function. It is called in a thread of its own, once for each record, in the order of their numbers: the first
    /// record is `start`, the last one `end`.
    #[must_use]
    pub fn new(function: impl FnMut(&Record<'_>) + Send + 'static) -> Self {
        Self(Box::new(function))
    }
}

impl fmt::Debug for FlowEventCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowEventCallback").finish_non_exhaustive()
    }
}

/// Texts of sets of egress rules, with their generations.
type RuleTexts = Arc<Mutex<Vec<(u64, Vec<String>)>>>;

/// Thread that reads the events of an engine. It ends when this value is dropped, after it has passed all records to the
/// function. The engine must have ended then.
#[derive(Debug)]
pub(crate) struct EventThread {
    stop: OwnedFd,
    rules: RuleTexts,
    thread: Option<JoinHandle<()>>,
}

/// Memory for the events of networks that have ended, with the numbers of workers and flows that it is for. It is used for the
/// next such network, because it is never unmapped.
static SPARE: Mutex<Vec<(u8, u32, EventRings)>> = Mutex::new(Vec::new());

impl EventThread {
    /// Starts the thread. Returns the memory and the eventfd for the engine, which has at most `flows` flows.
    pub(crate) fn start(
        callback: FlowEventCallback,
        workers: u8,
        flows: u32,
    ) -> io::Result<(Self, EventSetup)> {
        let setup = open(workers, flows)?;
        let engine = setup.try_clone()?;
        let reader = EventReader::new(setup);
        reader.set_used(true);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let rules = RuleTexts::default();
        let mut run = ReaderThread {
            reader,
            recorder: Recorder::new(flows),
            rules: Arc::clone(&rules),
            function: callback.0,
        };
        let rings = engine.rings;
        let thread = thread::Builder::new()
            .name("pontoon-events".to_owned())
            .spawn(move || {
                run.serve(&stopped);
                run.finish();
                lock(&SPARE).push((workers, flows, rings));
            })?;
        let thread = Some(thread);
        Ok((Self { stop, rules, thread }, engine))
    }

    /// Adds the texts of the egress rules of a generation, before the engine decides by them.
    pub(crate) fn set_rules<'a>(&self, generation: u64, rules: impl Iterator<Item = &'a EgressRule>) {
        let mut sets = lock(&self.rules);
        if sets.len() >= MOST_RULE_SETS {
            sets.remove(0);
        }
        sets.push((generation, rules.map(ToString::to_string).collect()));
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        // A write fails only if the count is at its maximum; then the descriptor is readable.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        // The function may have panicked; the thread has ended then.
        let _ = self.thread.take().map(JoinHandle::join);
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

/// State of the thread.
struct ReaderThread {
    reader: EventReader,
    recorder: Recorder,
    rules: RuleTexts,
    function: Box<dyn FnMut(&Record<'_>) + Send>,
}

impl ReaderThread {
    /// Reads events until `stop` is readable.
    fn serve(&mut self, stop: &OwnedFd) {
        (self.function)(&self.recorder.start());
        let mut next_omitted = Instant::now();
        loop {
            self.follow();
            let before = self.recorder.next_number();
            let Self {
                reader,
                recorder,
                function,
                ..
            } = self;
            let more = reader.read(BATCH, |found| function(&recorder.take(&found)));
            if next_omitted <= Instant::now() && reader.has_omitted() {
                next_omitted = Instant::now() + OMITTED_PAUSE;
                recorder.take_omitted(reader, |record| function(record));
            }
            let is_idle = before == recorder.next_number() && !more;
            let stopped = match more {
                true => is_ready(&[stop.as_fd()], Some(Timespec::default())),
                false if is_idle && reader.wait() => {
                    let _ = is_ready(&[stop.as_fd(), reader.doorbell()], None);
                    is_ready(&[stop.as_fd()], Some(Timespec::default()))
                }
                false => is_ready(&[stop.as_fd()], Some(PAUSE)),
            };
            if stopped {
                return;
            }
        }
    }

    /// Reads the events that the engine has left, and clears the memory.
    fn finish(&mut self) {
        self.follow();
        let Self {
            reader,
            recorder,
            function,
            ..
        } = self;
        reader.finish(|found| function(&recorder.take(&found)));
        recorder.take_omitted(reader, |record| function(record));
        recorder.end_flows(|record| function(&record));
        function(&recorder.end());
        reader.set_used(false);
    }

    /// Reads the clocks, and the rules that were set since.
    fn follow(&mut self) {
        self.recorder.set_clock();
        for (generation, rules) in std::mem::take(&mut *lock(&self.rules)) {
            self.recorder.set_rules(generation, rules);
        }
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
