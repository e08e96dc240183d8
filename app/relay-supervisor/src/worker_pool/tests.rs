use std::net::Ipv4Addr;
use std::time::Duration;

use pontoon_process::child::restart_policy::RestartPolicy;
use pontoon_process::child::spawn::Child;
use pontoon_process::child::stderr_pipe::StderrPipe;
use pontoon_process::child::{ChildProcess, ExitReason};
use pontoon_relay::membership::SourceFilter;
use pontoon_relay_worker::messages::{ControlChannel, RelayReport, WorkerChannel};
use pontoon_sys::seqpacket;
use rustix::event::poll;

use super::worker::MAX_REPORTS;
use super::*;

fn process(child: Child, socket: OwnedFd, started: Instant) -> WorkerProcess {
    let channel = ControlChannel::new(socket, MAX_QUEUED).unwrap();
    ChildProcess::new(child, channel, StderrPipe::pair().unwrap().0, started)
}

/// Makes the worker's process exit, and returns the time until its restart is due.
#[expect(clippy::zombie_processes, reason = "the worker waits for it")]
fn exit(worker: &mut Worker) -> Duration {
    let (ours, _) = seqpacket::pair().unwrap();
    let child = std::process::Command::new("false").spawn().unwrap();
    let child = Child::new(child.id().try_into().unwrap()).unwrap();
    poll(&mut [PollFd::new(&child.fd(), PollFlags::IN)], None).unwrap();
    let started = Instant::now() - 2 * RestartPolicy::MIN_UPTIME;
    worker.state = ProcessState::Running(process(child, ours, started));
    let begin = Instant::now();
    assert_eq!(worker.poll_exit(Task::Forward), Some(ExitReason::Exited(1)));
    match worker.state {
        ProcessState::Backoff(due) => due - begin,
        ProcessState::Running(_) => panic!("it is running"),
    }
}

#[test]
fn backoff_grows_when_workers_exit_repeatedly() {
    let mut worker = Worker::new().unwrap();
    let waits: Vec<_> = (0..7).map(|_| exit(&mut worker)).collect();
    assert!(
        waits[..3].iter().all(|wait| *wait < RestartPolicy::MIN_BACKOFF),
        "{waits:?}"
    );
    assert!(waits[6] >= Duration::from_millis(800), "{waits:?}");
}

/// Returns a worker whose process is running, and the worker's end of its channel.
fn running() -> (Worker, WorkerChannel) {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let mut sleep = std::process::Command::new("sleep");
    #[expect(clippy::zombie_processes, reason = "the worker waits for it")]
    let child = sleep.arg("60").spawn().unwrap();
    let child = Child::new(child.id().try_into().unwrap()).unwrap();
    let mut worker = Worker::new().unwrap();
    worker.state = ProcessState::Running(process(child, ours, Instant::now()));
    (worker, WorkerChannel::new(theirs, 0).unwrap())
}

const QUERY: Task = Task::Query { queriers: 1 };

/// 32 queriers with the maximum number of groups have 2^17 memberships.
#[test]
fn state_of_many_full_queriers_fits_into_the_queue_of_a_restarted_worker() {
    let (ours, _theirs) = seqpacket::pair().unwrap();
    let task = Task::Query { queriers: 64 };
    let mut channel = ControlChannel::new(ours, task.max_queued()).unwrap();
    for querier in 0..64 {
        let groups = (0..MAX_MEMBERSHIPS).map(|number| u32::try_from(0xef01_0000 + number).unwrap());
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
    theirs.try_send(&member()).unwrap();
    let reason = ExitReason::Reported("reported a membership".to_owned());
    assert_eq!(worker.poll_exit(Task::Forward), Some(reason));
    assert!(worker.members.is_empty());
}
