//! Worker processes of a relay: start, messages, reaping and restart.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_ipc::{Descriptor, OutboxOverflow};
use pontoon_process::child::restart_policy::RestartPolicy;
use pontoon_process::child::spawn::{self, Child};
use pontoon_process::child::stderr_pipe::StderrPipe;
use pontoon_process::child::{environment, stdio};
use pontoon_process::error::{Context as _, Error, one_line};
use pontoon_process::log::{output, panics};
use pontoon_process::signals;
use pontoon_relay::counters::{Row, WORKER_ROW, WorkerStats};
use pontoon_relay::membership::MAX_GROUPS;
use pontoon_relay_worker::Counters;
use pontoon_relay_worker::messages::{
    ControlChannel, Member, RelayReport, RelayUpdate, Settings, WorkerChannel,
};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::RETRY;

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

/// A worker and what outlives its process.
#[derive(Debug)]
struct Worker {
    memory: Arc<OwnedFd>,
    counters: Counters,
    state: ProcessState,
    restarts: u64,
    restart_policy: RestartPolicy,
    /// Memberships that the worker has reported and [`WorkerPool::members`] has not returned yet.
    members: Vec<Member>,
    /// Namespaces of the first process. A successor with fewer of them is not started.
    namespaces: Option<Namespaces>,
}

#[derive(Debug)]
enum ProcessState {
    Running {
        child: Child,
        channel: ControlChannel,
        /// Reading end of its standard error.
        stderr: StderrPipe,
        started: Instant,
        /// Time by which the worker must report [`RelayReport::Ready`]; `None` once it has. Messages to it are queued meanwhile.
        ready_deadline: Option<Instant>,
    },
    /// Not running; the next start is due at this time.
    Backoff(Instant),
}

/// The reason why a worker's process has ended or was killed.
#[derive(Debug, PartialEq, Eq)]
enum ExitReason {
    Reported(String),
    Killed(u8),
    Exited(u8),
    Unresponsive,
}

/// A worker that has run for less than this is restarted after [`MIN_BACKOFF`], not at once ...
const MIN_UPTIME: Duration = Duration::from_millis(50);

/// ... so that one that always fails does not occupy a CPU.
const MIN_BACKOFF: Duration = Duration::from_millis(50);

/// Limit on the time from start to [`RelayReport::Ready`], which is normally a few milliseconds.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reports that are read from a worker in one turn of the loop, so that a worker that floods the supervisor does not keep it
/// from its other work.
const MAX_REPORTS: usize = 256;

/// Limit on the messages that are queued for a worker, beside [`QUERIER_MESSAGES`]: more than the rules, outputs and inputs
/// for which there are rows of counters, so that the whole state and later changes fit.
const MAX_QUEUED: usize = 1 << 17;

/// The most messages of which the state of a querier consists: its memberships, its socket, and the loss of its address.
const QUERIER_MESSAGES: usize = MAX_GROUPS + 2;

/// Time that a worker has to exit when the relay ends, before it is killed.
const STOP_TIMEOUT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

impl WorkerPool {
    /// Starts `count` workers, and waits until they are ready.
    ///
    /// # Errors
    /// Out of descriptors or memory; a worker failed to start, as its successors would.
    pub(super) fn new(task: Task, count: u8, spawn_config: SpawnConfig) -> Result<Self, Error> {
        let worker = |_| {
            let memory = Arc::new(Counters::create().context("cannot make memory for counters")?);
            let counters = Counters::map(&memory).context("cannot map memory for counters")?;
            Ok(Worker {
                memory,
                counters,
                state: ProcessState::Backoff(Instant::now()),
                restarts: 0,
                restart_policy: RestartPolicy::default(),
                members: Vec::new(),
                namespaces: None,
            })
        };
        let mut pool = Self {
            task,
            spawn_config,
            workers: (0..count).map(worker).collect::<Result<_, Error>>()?,
        };
        for worker in &mut pool.workers {
            worker.start(pool.task, &pool.spawn_config)?;
        }
        pool.wait_until_ready()?;
        Ok(pool)
    }

    fn wait_until_ready(&mut self) -> Result<(), Error> {
        loop {
            self.flush();
            for (number, worker) in self.workers.iter_mut().enumerate() {
                if let Some(reason) = worker.poll_exit(self.task) {
                    let name = self.task.name(number);
                    return Err(Error::new(format!("{name}: {reason}")));
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

    /// The number of workers.
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Returns the descriptors to poll: of each worker its exit, its reports, room for queued messages, and its standard
    /// error.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.workers.iter().flat_map(move |worker| {
            let fds = match &worker.state {
                ProcessState::Running {
                    child,
                    channel,
                    stderr,
                    ready_deadline,
                    ..
                } => {
                    let exit = PollFd::from_borrowed_fd(child.fd(), PollFlags::IN);
                    let expected = ready_deadline.is_some() || matches!(self.task, Task::Query { .. });
                    let report = expected.then(|| PollFd::new(channel, PollFlags::IN));
                    let stderr = stderr.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                    let room = channel.wants_room().then(|| PollFd::new(channel, PollFlags::OUT));
                    [Some(exit), report, room, stderr]
                }
                ProcessState::Backoff(_) => [None, None, None, None],
            };
            fds.into_iter().flatten()
        })
    }

    /// Returns the time of the next start, retry of a message, or end of a wait for [`RelayReport::Ready`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadline = |worker: &Worker| match &worker.state {
            ProcessState::Running {
                ready_deadline,
                channel,
                ..
            } => [*ready_deadline, channel.retry_at()].into_iter().flatten().min(),
            ProcessState::Backoff(until) => Some(*until),
        };
        self.workers.iter().filter_map(deadline).min()
    }

    /// Sends queued messages as far as there is room, and logs what the workers have written to standard error.
    pub(super) fn flush(&mut self) {
        for worker in &mut self.workers {
            if let ProcessState::Running { channel, stderr, .. } = &mut worker.state {
                channel.flush(Instant::now());
                stderr.forward();
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
        let worker = self.workers.get_mut(number);
        if let Some(Worker {
            state: ProcessState::Running { child, .. },
            ..
        }) = worker
        {
            tracing::error!("{}: {why}", self.task.name(number));
            child.kill();
        }
    }

    /// Sends a message to a worker, or queues it. A worker that has not read for so long that the queue is full is killed.
    pub(super) fn send(&mut self, number: usize, update: RelayUpdate) {
        let state = self.workers.get_mut(number).map(|worker| &mut worker.state);
        if let Some(ProcessState::Running { channel, .. }) = state
            && channel.send(update) == Err(OutboxOverflow)
        {
            self.kill(number, "does not read its messages");
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
                pid: match &worker.state {
                    ProcessState::Running { child, .. } => child.pid().as_raw_nonzero().get().unsigned_abs(),
                    ProcessState::Backoff(_) => 0,
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
            if let ProcessState::Running { child, channel, .. } = &worker.state {
                channel.shutdown();
                let fd = child.fd();
                if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&STOP_TIMEOUT)) != Ok(1) {
                    child.kill();
                }
                let _ = child.wait();
            }
        }
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

    /// Returns the limit on the messages that are queued for a worker.
    fn max_queued(self) -> usize {
        match self {
            Self::Forward => MAX_QUEUED,
            Self::Query { queriers } => MAX_QUEUED.saturating_add(queriers.saturating_mul(QUERIER_MESSAGES)),
        }
    }
}

impl Worker {
    /// Forks a process, which reports [`RelayReport::Ready`] when it has entered the sandbox.
    fn start(&mut self, task: Task, spawn_config: &SpawnConfig) -> Result<(), Error> {
        let (ours, theirs) = seqpacket::pair_with_untrusted().context("cannot make a socket pair")?;
        let mut channel =
            ControlChannel::new(ours, task.max_queued()).context("cannot set up the channel to a worker")?;
        let (stderr, error) = StderrPipe::pair().context("cannot make a pipe")?;
        // The socket buffer has room for the first message.
        let start = RelayUpdate::Start(spawn_config.settings, Arc::clone(&self.memory).into());
        let _ = channel.send(start);
        let child = spawn::sandboxed(&spawn_config.disabled, &mut self.namespaces, |namespaces| {
            let sandbox = Sandbox {
                role: Role::Relay,
                namespaces,
                required: spawn_config.require_sandbox,
            };
            let own = rustix::stdio::dup2_stderr(&error);
            own.map_or(1, |()| {
                output::is_own_pipe();
                run_worker(&theirs, sandbox, &spawn_config.disabled)
            })
        });
        let started = Instant::now();
        self.state = ProcessState::Running {
            child: child.context("cannot fork a worker")?,
            channel,
            stderr,
            started,
            ready_deadline: Some(started + READY_TIMEOUT),
        };
        Ok(())
    }

    /// Receives reports. If the process has exited, has reported an error, or has not become ready in time, kills and reaps
    /// it, schedules its restart and returns the reason.
    fn poll_exit(&mut self, task: Task) -> Option<ExitReason> {
        let ProcessState::Running {
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
        let has_exited =
            |limit: &Timespec| poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(limit)) == Ok(1);
        let mut exited = has_exited(&Timespec::default());
        let now = Instant::now();
        let mut error = None;
        if exited || ready_deadline.is_some() || matches!(task, Task::Query { .. }) {
            for _ in 0..MAX_REPORTS {
                match (channel.receive(), task) {
                    (Ok(Some(RelayReport::Ready)), _) => *ready_deadline = None,
                    (Ok(Some(RelayReport::Member(member))), Task::Query { .. }) => self.members.push(member),
                    (Ok(Some(RelayReport::Member(_))), Task::Forward) => {
                        error = Some("reported a membership".to_owned());
                    }
                    (Ok(Some(RelayReport::Failed(text))), _) => error = Some(text),
                    // A process that exits closes its files a moment before its exit can be polled. One that does not exit
                    // without its channel is of no use, and would keep the supervisor awake.
                    (Ok(None), _) => {
                        exited = exited || has_exited(&CLOSED_CHANNEL_GRACE);
                        if !exited {
                            error = Some("closed its channel".to_owned());
                        }
                        break;
                    }
                    (Err(refused), _) if refused.kind() == io::ErrorKind::InvalidData => {
                        error = Some(refused.to_string());
                    }
                    (Err(_), _) => break,
                }
                if error.is_some() {
                    break;
                }
            }
        }
        if !exited && error.is_none() && ready_deadline.is_none_or(|until| now < until) {
            return None;
        }
        child.kill();
        let reason = match (error, child.wait()) {
            (Some(error), _) => ExitReason::Reported(error),
            (None, _) if !exited => ExitReason::Unresponsive,
            (None, status @ 129..) => ExitReason::Killed(status - 128),
            (None, status) => ExitReason::Exited(status),
        };
        stderr.forward_all();
        let backoff = if now - *started < MIN_UPTIME {
            MIN_BACKOFF
        } else {
            Duration::ZERO
        };
        self.state = ProcessState::Backoff(now + backoff.max(self.restart_policy.backoff(now)));
        Some(reason)
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(why) => f.write_str(&one_line(why)),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::Exited(status) => write!(f, "exited with status {status}"),
            Self::Unresponsive => f.write_str("did not become ready in time"),
        }
    }
}

/// Time for which the exit of a process that has closed its channel is awaited.
const CLOSED_CHANNEL_GRACE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Runs a worker in the forked process and returns its exit status. In a pid namespace of its own the process has id 1, so
/// no signal ends it but SIGKILL and those of its own faults.
fn run_worker(control: &OwnedFd, sandbox: Sandbox, disabled: &Disabled) -> u8 {
    // SAFETY: a child of one thread has one, and what the supervisor has read of its environment it has copied.
    unsafe { environment::erase() };
    panics::set_hook();
    let prepared = spawn::close_all_but(&[control.as_fd()])
        .and_then(|()| stdio::leave_to_the_command())
        .and_then(|()| signals::unblock_all());
    let channel = || WorkerChannel::new(control.try_clone()?, 0);
    let Ok(reports) = channel() else {
        return 1;
    };
    let result = prepared
        .and_then(|()| channel())
        .and_then(|own| pontoon_relay_worker::run(own, sandbox, disabled));
    match result {
        Ok(()) => 0,
        Err(error) => {
            let _ = reports.try_send(&RelayReport::failed(&error));
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use pontoon_relay::membership::SourceFilter;

    use super::*;

    fn worker() -> Worker {
        let memory = Arc::new(Counters::create().unwrap());
        Worker {
            counters: Counters::map(&memory).unwrap(),
            memory,
            state: ProcessState::Backoff(Instant::now()),
            restarts: 0,
            restart_policy: RestartPolicy::default(),
            members: Vec::new(),
            namespaces: None,
        }
    }

    /// Lets a process of the worker exit, and returns the time until the restart is due.
    #[expect(clippy::zombie_processes, reason = "the worker waits for it")]
    fn exit(worker: &mut Worker) -> Duration {
        let (ours, _) = seqpacket::pair().unwrap();
        let child = std::process::Command::new("false").spawn().unwrap();
        let child = Child::new(child.id().try_into().unwrap()).unwrap();
        poll(&mut [PollFd::new(&child.fd(), PollFlags::IN)], None).unwrap();
        worker.state = ProcessState::Running {
            child,
            channel: ControlChannel::new(ours, MAX_QUEUED).unwrap(),
            stderr: StderrPipe::pair().unwrap().0,
            started: Instant::now() - 2 * MIN_UPTIME,
            ready_deadline: None,
        };
        let begin = Instant::now();
        assert_eq!(worker.poll_exit(Task::Forward), Some(ExitReason::Exited(1)));
        match worker.state {
            ProcessState::Backoff(due) => due - begin,
            ProcessState::Running { .. } => panic!("it is running"),
        }
    }

    #[test]
    fn backoff_grows_when_workers_exit_repeatedly() {
        let mut worker = worker();
        let waits: Vec<_> = (0..7).map(|_| exit(&mut worker)).collect();
        assert!(waits[..3].iter().all(|wait| *wait < MIN_BACKOFF), "{waits:?}");
        assert!(waits[6] >= Duration::from_millis(800), "{waits:?}");
    }

    #[test]
    fn exit_reason_is_one_line() {
        let reason = ExitReason::Reported("a\nerror: b\x1b[2J".to_owned());
        assert_eq!(reason.to_string(), "a error: b [2J");
    }

    /// A worker whose process is running, and the other end of its channel.
    fn running() -> (Worker, WorkerChannel) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let mut sleep = std::process::Command::new("sleep");
        #[expect(clippy::zombie_processes, reason = "the worker waits for it")]
        let child = sleep.arg("60").spawn().unwrap();
        let mut worker = worker();
        worker.state = ProcessState::Running {
            child: Child::new(child.id().try_into().unwrap()).unwrap(),
            channel: ControlChannel::new(ours, MAX_QUEUED).unwrap(),
            stderr: StderrPipe::pair().unwrap().0,
            started: Instant::now(),
            ready_deadline: None,
        };
        (worker, WorkerChannel::new(theirs, 0).unwrap())
    }

    const QUERY: Task = Task::Query { queriers: 1 };

    /// 32 full queriers are 2^17 memberships.
    #[test]
    fn state_of_many_full_queriers_fits_into_the_queue_of_a_restarted_worker() {
        let (ours, _theirs) = seqpacket::pair().unwrap();
        let task = Task::Query { queriers: 64 };
        let mut channel = ControlChannel::new(ours, task.max_queued()).unwrap();
        for querier in 0..64 {
            let groups = (0..MAX_GROUPS).map(|number| u32::try_from(0xef01_0000 + number).unwrap());
            for group in groups {
                let member = RelayUpdate::Member(Member {
                    querier,
                    group: Ipv4Addr::from(group).into(),
                    filter: SourceFilter::Any,
                });
                assert_eq!(channel.send(member), Ok(()));
            }
            let address = RelayUpdate::QuerierAddress(querier, None);
            assert_eq!(channel.send(address), Ok(()));
        }
        assert!(channel.wants_room(), "the messages are queued");
    }

    fn member() -> RelayReport {
        RelayReport::Member(Member {
            querier: 1,
            group: [239, 1, 1, 1].into(),
            filter: SourceFilter::Any,
        })
    }

    fn no_memory() -> RelayReport {
        RelayReport::Failed("no memory".to_owned())
    }

    #[test]
    fn querier_reports_memberships_a_bounded_number_at_a_time() {
        let (mut worker, theirs) = running();
        let mut sent = 0;
        while theirs.try_send(&member()).is_ok() {
            sent += 1;
        }
        assert_eq!(worker.poll_exit(QUERY), None);
        assert_eq!(worker.members.len(), sent.min(MAX_REPORTS));
        theirs.try_send(&no_memory()).unwrap();
        let reason = (0..=sent).find_map(|_| worker.poll_exit(QUERY));
        assert_eq!(reason, Some(ExitReason::Reported("no memory".to_owned())));
        assert_eq!(worker.members.len(), sent);
    }

    #[test]
    fn forwarding_worker_that_reports_memberships_is_killed() {
        let (mut worker, theirs) = running();
        if let ProcessState::Running { ready_deadline, .. } = &mut worker.state {
            *ready_deadline = Some(Instant::now() + READY_TIMEOUT);
        }
        theirs.try_send(&member()).unwrap();
        let reason = ExitReason::Reported("reported a membership".to_owned());
        assert_eq!(worker.poll_exit(Task::Forward), Some(reason));
        assert!(worker.members.is_empty());
    }
}
