//! The workers.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use pontoon_relay::counters::{Row, WORKER_ROW, WorkerStats};
use pontoon_relay_worker::Counters;
use pontoon_relay_worker::messages::{Message, READY, Settings};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::RETRY;
use super::control_channel::{ControlChannel, QueueOverflow};
use crate::deaths::Deaths;
use crate::error::{Context as _, Error, one_line};
use crate::spawn::{self, Child};
use crate::talk::Talk;
use crate::{environment, last_words, panics, signals, stdio};

/// Processes that move packets.
#[derive(Debug)]
pub(super) struct WorkerPool {
    spawn_config: SpawnConfig,
    workers: Vec<Worker>,
}

/// What every worker is born with.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpawnConfig {
    /// What it is told first.
    pub(super) settings: Settings,
    /// A layer of the sandbox that the host refuses is an error.
    pub(super) require_sandbox: bool,
    /// What it does without, for tests.
    pub(super) disabled: Disabled,
}

/// A worker's place; what it counts outlives it.
#[derive(Debug)]
struct Worker {
    memory: OwnedFd,
    counters: Counters,
    state: State,
    restarts: u64,
    deaths: Deaths,
    /// The namespaces of the first one.
    born_in: Option<Namespaces>,
}

#[derive(Debug)]
enum State {
    Running {
        child: Child,
        channel: ControlChannel,
        /// Its standard error.
        stderr: Talk,
        started: Instant,
        /// Until when it has to say that it works, where it has not yet. What it is told meanwhile waits.
        ready_deadline: Option<Instant>,
    },
    /// Dead, and when it is to be born again.
    Backoff(Instant),
}

/// Why a worker is none any more.
#[derive(Debug, PartialEq, Eq)]
enum ExitReason {
    Reported(String),
    Killed(u8),
    Exited(u8),
    Unresponsive,
}

/// A worker that dies younger than this ...
const MIN_UPTIME: Duration = Duration::from_millis(50);

/// ... has a successor only after this long, so that one that cannot live does not take the whole machine.
const MIN_BACKOFF: Duration = Duration::from_millis(50);

/// How long one may take to say that it works; it takes a few milliseconds.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Room for what one says: a line of text.
const MAX_REPORT: usize = 4096;

/// How long one may take to end when asked to.
const STOP_TIMEOUT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

impl WorkerPool {
    /// Starts `count` workers, and waits until they work.
    ///
    /// # Errors
    /// Out of descriptors or memory; one that cannot start: so would be the next.
    pub(super) fn new(count: u8, spawn_config: SpawnConfig) -> Result<Self, Error> {
        let worker = |_| {
            let memory = Counters::create().context("cannot make memory for counters")?;
            let counters = Counters::map(&memory).context("cannot map memory for counters")?;
            Ok(Worker {
                memory,
                counters,
                state: State::Backoff(Instant::now()),
                restarts: 0,
                deaths: Deaths::default(),
                born_in: None,
            })
        };
        let mut workers = Self {
            spawn_config,
            workers: (0..count).map(worker).collect::<Result<_, Error>>()?,
        };
        for worker in &mut workers.workers {
            worker.start(&workers.spawn_config)?;
        }
        workers.wait_until_ready()?;
        Ok(workers)
    }

    fn wait_until_ready(&mut self) -> Result<(), Error> {
        loop {
            self.flush();
            for (number, worker) in self.workers.iter_mut().enumerate() {
                if let Some(end) = worker.poll_exit() {
                    return Err(Error::new(format!("worker {number}: {end}")));
                }
            }
            let Some(until) = self.next_deadline() else {
                return Ok(());
            };
            let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            poll(&mut self.poll_fds().collect::<Vec<_>>(), timeout.as_ref())
                .context("cannot wait for a worker")?;
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// What to poll: a worker's death, its first word, room for what it has not been told yet, and what it writes.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.workers.iter().flat_map(|worker| {
            let fds = match &worker.state {
                State::Running {
                    child,
                    channel,
                    stderr,
                    ready_deadline,
                    ..
                } => {
                    let death = PollFd::from_borrowed_fd(child.fd(), PollFlags::IN);
                    let receive_report = ready_deadline.map(|_| PollFd::new(channel, PollFlags::IN));
                    let stderr = stderr.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                    [Some(death), receive_report, channel.poll_fd(), stderr]
                }
                State::Backoff(_) => [None, None, None, None],
            };
            fds.into_iter().flatten()
        })
    }

    /// When the next one is due, or is to be told more, or has been silent for too long.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let turn = |worker: &Worker| match &worker.state {
            State::Running {
                ready_deadline,
                channel,
                ..
            } => [*ready_deadline, channel.next_deadline()]
                .into_iter()
                .flatten()
                .min(),
            State::Backoff(until) => Some(*until),
        };
        self.workers.iter().filter_map(turn).min()
    }

    /// Tells what there was no room for before, and says what they have written.
    pub(super) fn flush(&mut self) {
        for worker in &mut self.workers {
            if let State::Running { channel, stderr, .. } = &mut worker.state {
                channel.flush(Instant::now());
                stderr.pass_on();
            }
        }
    }

    /// Buries the dead.
    pub(super) fn reap(&mut self) {
        for (number, worker) in self.workers.iter_mut().enumerate() {
            let Some(end) = worker.poll_exit() else {
                continue;
            };
            tracing::error!("worker {number}: {end}");
            worker.restarts += 1;
        }
    }

    /// Starts those that are due. Each has to be told everything, by its number.
    pub(super) fn start_due(&mut self) -> Vec<usize> {
        let now = Instant::now();
        let mut started = Vec::new();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if !matches!(worker.state, State::Backoff(due) if due <= now) {
                continue;
            }
            match worker.start(&self.spawn_config) {
                Ok(()) => started.push(number),
                Err(error) => {
                    tracing::error!("{error}");
                    worker.state = State::Backoff(now + RETRY);
                }
            }
        }
        started
    }

    /// Tells one. Who has not listened for so long that it is too much to keep is replaced.
    pub(super) fn send(&mut self, number: usize, message: &Message, descriptor: Option<BorrowedFd<'_>>) {
        let state = self.workers.get_mut(number).map(|worker| &mut worker.state);
        if let Some(State::Running { child, channel, .. }) = state
            && channel.send(message, descriptor) == Err(QueueOverflow)
        {
            tracing::error!("worker {number} does not listen");
            child.kill();
        }
    }

    /// Tells all.
    pub(super) fn send_all(&mut self, message: &Message) {
        for number in 0..self.workers.len() {
            self.send(number, message, None);
        }
    }

    /// Tells each, with its own descriptor.
    pub(super) fn send_each(&mut self, message: &Message, descriptors: &[OwnedFd]) {
        for (number, descriptor) in descriptors.iter().enumerate() {
            self.send(number, message, Some(descriptor.as_fd()));
        }
    }

    /// What every worker has counted in a row.
    pub(super) fn read(&self, row: u32) -> impl Iterator<Item = Row> {
        self.workers.iter().map(move |worker| worker.counters.read(row))
    }

    /// Makes a row ready for somebody else.
    pub(super) fn clear(&self, row: u32) {
        for worker in &self.workers {
            worker.counters.clear(row);
        }
    }

    /// Who they are.
    pub(super) fn stats(&self) -> Vec<WorkerStats> {
        let stats = |worker: &Worker| {
            let mut stats = WorkerStats {
                pid: match &worker.state {
                    State::Running { child, .. } => child.pid().as_raw_nonzero().get().unsigned_abs(),
                    State::Backoff(_) => 0,
                },
                restarts: worker.restarts,
                ..WorkerStats::default()
            };
            stats.add(&worker.counters.read(WORKER_ROW));
            stats
        };
        self.workers.iter().map(stats).collect()
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        for worker in &self.workers {
            if let State::Running { child, channel, .. } = &worker.state {
                let _ = rustix::net::shutdown(channel, rustix::net::Shutdown::Both);
                let fd = child.fd();
                if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&STOP_TIMEOUT)) != Ok(1) {
                    child.kill();
                }
                let _ = child.wait();
            }
        }
    }
}

impl Worker {
    /// Forks a worker that counts in our memory. That it works it will say.
    fn start(&mut self, spawn_config: &SpawnConfig) -> Result<(), Error> {
        let (ours, theirs) = seqpacket::pair_with_suspect().context("cannot make a socket pair")?;
        let mut channel = ControlChannel::new(ours).context("cannot talk to a worker")?;
        let (stderr, error) = Talk::pair().context("cannot make a pipe")?;
        // It is the first message: there is room.
        let _ = channel.send(&Message::Start(spawn_config.settings), Some(self.memory.as_fd()));
        let child = spawn::sandboxed(&spawn_config.disabled, &mut self.born_in, |born_in| {
            let sandbox = Sandbox {
                role: Role::Relay,
                born_in,
                required: spawn_config.require_sandbox,
            };
            let own = rustix::stdio::dup2_stderr(&error);
            own.map_or(1, |()| run_worker(&theirs, sandbox, &spawn_config.disabled))
        });
        let started = Instant::now();
        self.state = State::Running {
            child: child.context("cannot fork a worker")?,
            channel,
            stderr,
            started,
            ready_deadline: Some(started + READY_TIMEOUT),
        };
        Ok(())
    }

    /// Hears its first word. Buries it if it is dead, or is to be: it has complained, or said nothing for too long.
    fn poll_exit(&mut self) -> Option<ExitReason> {
        let State::Running {
            child,
            channel,
            stderr,
            started,
            ready_deadline,
        } = &mut self.state
        else {
            return None;
        };
        let fd = child.fd();
        let exited = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())) == Ok(1);
        let now = Instant::now();
        let mut report = (exited || ready_deadline.is_some())
            .then(|| receive_report(channel))
            .flatten();
        if report.as_deref() == Some(READY) {
            *ready_deadline = None;
            report = receive_report(channel);
        }
        if !exited && report.is_none() && ready_deadline.is_none_or(|until| now < until) {
            return None;
        }
        child.kill();
        let end = match (report, child.wait()) {
            (Some(why), _) => ExitReason::Reported(why),
            (None, _) if !exited => ExitReason::Unresponsive,
            (None, status @ 129..) => ExitReason::Killed(status - 128),
            (None, status) => ExitReason::Exited(status),
        };
        stderr.pass_on_all();
        let pause = if now - *started < MIN_UPTIME {
            MIN_BACKOFF
        } else {
            Duration::ZERO
        };
        self.state = State::Backoff(now + pause.max(self.deaths.pause(now)));
        Some(end)
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(why) => f.write_str(&one_line(why)),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::Exited(status) => write!(f, "died with status {status}"),
            Self::Unresponsive => f.write_str("it does not answer"),
        }
    }
}

/// What a worker says, or said before it died.
fn receive_report(channel: &ControlChannel) -> Option<String> {
    let mut buffer = [0; MAX_REPORT];
    let message = last_words::receive(channel, &mut buffer).ok()??;
    Some(String::from_utf8_lossy(&buffer[..message.len]).into_owned())
}

/// A worker's life. In a pid namespace of its own it is process 1, which no signal ends but SIGKILL and its own faults.
fn run_worker(control: &OwnedFd, sandbox: Sandbox, disabled: &Disabled) -> u8 {
    // SAFETY: a child of one thread has one, and what the supervisor has read of its environment it has copied.
    unsafe { environment::forget() };
    panics::log_them();
    let prepared = spawn::close_all_but(&[control.as_fd()])
        .and_then(|()| stdio::leave_to_the_command())
        .and_then(|()| signals::unblock_all());
    let result = prepared
        .and_then(|()| control.try_clone())
        .and_then(|own| pontoon_relay_worker::run(own, sandbox, disabled));
    match result {
        Ok(()) => 0,
        Err(error) => {
            let text = error.to_string();
            let _ = seqpacket::send(control, &text.as_bytes()[..text.len().min(MAX_REPORT)], &[]);
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Worker {
        let memory = Counters::create().unwrap();
        Worker {
            counters: Counters::map(&memory).unwrap(),
            memory,
            state: State::Backoff(Instant::now()),
            restarts: 0,
            deaths: Deaths::default(),
            born_in: None,
        }
    }

    /// Lives for as long as it takes to die, and returns how long its successor has to wait.
    #[expect(clippy::zombie_processes, reason = "the member waits")]
    fn die(worker: &mut Worker) -> Duration {
        let (ours, _) = seqpacket::pair().unwrap();
        let child = std::process::Command::new("false").spawn().unwrap();
        let child = Child::new(child.id().try_into().unwrap()).unwrap();
        poll(&mut [PollFd::new(&child.fd(), PollFlags::IN)], None).unwrap();
        worker.state = State::Running {
            child,
            channel: ControlChannel::new(ours).unwrap(),
            stderr: Talk::pair().unwrap().0,
            started: Instant::now() - 2 * MIN_UPTIME,
            ready_deadline: None,
        };
        let begin = Instant::now();
        assert_eq!(worker.poll_exit(), Some(ExitReason::Exited(1)));
        match worker.state {
            State::Backoff(due) => due - begin,
            State::Running { .. } => panic!("it lives"),
        }
    }

    #[test]
    fn workers_that_die_one_after_the_other_have_to_wait() {
        let mut worker = worker();
        let waits: Vec<_> = (0..7).map(|_| die(&mut worker)).collect();
        assert!(waits[..3].iter().all(|wait| *wait < MIN_BACKOFF), "{waits:?}");
        assert!(waits[6] >= Duration::from_millis(800), "{waits:?}");
    }

    #[test]
    fn what_a_worker_says_is_one_line() {
        let end = ExitReason::Reported("a\nerror: b\x1b[2J".to_owned());
        assert_eq!(end.to_string(), "a error: b [2J");
    }
}
