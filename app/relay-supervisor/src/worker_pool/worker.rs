//! Worker of a pool, whose process is replaced by another one when it exits.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_process::child::restart_policy::RestartPolicy;
use pontoon_process::child::{
    ChildProcess, ExitReason, ProcessConfig, ProcessState, exit_status, spawn, stdio,
};
use pontoon_process::error::{Context as _, Error};
use pontoon_process::signals;
use pontoon_relay_worker::Counters;
use pontoon_relay_worker::messages::{Member, RelayReport, RelayUpdate, WorkerChannel};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;

use super::{SpawnConfig, Task};

pub(super) type WorkerProcess = ChildProcess<RelayUpdate, RelayReport>;

/// Worker of a pool: its process, and the state that outlives the process.
#[derive(Debug)]
pub(super) struct Worker {
    memory: Arc<OwnedFd>,
    pub(super) counters: Counters,
    /// State of the process; in back-off, the value is the time of the next start.
    pub(super) state: ProcessState<RelayUpdate, RelayReport, Instant>,
    pub(super) restarts: u64,
    restart_policy: RestartPolicy,
    /// Memberships that the worker has reported and [`WorkerPool::members`](super::WorkerPool::members) has not returned yet.
    pub(super) members: Vec<Member>,
    /// Namespaces of the worker's first process. A successor that would have fewer of them is not started.
    namespaces: Option<Namespaces>,
}

/// Limit on the reports that are read from a worker in one turn of the supervisor's loop, so that a worker that floods the
/// supervisor does not keep it busy.
pub(super) const MAX_REPORTS: usize = 256;

/// Limit on the wait for the exit of a process that has closed its channel.
const CLOSED_CHANNEL_GRACE: Duration = Duration::from_millis(20);

impl Worker {
    /// Creates a worker without a process.
    ///
    /// # Errors
    /// No free descriptor or no memory.
    pub(super) fn new() -> Result<Self, Error> {
        let memory = Arc::new(Counters::create().context("cannot make memory for counters")?);
        let counters = Counters::map(&memory).context("cannot map memory for counters")?;
        Ok(Self {
            memory,
            counters,
            state: ProcessState::Backoff(Instant::now()),
            restarts: 0,
            restart_policy: RestartPolicy::default(),
            members: Vec::new(),
            namespaces: None,
        })
    }

    /// Forks a process for the worker, which reports [`RelayReport::Ready`] when it has entered the sandbox.
    pub(super) fn start(&mut self, task: Task, spawn_config: &SpawnConfig) -> Result<(), Error> {
        let disabled = &spawn_config.disabled;
        let config = ProcessConfig {
            name: "a worker",
            role: Role::Relay,
            require_sandbox: spawn_config.require_sandbox,
            disabled,
            max_queued: task.max_queued(),
        };
        let mut process = ChildProcess::spawn(&config, &mut self.namespaces, |control, sandbox| {
            run_worker(control, sandbox, disabled)
        })?;
        // The socket buffer always has room for the first message.
        let start = RelayUpdate::Start(spawn_config.settings, Arc::clone(&self.memory).into());
        let _ = process.send(start);
        self.state = ProcessState::Running(process);
        Ok(())
    }

    /// Receives reports. If the process has exited, has reported an error, or was not ready in time, it is killed and
    /// reaped, its restart is scheduled, and the reason is returned.
    pub(super) fn poll_exit(&mut self, task: Task) -> Option<ExitReason> {
        let process = self.state.process_mut()?;
        let mut exited = process.exits_within(Duration::ZERO);
        let now = Instant::now();
        if exited || task.expects_reports(process) {
            let members = &mut self.members;
            let closed = process.receive(MAX_REPORTS, |report| match (report, task) {
                (Ok(RelayReport::Member(member)), Task::Query { .. }) => {
                    members.push(member);
                    Ok(())
                }
                (Ok(_), _) => Err("reported a membership".to_owned()),
                (Err(error), _) => Err(error.to_string()),
            });
            // An exiting process closes its files shortly before its exit can be polled. A process that has closed its
            // channel and does not exit is useless, and its readable channel would keep the supervisor awake.
            if closed && !exited {
                exited = process.exits_within(CLOSED_CHANNEL_GRACE);
                if !exited {
                    process.fail("closed its channel");
                }
            }
        }
        let failed = exited || process.has_failed();
        if !failed && process.ready_deadline().is_none_or(|until| now < until) {
            return None;
        }
        process.kill();
        let reason = process.reap();
        let backoff = self.restart_policy.backoff(process.started(), now);
        self.state = ProcessState::Backoff(now + backoff);
        Some(if failed { reason } else { ExitReason::Unresponsive })
    }
}

/// Runs a worker in the forked process and returns its exit status. In a PID namespace of its own the process has id 1, so
/// that only SIGKILL from an ancestor namespace and its own faults can kill it.
fn run_worker(control: &OwnedFd, sandbox: Sandbox, disabled: &Disabled) -> u8 {
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
    exit_status(result, &reports)
}
