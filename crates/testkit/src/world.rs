//! The world: drives guest, network, engine and host in virtual time, and fails on anything that should not be.

use core::fmt::Write as _;
use core::time::Duration;

use pontoon_engine::{Config, Engine, Frame, Instant, Transmit, WorkerId};
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
use crate::rng::Rng;

/// Everything about a world that is not what its applications do.
#[derive(Clone, Debug)]
pub struct WorldPlan {
    /// What the engine is told.
    pub config: Config,
    /// The network from guest to engine.
    pub up: Impairment,
    /// The network from engine to guest.
    pub down: Impairment,
    /// How the guest's segments are put together.
    pub merging: Merging,
    /// The engine's frames are cut at sizes of chance, not as they ask for.
    pub loose: bool,
    /// The engine's link.
    pub link: LinkPlan,
    /// The host.
    pub host: HostPlan,
}

/// A world with a guest in it.
pub struct World<G> {
    /// The engine.
    pub engine: Engine<SimHost>,
    /// The host.
    pub host: SimHost,
    /// The guest.
    pub guest: G,
    /// The engine's link.
    pub link: SimLink,
    /// From guest to engine.
    pub up: Pipe,
    /// From engine to guest.
    pub down: Pipe,
    monitor: Monitor,
    merging: Merging,
    loose: bool,
    rng: Rng,
    now: Instant,
    start: Instant,
    /// Turns since time last moved, and in all.
    turns: u32,
    steps: u32,
    trace: Option<String>,
}

impl<G: Guest> World<G> {
    /// A world in which nothing has happened. `guest` is made with a source of chance of its own.
    pub fn new(plan: WorldPlan, mut rng: Rng, guest: impl FnOnce(Rng) -> G) -> Self {
        let start = Instant(rng.within(1..=1 << 40));
        Self {
            engine: Engine::new(plan.config, WorkerId(0), rng.key(), start),
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

    /// Keeps a line for every packet from now on.
    pub fn keep_trace(&mut self) {
        self.trace = Some(String::new());
    }

    /// The lines that were kept.
    #[must_use]
    pub fn trace(&self) -> &str {
        self.trace.as_deref().unwrap_or_default()
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Moves time to the next thing that happens, and lets it happen. False: nothing ever will.
    ///
    /// # Errors
    /// Something is wrong; the text says what.
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
        self.judge()?;
        Ok(true)
    }

    /// Steps until `done` says so.
    ///
    /// # Errors
    /// Something is wrong, nothing happens any more, or `limit` has passed.
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

    /// Steps until every application is done and nothing is left of any connection.
    ///
    /// # Errors
    /// As [`Self::run_until`]; or something is left over.
    pub fn run_to_end(&mut self, limit: Duration) -> Result<(), String> {
        self.run_until(limit, |world| {
            world.engine.flows() == 0
                && world.host.open() == 0
                && world.host.busy() == 0
                && world
                    .guest
                    .reports()
                    .iter()
                    .all(|report| report.outcome.is_some())
        })?;
        match self.engine.pool_in_use() {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes of pool memory are left over")),
        }
    }

    /// Steps for some time, or until nothing happens.
    ///
    /// # Errors
    /// Something is wrong.
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
        let engine = earlier(self.engine.next_timeout(), self.link.ready_at());
        earlier(earlier(network, sides), engine)
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

    /// One turn of a worker's loop: frames, events, room on the link, timers, and whoever has more to do.
    fn engine_turn(&mut self) -> Result<(), String> {
        let mut arrived = Vec::new();
        while arrived.len() < BATCH
            && let Some(frame) = self.up.receive(self.now)
        {
            arrived.push(frame);
        }
        self.frames(arrived);
        self.host.tick(self.now);
        for (flow, ready) in self.host.events() {
            if self.trace.is_some() {
                self.say(&format!("event {flow:?} {ready:?}"));
            }
            self.engine
                .handle_socket(flow, ready, &mut self.link, &mut self.host, self.now);
        }
        if self.link.became_ready(self.now) {
            self.engine
                .handle_link_ready(&mut self.link, &mut self.host, self.now);
        }
        if self.engine.next_timeout().is_some_and(|at| at <= self.now) {
            self.engine
                .handle_timeout(&mut self.link, &mut self.host, self.now);
        }
        let mut rounds = 0;
        while self.engine.handle_ready(&mut self.link, &mut self.host, self.now) {
            rounds += 1;
            if rounds > MOST_TURNS {
                return Err("a flow is always ready for more: a busy loop".into());
            }
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
        // Frames lie in link memory in pieces, cut anywhere.
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
        if !frames.is_empty() {
            self.engine
                .handle_frames(&frames, &mut self.link, &mut self.host, self.now);
        }
    }

    fn judge(&self) -> Result<(), String> {
        let wrong = [
            ("link", self.link.wrong()),
            ("host", self.host.wrong()),
            ("guest", self.guest.wrong()),
            ("monitor", self.monitor.wrong()),
        ];
        match wrong.iter().find_map(|(who, wrong)| Some((who, wrong.first()?))) {
            Some((who, what)) => Err(format!("{who}: {what}")),
            None => Ok(()),
        }
    }

    /// What is going on, for a failure's message.
    #[must_use]
    pub fn state(&self) -> String {
        let mut text = format!(
            "after {:?}: {} flows, {} bytes of pool, {} sockets\n",
            self.now.since(self.start),
            self.engine.flows(),
            self.engine.pool_in_use(),
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
            self.say(&line);
        }
    }

    fn say(&mut self, line: &str) {
        let at = self.now.since(self.start);
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{:>12.6} {line}", at.as_secs_f64());
        }
    }
}

/// Frames that the engine gets at one time.
const BATCH: usize = 64;

/// Turns without time moving, and rounds in one turn, that are no accident.
const MOST_TURNS: u32 = 20_000;

/// Steps of one world that are no accident.
const MOST_STEPS: u32 = 500_000;
