//! Engine without a thread of its own, which a program runs in its event loop.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use pontoon_event::Events;
use pontoon_link::{Attachment, Link, LinkServer};
use pontoon_sys::context;
use pontoon_sys::disabled::Disabled;
use pontoon_sys::timer::Timer;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::EngineSetup;
use crate::messages::EngineChannel;
use crate::worker::{self, Tally, Turn, TurnState, Worker};
use crate::workers;

/// Limit on the turns of one call of [`PolledEngine::dispatch`], so that the caller's other work is not delayed: a turn takes at
/// most some hundred microseconds.
const MOST_TURNS: usize = 32;

/// Engine with one worker and without a thread of its own. The program calls [`Self::dispatch`] when the descriptor is readable.
pub struct PolledEngine {
    worker: Box<dyn TurnTaker>,
    /// Epoll instance with that of the worker and the timer.
    poll: OwnedFd,
    timer: Timer,
    /// True once the worker's loop has ended.
    ended: bool,
}

/// State of an engine after [`PolledEngine::dispatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Dispatched {
    /// The engine runs; the descriptor is readable when there is more to do.
    Runs,
    /// The guest has disconnected and no other can connect, or the supervisor has closed its end of the channel.
    Ended,
}

impl PolledEngine {
    /// Starts an engine in this process, without a sandbox, for the guest behind `attachment`, which has one queue. It waits for
    /// events in [`Pacing::Event`](crate::Pacing::Event), whatever `setup` contains.
    ///
    /// # Errors
    /// The engine could not start; the text names the operation that failed. `InvalidInput`: the link has several queues.
    pub fn start(
        mut setup: EngineSetup,
        attachment: Attachment,
        supervisor: EngineChannel,
    ) -> io::Result<Self> {
        setup.pacing = crate::Pacing::Event;
        let mtu = setup.config.mtu;
        let mut worker = None;
        let start = PolledStart {
            setup,
            supervisor,
            worker: &mut worker,
        };
        attachment.serve(mtu, start)?;
        let worker = worker.ok_or(io::ErrorKind::InvalidInput)?;
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        let data = EventData::new_u64(0);
        epoll::add(&poll, worker.epoll(), data, EventFlags::IN)?;
        epoll::add(&poll, &timer, data, EventFlags::IN)?;
        let engine = Self {
            worker,
            poll,
            timer,
            ended: false,
        };
        // The first call finds the frames that are in the link already.
        engine.timer.set(Some(Duration::ZERO))?;
        Ok(engine)
    }

    /// Executes turns of the worker until there is nothing to do, at most 32.
    ///
    /// # Errors
    /// An error that ends the engine.
    pub fn dispatch(&mut self) -> io::Result<Dispatched> {
        if self.ended {
            return Ok(Dispatched::Ended);
        }
        let wait = self.worker.take_turns(MOST_TURNS);
        match wait {
            Ok(Some(wait)) => {
                self.timer.set(wait)?;
                Ok(Dispatched::Runs)
            }
            Ok(None) => {
                self.end();
                Ok(Dispatched::Ended)
            }
            Err(error) => {
                self.end();
                Err(context("the engine's loop failed", &error))
            }
        }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.worker.finish();
        }
    }

    /// Makes the engine's descriptor readable while `other` is, too, until that is closed.
    ///
    /// # Errors
    /// No memory is free.
    pub fn poll_with(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(
            &self.poll,
            other,
            EventData::new_u64(0),
            EventFlags::IN,
        )?)
    }
}

/// The descriptor to poll for reading.
impl AsFd for PolledEngine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

/// The flows of the engine are closed.
impl Drop for PolledEngine {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for PolledEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolledEngine")
            .field("poll", &self.poll)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// Worker on a link of any type.
trait TurnTaker: Send {
    /// Executes at most `most` turns. Returns the time for which to wait for events, the inner `None` if there is no timer; the
    /// outer `None` if the loop has ended.
    fn take_turns(&mut self, most: usize) -> io::Result<Option<Option<Duration>>>;

    /// Reports the flows as closed, and publishes and logs the counters.
    fn finish(&mut self);

    fn epoll(&self) -> BorrowedFd<'_>;
}

struct PolledWorker<L> {
    worker: Worker<L>,
    state: TurnState,
}

impl<L: Link> TurnTaker for PolledWorker<L> {
    fn take_turns(&mut self, most: usize) -> io::Result<Option<Option<Duration>>> {
        let Self { worker, state } = self;
        let mut events = Events::new();
        for _ in 0..most {
            worker.host.epoll().wait(&mut events, Some(Duration::ZERO))?;
            match worker.turn(&events, state)? {
                Turn::Wait(Some(Duration::ZERO)) => {}
                // The worker has requested notifications as if it slept: events from now on make the descriptor readable.
                Turn::Wait(timeout) => return Ok(Some(timeout)),
                Turn::End(_) => return Ok(None),
            }
        }
        Ok(Some(Some(Duration::ZERO)))
    }

    fn finish(&mut self) {
        let Self { worker, .. } = self;
        worker.end_events(worker::now());
        worker.publish(worker::now());
        let mut tally = Tally::default();
        tally.add(&worker.tally());
        tally.log();
    }

    fn epoll(&self) -> BorrowedFd<'_> {
        self.worker.host.epoll().as_fd()
    }
}

/// Server of a link that builds its worker, and does not run it.
struct PolledStart<'a> {
    setup: EngineSetup,
    supervisor: EngineChannel,
    worker: &'a mut Option<Box<dyn TurnTaker>>,
}

impl LinkServer for PolledStart<'_> {
    fn serve<L: Link + 'static>(self, links: Vec<L>) -> io::Result<()> {
        let Self {
            setup,
            supervisor,
            worker,
        } = self;
        if links.len() == 1 {
            let built = workers::build(setup, links, &Disabled::from_env()?, supervisor)?;
            let built = built.into_iter().next();
            *worker = built.map(|mut worker| {
                let state = worker.begin();
                Box::new(PolledWorker { worker, state }) as Box<dyn TurnTaker>
            });
        }
        Ok(())
    }
}
