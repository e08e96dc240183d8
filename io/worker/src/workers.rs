//! Workers of an engine, which are built together and end together.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use pontoon_engine::config::Protocol;
use pontoon_engine::{Config, Engine, WorkerId, siblings};
use pontoon_event::Edge;
use pontoon_host::{HostFeatures, KernelHost};
use pontoon_link::Link;
use pontoon_link::capturing::CapturingLink;
use pontoon_sys::context;
use pontoon_sys::disabled::Disabled;
use rustix::rand::{GetRandomFlags, getrandom};
use tracing::warn;

use crate::EngineSetup;
use crate::capture::CaptureControl;
use crate::events;
use crate::limits::FlowLimits;
use crate::mesh::{self, WorkerHandle};
use crate::messages::{EngineChannel, OwnedParts, PortError};
use crate::pacing::Pacer;
use crate::stats::WorkerHistograms;
use crate::worker::{self, LoopEnd, PendingInput, Tally, Worker};

/// Builds a worker for each of `links`, which all belong to one guest.
pub(crate) fn build<L: Link>(
    mut setup: EngineSetup,
    links: Vec<L>,
    disabled: &Disabled,
    supervisor: EngineChannel,
) -> io::Result<Vec<Worker<L>>> {
    let can = HostFeatures::probe(disabled);
    if let Some(mac) = setup.ledger.guest() {
        setup.config.guest_mac = mac;
    }
    let count = u8::try_from(links.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "more than 255 queues"))?;
    let handles = match count {
        1 => vec![None],
        _ => mesh::handles(count, setup.config.guest_mac)?
            .into_iter()
            .map(Some)
            .collect(),
    };
    let published: Vec<_> = setup.published.into_iter().map(Arc::new).collect();
    let events = setup
        .events
        .map(|events| (events.rings, Arc::new(events.doorbell)));
    let capture_control = Arc::new(CaptureControl::new(setup.stats.process()));
    let mut raw_icmp = setup.raw_icmp;
    let reports = supervisor.try_clone()?;
    let mut supervisor = Some(supervisor);
    let mut workers = Vec::new();
    for ((id, link), handle) in (0..count).map(WorkerId).zip(links).zip(handles) {
        let take_over = |error| context("cannot take over the host's sockets", &error);
        let raw_icmp = std::mem::take(&mut raw_icmp);
        let mut host = KernelHost::new(can, setup.outbound.clone(), raw_icmp).map_err(take_over)?;
        host.set_workers(count);
        if let Some(helper) = &setup.socket_helper
            && let Some(channel) = helper.channels.get(usize::from(id.0))
        {
            host.set_socket_helper(helper.cookie, Arc::clone(channel));
        }
        let config = publish(&setup.config, &published, id, &mut host).map_err(take_over)?;
        let ledger = setup.ledger.part(id);
        let mut worker = Worker {
            engine: engine(config, id)?,
            host,
            link,
            supervisor: supervisor.take(),
            reports: reports.try_clone()?,
            handle,
            limits: FlowLimits::new(&setup.config),
            pacer: Pacer::new(setup.pacing, worker::now()),
            malformed: 0,
            histograms: WorkerHistograms::default(),
            stats: setup.stats.writer(id),
            doorbell: None,
            process_stats: setup.stats.process(),
            published_at: worker::now(),
            published_rules: None,
            rules_generation: setup.rules_generation,
            orphans: ledger.take(),
            solicits: L::UNKNOWN_GUESTS && id == siblings::FIRST,
            sandbox: None,
            capture_control: Arc::clone(&capture_control),
            capture_queue: None,
            decider: None,
            gathered: OwnedParts::default(),
            set_log_level: setup.set_log_level,
            port_errors: BTreeMap::new(),
            ended: VecDeque::new(),
            pending: PendingInput::default(),
        };
        if let Some((rings, event)) = &events
            && let Some((writer, doorbell)) = events::connect(
                rings,
                id,
                event,
                setup.rules_generation,
                setup.config.max_flow_rate,
            )
        {
            worker.engine.report_events(Box::new(writer));
            worker.doorbell = Some(doorbell);
        }
        worker.engine.set_owned_addresses(
            &setup.owned,
            &mut worker.link.transmitter(),
            &mut worker.host,
            worker::now(),
        );
        if let Some(required) = &mut setup.decider {
            let (decider, channel) = worker::decider(&mut required.decider);
            worker.engine.set_decider(decider, required.deadline);
            worker.decider = channel;
        }
        worker.engine.keep_ledger(Box::new(ledger));
        connect(&mut worker, setup.restarted)?;
        workers.push(worker);
    }
    Ok(workers)
}

/// Passes the sockets of the published ports of the worker `id` to its `host`, and returns its configuration, which has these
/// ports.
fn publish(
    config: &Config,
    sockets: &[Arc<OwnedFd>],
    id: WorkerId,
    host: &mut KernelHost,
) -> io::Result<Config> {
    let mut own = Config {
        published: Vec::new(),
        ..config.clone()
    };
    // Each listener is shared by all workers; a UDP port belongs to the first worker.
    for (published, socket) in config.published.iter().zip(sockets) {
        if published.protocol == Protocol::Tcp || id == siblings::FIRST {
            own.published.push(*published);
            host.add_published(*published, Arc::clone(socket))?;
        }
    }
    Ok(own)
}

/// Runs the workers, the first one in this thread, until one of them ends, which ends all. Logs the sum of their counters,
/// and returns the reason of the end.
pub(crate) fn run<L: Link>(workers: Vec<Worker<L>>) -> io::Result<LoopEnd> {
    let capture_control = workers.first().map(|first| Arc::clone(&first.capture_control));
    let mut ends = thread::scope(|scope| {
        let mut workers = workers.into_iter();
        let first = workers.next();
        let threads: io::Result<Vec<_>> = (1..)
            .zip(workers)
            .map(|(id, worker)| {
                thread::Builder::new()
                    .name(format!("worker-{id}"))
                    .spawn_scoped(scope, || run_one(worker))
            })
            .collect();
        match (first, threads) {
            (Some(first), Ok(threads)) => {
                let mut ended = vec![run_one(first)];
                ended.extend(threads.into_iter().map(join));
                conclude(ended)
            }
            (first, Err(error)) => {
                // Dropping the guard ends the threads that were started.
                drop(first.as_ref().and_then(ends_all));
                vec![Err(error)]
            }
            (None, Ok(_)) => Vec::new(),
        }
    });
    if let Some(capture_control) = capture_control {
        capture_control.finish();
    }
    // Only the first worker to end has a reason of its own; the reason of the others is [`LoopEnd::Peer`].
    let reason = |end: &io::Result<LoopEnd>| !matches!(end, Ok(LoopEnd::Peer));
    let first = ends.iter().position(reason).map(|at| ends.swap_remove(at));
    first.unwrap_or(Ok(LoopEnd::Supervisor))
}

/// Reason for which a worker's loop ended, and the worker, unless it panicked.
type Ended<L> = (io::Result<LoopEnd>, Option<Worker<L>>);

fn run_one<L: Link>(mut worker: Worker<L>) -> Ended<L> {
    let _ends_all = ends_all(&worker);
    loop {
        let end = match worker.capture_queue.take() {
            None => worker.run(),
            Some(capture_queue) => {
                let mut capturing = worker.on(|link| CapturingLink::new(link, capture_queue));
                let end = capturing.run();
                worker = capturing.on(CapturingLink::into_inner);
                end
            }
        };
        if !matches!(end, Ok(LoopEnd::Capture)) {
            worker.end_events(worker::now());
            worker.publish(worker::now());
            return (end, Some(worker));
        }
    }
}

/// Logs the counters before the workers are dropped, because closing a queue takes the kernel longer than all other steps.
fn conclude<L: Link>(ended: Vec<Ended<L>>) -> Vec<io::Result<LoopEnd>> {
    let mut tally = Tally::default();
    for worker in ended.iter().filter_map(|(_, worker)| worker.as_ref()) {
        tally.add(&worker.tally());
    }
    tally.log();
    ended.into_iter().map(|(end, _)| end).collect()
}

fn ends_all<L: Link>(worker: &Worker<L>) -> Option<mesh::EndsAll> {
    worker.handle.as_ref().map(WorkerHandle::ends_all)
}

fn join<L: Link>(thread: ScopedJoinHandle<'_, Ended<L>>) -> Ended<L> {
    let panicked = |_| (Err(io::Error::other("a worker panicked")), None);
    thread.join().unwrap_or_else(panicked)
}

fn engine(config: Config, id: WorkerId) -> io::Result<Engine<KernelHost>> {
    let mut seed = [0; 32];
    getrandom(&mut seed, GetRandomFlags::empty())?;
    Ok(Engine::new(config, id, seed, worker::now()))
}

/// Registers the event sources of a worker, and connects the worker with the others.
fn connect<L: Link>(worker: &mut Worker<L>, restarted: bool) -> io::Result<()> {
    let Worker {
        engine,
        host,
        link,
        supervisor,
        handle,
        port_errors,
        ..
    } = worker;
    link.watch(host.epoll())?;
    if let Some(supervisor) = supervisor {
        host.epoll().add(supervisor, Edge::Supervisor.token())?;
    }
    if let Some(handle) = handle {
        host.epoll().add(handle.event(), Edge::Inbox.token())?;
        engine.join(Box::new(handle.clone()));
    }
    for (published, failure) in engine.open_published(&mut link.transmitter(), host, worker::now()) {
        let what = format!("cannot publish {}: {failure}", published.host);
        if !restarted {
            return Err(io::Error::other(what));
        }
        warn!("{what}");
        let error = PortError::new(published, &failure.to_string());
        port_errors.insert(published.key(), error);
    }
    Ok(())
}
