//! The simulated world: runs guest, network, engine and host in virtual time, and fails if a check of one of them
//! fails.

pub(crate) mod hand_over;

use core::fmt::Write as _;
use core::time::Duration;

use pontoon_engine::{Config, Counters, Engine, Failure, Frame, Instant, Kind, Transmit, WorkerId};
use pontoon_wire::frame::{Body, Transport};
use pontoon_wire::vnet::Offload;
use vm_memory::VolatileSlice;

use crate::clock::earlier;
use crate::frames::Packet;
use crate::guest::Guest;
use crate::host::{HostPlan, SimHost};
use crate::link::{LinkPlan, SimLink};
use crate::monitor::Monitor;
use crate::net::offload::{Merging, merge, split};
use crate::net::{Impairment, Pipe};
use crate::peers::SimMesh;
use crate::rng::Rng;
use crate::turn;
use hand_over::HandOvers;

/// The configuration of a world, except its applications.
#[derive(Clone, Debug)]
pub struct WorldPlan {
    /// Configuration of the engine under test.
    pub config: Config,
    /// Impairments of the network from guest to engine.
    pub up: Impairment,
    /// Impairments of the network from engine to guest.
    pub down: Impairment,
    /// Merging of the guest's segments before they arrive at the engine.
    pub merging: Merging,
    /// True if the engine's frames are segmented into random sizes instead of the sizes in their metadata.
    pub loose: bool,
    /// Configuration of the engine's link.
    pub link: LinkPlan,
    /// Configuration of the simulated host.
    pub host: HostPlan,
    /// Number and steering of the engine's workers.
    pub workers: WorkersPlan,
    /// Number of turns in 100,000 after which the engine is replaced by a successor with its state.
    pub hand_overs: u32,
}

/// Number and steering of the workers of an engine.
#[derive(Clone, Debug)]
pub struct WorkersPlan {
    /// Number of workers of the engine.
    pub count: u8,
    /// Number of frames in 1,000 that arrive at a random worker; the others arrive at one that depends on their
    /// ports.
    pub missteering: u32,
    /// Number of frames that an inbox of the mesh holds.
    pub room: usize,
}

impl WorkersPlan {
    /// An engine with one worker, without a mesh.
    pub const ONE: Self = Self {
        count: 1,
        missteering: 0,
        room: 0,
    };
}

/// A simulated world with a guest of type `G`.
pub struct SimWorld<G> {
    /// The engine instance of each worker.
    pub workers: Vec<Engine<SimHost>>,
    /// The mesh between the workers; `None` with one worker.
    pub mesh: Option<SimMesh>,
    /// The simulated host.
    pub host: SimHost,
    /// The simulated guest.
    pub guest: G,
    /// The simulated link between engine and guest.
    pub link: SimLink,
    /// The network from guest to engine.
    pub up: Pipe,
    /// The network from engine to guest.
    pub down: Pipe,
    monitor: Monitor,
    merging: Merging,
    loose: bool,
    missteering: u32,
    hand_overs: HandOvers,
    rng: Rng,
    now: Instant,
    start: Instant,
    /// Number of turns since the virtual time has changed.
    turns: u32,
    steps: u32,
    trace: Option<String>,
}

impl<G: Guest> SimWorld<G> {
    /// Returns a world before its first event. `guest` creates the guest, with its own random number generator.
    pub fn new(plan: WorldPlan, mut rng: Rng, guest: impl FnOnce(Rng) -> G) -> Self {
        let start = Instant(rng.within(1..=1 << 40));
        let mesh =
            (plan.workers.count > 1).then(|| SimMesh::new(plan.workers.count.into(), plan.workers.room));
        let workers = (0..plan.workers.count)
            .map(WorkerId)
            .map(|id| {
                let mut engine = Engine::new(plan.config.clone(), id, rng.key(), start);
                if let Some(mesh) = &mesh {
                    engine.join(Box::new(mesh.member(id)));
                }
                engine
            })
            .collect();
        Self {
            workers,
            mesh,
            missteering: plan.workers.missteering,
            hand_overs: HandOvers::new(plan.hand_overs, &mut rng),
            host: SimHost::new(plan.host, rng.fork()),
            guest: guest(rng.fork()),
            link: SimLink::new(plan.link, rng.fork()),
            up: Pipe::new(plan.up, rng.fork()),
            down: Pipe::new(plan.down, rng.fork()),
            monitor: Monitor::default(),
            merging: plan.merging,
            loose: plan.loose,
            rng,
            now: start,
            start,
            turns: 0,
            steps: 0,
            trace: None,
        }
    }

    /// Opens the published UDP ports in the first worker.
    ///
    /// # Errors
    /// As `Engine::open_published`.
    pub fn open_published(&mut self) -> Vec<(pontoon_engine::config::Published, Failure)> {
        self.workers[0].open_published(&mut self.link, &mut self.host, self.now)
    }

    /// Begins to record a line for every packet and event.
    pub fn keep_trace(&mut self) {
        self.trace = Some(String::new());
    }

    /// Returns the lines that were recorded for packets and events.
    #[must_use]
    pub fn trace(&self) -> &str {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Returns the current virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Advances the time to the next event and processes it. Returns false if there is none.
    ///
    /// # Errors
    /// A check failed, which the text describes.
    pub fn step(&mut self) -> Result<bool, String> {
        let Some(next) = self.next() else {
            return Ok(false);
        };
        self.turns = if next > self.now { 0 } else { self.turns + 1 };
        if self.turns > MOST_TURNS {
            return Err(format!("{MOST_TURNS} turns and time stands still: a busy loop"));
        }
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(format!("{MOST_STEPS} steps and no end: {}", self.state()));
        }
        self.now = self.now.max(next);
        self.link.tick(self.now);
        self.guest_turn();
        self.engine_turn()?;
        self.hand_over()?;
        self.judge()?;
        Ok(true)
    }

    /// Processes events until `done` returns true.
    ///
    /// # Errors
    /// A check failed, there are no more events, or the virtual time `limit` has passed.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> Result<(), String> {
        let end = self.now + limit;
        while !done(self) {
            if !self.step()? {
                return Err(format!("nothing happens any more: {}", self.state()));
            }
            if self.now > end {
                return Err(format!("not done after {limit:?}: {}", self.state()));
            }
        }
        Ok(())
    }

    /// Processes events until every application has finished and no state of any connection is left.
    ///
    /// # Errors
    /// As [`Self::run_until`], or a connection's state was not freed.
    pub fn run_to_end(&mut self, limit: Duration) -> Result<(), String> {
        self.run_until(limit, |world| {
            world.flows() == 0
                && world.host.open() == 0
                && world.host.busy() == 0
                && world
                    .guest
                    .reports()
                    .iter()
                    .all(|report| report.outcome.is_some())
        })?;
        match (self.pool_in_use(), &self.mesh) {
            (0, None) => Ok(()),
            (0, Some(mesh)) => match (mesh.owned(), mesh.flows()) {
                (0, 0) => Ok(()),
                (keys, flows) => Err(format!("{keys} keys are left over, {flows} flows are counted")),
            },
            (bytes, _) => Err(format!("{bytes} bytes of pool memory are left over")),
        }
    }

    /// Returns the number of flows that occupy a slot, over all workers.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.workers.iter().map(Engine::flows).sum()
    }

    /// Returns the sum of all workers' counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for engine in &self.workers {
            all.add(engine.counters());
        }
        all
    }

    /// Returns the sum of the connect times that all workers have recorded.
    #[must_use]
    pub fn connecting(&self) -> Duration {
        let sums = self
            .workers
            .iter()
            .map(|engine| engine.histograms().tcp_connect_seconds.sum());
        Duration::from_nanos(sums.sum())
    }

    fn pool_in_use(&self) -> usize {
        self.workers.iter().map(Engine::pool_in_use).sum()
    }

    /// Processes events for the virtual time `time`, or until there are no more.
    ///
    /// # Errors
    /// A check failed.
    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now + time;
        while self.next().is_some_and(|next| next <= end) {
            self.step()?;
        }
        self.now = self.now.max(end);
        Ok(())
    }

    fn next(&mut self) -> Option<Instant> {
        let network = earlier(self.up.next(), self.down.next());
        let sides = earlier(self.guest.next(self.now), self.host.next());
        let timers = self.workers.iter().map(Engine::next_timeout).fold(None, earlier);
        let engine = earlier(timers, self.link.ready_at());
        let waiting = |mesh: &SimMesh| (0..self.workers.len()).any(|worker| mesh.waiting(worker) > 0);
        let inboxes = self.mesh.as_ref().is_some_and(waiting).then_some(self.now);
        earlier(earlier(network, sides), earlier(engine, inboxes))
    }

    fn guest_turn(&mut self) {
        while let Some(frame) = self.down.receive(self.now) {
            self.note("   ->", Offload::NONE, &frame);
            self.guest.receive(&frame, self.now);
        }
        for frame in self.guest.poll(self.now) {
            self.note("<-   ", Offload::NONE, &frame);
            self.up.send(frame, self.now);
        }
    }

    /// Runs one turn of each worker's loop: frames, events, free space on the link, timers, and deferred work.
    fn engine_turn(&mut self) -> Result<(), String> {
        let mut arrived = Vec::new();
        while arrived.len() < BATCH
            && let Some(frame) = self.up.receive(self.now)
        {
            arrived.push(frame);
        }
        self.inboxes();
        self.frames(arrived);
        self.host.tick(self.now);
        for (flow, ready) in self.host.events() {
            if self.trace.is_some() {
                self.record(&format!("event {flow:?} {ready:?}"));
            }
            let worker = match flow.kind {
                // All workers listen on the port, and the kernel wakes one of them (EPOLLEXCLUSIVE).
                Kind::Listener if self.mesh.is_some() => self.rng.size(0..=self.workers.len() - 1),
                _ => flow.worker.0.into(),
            };
            self.workers[worker].handle_socket(flow, ready, &mut self.link, &mut self.host, self.now);
        }
        let room = self.link.take_room_event(self.now);
        for engine in &mut self.workers {
            turn::handle_due(engine, &mut self.link, &mut self.host, room, self.now);
            turn::handle_all_ready(engine, &mut self.link, &mut self.host, self.now)?;
        }
        self.link.flush();
        for (offload, frame) in self.link.take() {
            self.note("  <- ", offload, &frame);
            let (_, packet) = Packet::parse(offload, &frame)?;
            self.monitor.down(&packet);
            for part in split(&mut self.rng, self.loose, offload, &frame)? {
                self.down.send(part, self.now);
            }
        }
        Ok(())
    }

    fn frames(&mut self, arrived: Vec<Vec<u8>>) {
        let mut merged = merge(&mut self.rng, self.merging, arrived);
        for (offload, frame) in &merged {
            self.note(" ->  ", *offload, frame);
            if let Ok((_, packet)) = Packet::parse(*offload, frame) {
                self.monitor.up(&packet);
            }
        }
        let heads: Vec<Vec<u8>> = merged
            .iter()
            .map(|(_, frame)| frame[..frame.len().min(pontoon_wire::frame::HEAD)].to_vec())
            .collect();
        let metas: Vec<(Offload, usize)> = merged
            .iter()
            .map(|(offload, frame)| (*offload, frame.len()))
            .collect();
        // Link memory of a guest is fragmented, so each frame is split over several slices at random.
        let parts: Vec<Vec<VolatileSlice<'_>>> = merged
            .iter_mut()
            .map(|(_, frame)| {
                let cut = self.rng.size(0..=frame.len());
                let (a, b) = frame.split_at_mut(cut);
                [a, b]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .map(VolatileSlice::from)
                    .collect()
            })
            .collect();
        let frames: Vec<Frame<'_>> = heads
            .iter()
            .zip(&parts)
            .zip(&metas)
            .map(|((head, parts), &(offload, len))| Frame {
                offload,
                head,
                parts,
                len,
            })
            .collect();
        // With one worker, a burst contains all frames; with several, each frame is steered to a worker.
        let queues: Vec<usize> = match self.workers.len() {
            1 => vec![0; frames.len()],
            count => frames
                .iter()
                .map(|frame| steer(&mut self.rng, frame, self.missteering) % count)
                .collect(),
        };
        for (queue, engine) in self.workers.iter_mut().enumerate() {
            let pairs = frames.iter().zip(&queues);
            let burst: Vec<_> = pairs
                .filter(|(_, of)| **of == queue)
                .map(|(frame, _)| *frame)
                .collect();
            if !burst.is_empty() {
                engine.handle_frames(&burst, &mut self.link, &mut self.host, self.now);
            }
        }
    }

    /// Delivers frames that workers have handed over, at once or some turns later.
    fn inboxes(&mut self) {
        let Some(mesh) = &self.mesh else { return };
        for (worker, engine) in self.workers.iter_mut().enumerate() {
            if let Some(mac) = mesh.guest_mac() {
                engine.set_guest_mac(mac);
            }
            if self.rng.chance(300) {
                continue;
            }
            let most = self.rng.size(1..=BATCH);
            mesh.serve(worker, most, |frames| {
                engine.handle_handed(frames, &mut self.link, &mut self.host, self.now);
            });
        }
    }

    fn judge(&self) -> Result<(), String> {
        let panics: u64 = self.workers.iter().map(|engine| engine.counters().panics).sum();
        if panics > self.host.panics() {
            return Err("a handler panicked".into());
        }
        let mesh = self.mesh.as_ref().map(SimMesh::wrong).unwrap_or_default();
        let wrong = [
            ("link", self.link.wrong()),
            ("host", self.host.wrong()),
            ("guest", self.guest.wrong()),
            ("monitor", self.monitor.wrong()),
            ("mesh", &mesh[..]),
        ];
        match wrong.iter().find_map(|(who, wrong)| Some((who, wrong.first()?))) {
            Some((who, what)) => Err(format!("{who}: {what}")),
            None => Ok(()),
        }
    }

    /// Returns a description of the world's state for the message of a failure.
    #[must_use]
    pub fn state(&self) -> String {
        let mut text = format!(
            "after {:?}: {} flows, {} bytes of pool, {} sockets\n",
            self.now.since(self.start),
            self.flows(),
            self.pool_in_use(),
            self.host.open()
        );
        for report in self.guest.reports() {
            let _ = writeln!(
                text,
                "  guest {} {:?} {:?}",
                report.port, report.outcome, report.app
            );
        }
        for report in self.host.reports() {
            let _ = writeln!(text, "  host {report:?}");
        }
        text
    }

    fn note(&mut self, way: &str, offload: Offload, frame: &[u8]) {
        if self.trace.is_some() {
            let line = match Packet::parse(offload, frame) {
                Ok((_, packet)) => format!("{way} {packet:?} {:?}", offload.segmentation),
                Err(error) => format!("{way} {} bytes: {error}", frame.len()),
            };
            self.record(&line);
        }
    }

    fn record(&mut self, line: &str) {
        let at = self.now.since(self.start);
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{:>12.6} {line}", at.as_secs_f64());
        }
    }
}

/// Returns the index of the worker at which a frame arrives, as the kernel's steering would select it.
fn steer(rng: &mut Rng, frame: &Frame<'_>, missteering: u32) -> usize {
    if rng.chance(missteering) {
        return rng.size(0..=usize::from(u16::MAX));
    }
    // Only fields that all frames of one flow share may be hashed.
    match pontoon_wire::frame::parse(frame.head, frame.len).map(|parsed| parsed.body) {
        Ok(Body::Ip(_, Transport::Tcp(tcp))) => usize::from(tcp.source_port ^ tcp.destination_port),
        Ok(Body::Ip(_, Transport::Udp(udp))) => usize::from(udp.source_port ^ udp.destination_port),
        _ => 0,
    }
}

/// Largest number of frames that the engine receives in one burst.
const BATCH: usize = 64;

/// Limit on turns at one virtual time, and on rounds in one turn; more indicate a busy loop.
const MOST_TURNS: u32 = 20_000;

/// Limit on steps of one world; more indicate a loop that does not end.
const MOST_STEPS: u32 = 500_000;
