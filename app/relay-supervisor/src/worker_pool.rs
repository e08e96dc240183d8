//! Worker processes of a relay: start, messages, reaping and restart.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use pontoon_ipc::Descriptor;
use pontoon_process::child::ProcessState;
use pontoon_process::error::{Context as _, Error};
use pontoon_relay::counters::{Row, WORKER_ROW, WorkerStats};
use pontoon_relay::membership::MAX_MEMBERSHIPS;
use pontoon_relay_worker::messages::{Member, RelayUpdate, Settings};
use pontoon_sys::disabled::Disabled;
use rustix::event::{PollFd, PollFlags};

use crate::RETRY;
use worker::{Worker, WorkerProcess};

mod worker;

/// Pool of sandboxed processes that read packets. A process that exits is restarted.
#[derive(Debug)]
pub(super) struct WorkerPool {
    task: Task,
    spawn_config: SpawnConfig,
    workers: Vec<Worker>,
}

/// Job of the workers of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// The workers forward datagrams, and send no reports after the start.
    Forward,
    /// The workers run IGMP/MLD queriers, and report group memberships.
    Query {
        /// Limit on the number of queriers.
        queriers: usize,
    },
}

/// Configuration with which each worker of a pool is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpawnConfig {
    /// Content of the first message to a worker.
    pub(super) settings: Settings,
    /// True if it is an error that the host refuses a layer of the sandbox.
    pub(super) require_sandbox: bool,
    /// Kernel features that the environment variable `PONTOON_DISABLE` disables for tests.
    pub(super) disabled: Disabled,
}

#[cfg(test)]
impl SpawnConfig {
    /// Returns a configuration with which each datagram is sent immediately, by a system call of its own.
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

/// Limit on the messages that are queued for a worker, besides [`QUERIER_MESSAGES`] for each querier: more than the rules,
/// outputs and inputs for which there are rows of counters, so that the whole state and later changes fit.
const MAX_QUEUED: usize = 1 << 17;

/// Maximum number of messages that describe the state of a querier: its memberships, its socket, and the loss of its
/// address.
const QUERIER_MESSAGES: usize = MAX_MEMBERSHIPS + 2;

impl WorkerPool {
    /// Starts `count` workers, and waits until they are ready.
    ///
    /// # Errors
    /// No free descriptor or no memory; a worker failed to start, as its successors would.
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

    /// Returns the number of workers.
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Returns the descriptors of each worker to poll: for its exit, its reports, room for queued messages, and its
    /// standard error.
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

    /// Returns the time of the next start, retry of a message, or timeout of the wait for `RelayReport::Ready`.
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

    /// Sends queued messages until the channels have no more room, and logs the lines that the workers have written to
    /// standard error.
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

    /// Starts the workers whose restart is due and returns their numbers. The caller sends each of them the whole state.
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

    /// Kills the worker `number`, which has violated the protocol. It is restarted like a worker that has exited.
    pub(super) fn kill(&mut self, number: usize, why: &str) {
        let worker = self.workers.get(number);
        if let Some(process) = worker.and_then(|worker| worker.state.process()) {
            tracing::error!("{}: {why}", self.task.name(number));
            process.kill();
        }
    }

    /// Sends a message to the worker `number`, or queues it. If the queue is full because the worker does not read, the
    /// worker is killed.
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

    /// Sends a message to all workers, each with its own descriptor.
    pub(super) fn send_each(
        &mut self,
        update: impl Fn(Descriptor) -> RelayUpdate,
        descriptors: &[Arc<OwnedFd>],
    ) {
        for (number, descriptor) in descriptors.iter().enumerate() {
            self.send(number, update(Arc::clone(descriptor).into()));
        }
    }

    /// Returns the row `row` of the counters of each worker.
    pub(super) fn read(&self, row: u32) -> impl Iterator<Item = Row> {
        self.workers.iter().map(move |worker| worker.counters.read(row))
    }

    /// Sets the row `row` of all workers' counters to zero, before it is reused.
    pub(super) fn clear(&self, row: u32) {
        for worker in &self.workers {
            worker.counters.clear(row);
        }
    }

    /// Returns process id, restarts and totals of each worker.
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
    /// Returns the name of the worker `number` in logs and errors.
    fn name(self, number: usize) -> String {
        match self {
            Self::Forward => format!("worker {number}"),
            Self::Query { .. } => "querier".to_owned(),
        }
    }

    /// Returns true if the worker may send reports in its current state.
    fn expects_reports(self, process: &WorkerProcess) -> bool {
        process.ready_deadline().is_some() || matches!(self, Self::Query { .. })
    }

    /// Returns the limit on the messages that are queued for each worker of the pool.
    fn max_queued(self) -> usize {
        match self {
            Self::Forward => MAX_QUEUED,
            Self::Query { queriers } => MAX_QUEUED.saturating_add(queriers.saturating_mul(QUERIER_MESSAGES)),
        }
    }
}

#[cfg(test)]
mod tests;
