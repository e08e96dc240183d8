//! Worker processes of a relay: start, messages, reaping and restart.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use pontoon_ipc::Descriptor;
use pontoon_process::child::ProcessState;
use pontoon_process::error::{Context as _, Error};
use pontoon_relay::counters::{Row, WORKER_ROW, WorkerStats};
use pontoon_relay::membership::MAX_GROUPS;
use pontoon_relay_worker::messages::{Member, RelayUpdate, Settings};
use pontoon_sys::disabled::Disabled;
use rustix::event::{PollFd, PollFlags};

use crate::RETRY;
use worker::{Worker, WorkerProcess};

mod worker;

/// Sandboxed processes that read packets. One that exits is restarted.
#[derive(Debug)]
pub(super) struct WorkerPool {
    task: Task,
    spawn_config: SpawnConfig,
    workers: Vec<Worker>,
}

/// The job of a pool's workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Forwards datagrams, and reports nothing.
    Forward,
    /// Runs IGMP/MLD queriers, and reports group memberships.
    Query {
        /// The greatest number of queriers.
        queriers: usize,
    },
}

/// Configuration that every worker is started with.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpawnConfig {
    /// Contents of the first message to a worker.
    pub(super) settings: Settings,
    /// A layer of the sandbox that the host refuses is an error.
    pub(super) require_sandbox: bool,
    /// Kernel features that tests switch off.
    pub(super) disabled: Disabled,
}

#[cfg(test)]
impl SpawnConfig {
    /// A configuration with which each datagram is sent at once and by itself.
    pub(super) fn for_tests() -> Self {
        Self {
            settings: Settings {
                max_delay: std::time::Duration::ZERO,
                segment: false,
            },
            require_sandbox: false,
            disabled: Disabled::default(),
        }
    }
}

/// Limit on the messages that are queued for a worker, beside [`QUERIER_MESSAGES`]: more than the rules, outputs and inputs
/// for which there are rows of counters, so that the whole state and later changes fit.
const MAX_QUEUED: usize = 1 << 17;

/// The most messages of which the state of a querier consists: its memberships, its socket, and the loss of its address.
const QUERIER_MESSAGES: usize = MAX_GROUPS + 2;

impl WorkerPool {
    /// Starts `count` workers, and waits until they are ready.
    ///
    /// # Errors
    /// Out of descriptors or memory; a worker failed to start, as its successors would.
    pub(super) fn new(task: Task, count: u8, spawn_config: SpawnConfig) -> Result<Self, Error> {
        let mut pool = Self {
            task,
            spawn_config,
            workers: (0..count).map(|_| Worker::new()).collect::<Result<_, Error>>()?,
        };
        for worker in &mut pool.workers {
            worker.start(pool.task, &pool.spawn_config)?;
        }
        for (number, worker) in pool.workers.iter_mut().enumerate() {
            let Some(process) = worker.state.process_mut() else {
                continue;
            };
            if let Some(reason) = process.wait_until_ready().context("cannot wait for a worker")? {
                return Err(Error::new(format!("{}: {reason}", task.name(number))));
            }
        }
        Ok(pool)
    }

    /// The number of workers.
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Returns the descriptors to poll: of each worker its exit, its reports, room for queued messages, and its standard
    /// error.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let processes = self.workers.iter().filter_map(|worker| worker.state.process());
        processes.flat_map(|process| {
            let exit = PollFd::from_borrowed_fd(process.fd(), PollFlags::IN);
            let expected = self.task.expects_reports(process);
            let report = expected.then(|| PollFd::from_borrowed_fd(process.report_fd(), PollFlags::IN));
            let stderr = process.stderr_fd();
            let stderr = stderr.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let room = process.unsent();
            let room = room.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT));
            [Some(exit), report, room, stderr].into_iter().flatten()
        })
    }

    /// Returns the time of the next start, retry of a message, or end of a wait for `RelayReport::Ready`.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadline = |worker: &Worker| match &worker.state {
            ProcessState::Running(process) => [process.ready_deadline(), process.retry_at()]
                .into_iter()
                .flatten()
                .min(),
            ProcessState::Backoff(until) => Some(*until),
        };
        self.workers.iter().filter_map(deadline).min()
    }

    /// Sends queued messages as far as there is room, and logs what the workers have written to standard error.
    pub(super) fn flush(&mut self) {
        for worker in &mut self.workers {
            if let Some(process) = worker.state.process_mut() {
                process.flush();
                process.forward_stderr();
            }
        }
    }

    /// Receives reports, reaps exited workers and schedules their restart. Returns the number of workers that have exited.
    pub(super) fn reap(&mut self) -> usize {
        let mut exited = 0;
        for (number, worker) in self.workers.iter_mut().enumerate() {
            let Some(reason) = worker.poll_exit(self.task) else {
                continue;
            };
            tracing::error!("{}: {reason}", self.task.name(number));
            worker.restarts += 1;
            exited += 1;
        }
        exited
    }

    /// Starts the workers that are due and returns their numbers. The caller sends each of them the whole state.
    pub(super) fn start_due(&mut self) -> Vec<usize> {
        let now = Instant::now();
        let mut started = Vec::new();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if !matches!(worker.state, ProcessState::Backoff(due) if due <= now) {
                continue;
            }
            match worker.start(self.task, &self.spawn_config) {
                Ok(()) => started.push(number),
                Err(error) => {
                    tracing::error!("{error}");
                    worker.state = ProcessState::Backoff(now + RETRY);
                }
            }
        }
        started
    }

    /// Returns the memberships that workers have reported since the last call.
    pub(super) fn members(&mut self) -> Vec<Member> {
        let members = self.workers.iter_mut();
        members.flat_map(|worker| worker.members.drain(..)).collect()
    }

    /// Kills a worker that has broken the protocol. It is restarted like one that has exited.
    pub(super) fn kill(&mut self, number: usize, why: &str) {
        let worker = self.workers.get(number);
        if let Some(process) = worker.and_then(|worker| worker.state.process()) {
            tracing::error!("{}: {why}", self.task.name(number));
            process.kill();
        }
    }

    /// Sends a message to a worker, or queues it. A worker that has not read for so long that the queue is full is killed.
    pub(super) fn send(&mut self, number: usize, update: RelayUpdate) {
        let worker = self.workers.get_mut(number);
        if let Some(process) = worker.and_then(|worker| worker.state.process_mut())
            && process.send(update).is_err()
        {
            tracing::error!("{}: does not read its messages", self.task.name(number));
        }
    }

    /// Sends a message to all workers.
    pub(super) fn send_all(&mut self, update: &RelayUpdate) {
        for number in 0..self.workers.len() {
            self.send(number, update.clone());
        }
    }

    /// Sends a message to all workers, to each with its own descriptor.
    pub(super) fn send_each(
        &mut self,
        update: impl Fn(Descriptor) -> RelayUpdate,
        descriptors: &[Arc<OwnedFd>],
    ) {
        for (number, descriptor) in descriptors.iter().enumerate() {
            self.send(number, update(Arc::clone(descriptor).into()));
        }
    }

    /// Returns a row of counters of every worker.
    pub(super) fn read(&self, row: u32) -> impl Iterator<Item = Row> {
        self.workers.iter().map(move |worker| worker.counters.read(row))
    }

    /// Sets a row of counters to zero, before it is used for something else.
    pub(super) fn clear(&self, row: u32) {
        for worker in &self.workers {
            worker.counters.clear(row);
        }
    }

    /// Returns process id, restarts and totals of every worker.
    pub(super) fn stats(&self) -> Vec<WorkerStats> {
        let stats = |worker: &Worker| {
            let mut stats = WorkerStats {
                pid: worker
                    .state
                    .process()
                    .map_or(0, |process| process.pid().as_raw_nonzero().get().unsigned_abs()),
                restarts: worker.restarts,
                ..WorkerStats::default()
            };
            stats.add(&worker.counters.read(WORKER_ROW));
            stats
        };
        self.workers.iter().map(stats).collect()
    }
}

impl Task {
    /// Returns the name of a worker in logs and errors.
    fn name(self, number: usize) -> String {
        match self {
            Self::Forward => format!("worker {number}"),
            Self::Query { .. } => "querier".to_owned(),
        }
    }

    /// Returns true if reports of a worker are received while it runs.
    fn expects_reports(self, process: &WorkerProcess) -> bool {
        process.ready_deadline().is_some() || matches!(self, Self::Query { .. })
    }

    /// Returns the limit on the messages that are queued for a worker.
    fn max_queued(self) -> usize {
        match self {
            Self::Forward => MAX_QUEUED,
            Self::Query { queriers } => MAX_QUEUED.saturating_add(queriers.saturating_mul(QUERIER_MESSAGES)),
        }
    }
}

#[cfg(test)]
mod tests;
