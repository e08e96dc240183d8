//! Replaces the engine of a world by a successor with its state, at random turns.

use super::SimWorld;
use crate::guest::Guest;
use crate::host::hand_over::succeed;
use crate::rng::Rng;

/// Environment variable with which tests replace the engine that do not do so otherwise.
pub(crate) const ALWAYS: &str = "PONTOON_HAND_OVERS";

/// The choice of the turns after which the engine is replaced.
#[derive(Debug)]
pub(super) struct HandOvers {
    /// Number of turns in 100,000.
    rate: u32,
    /// Number of replacements.
    count: u64,
    rng: Option<Rng>,
}

impl HandOvers {
    /// Without hand-overs, no random number is taken, so that the worlds of a seed do not depend on them.
    pub(super) fn new(rate: u32, rng: &mut Rng) -> Self {
        let rate = match std::env::var_os(ALWAYS) {
            Some(_) if rate == 0 => 10_000,
            Some(_) | None => rate,
        };
        Self {
            rate,
            count: 0,
            rng: (rate > 0).then(|| rng.fork()),
        }
    }
}

impl<G: Guest> SimWorld<G> {
    /// Returns the number of times that the engine was replaced.
    #[must_use]
    pub fn hand_overs(&self) -> u64 {
        self.hand_overs.count
    }

    /// Replaces the engine with all its workers by a successor, or not, at random. In some cases the successor does not begin,
    /// and the engine goes on.
    pub(super) fn hand_over(&mut self) -> Result<(), String> {
        let rate = self.hand_overs.rate;
        let panics = self.host.panics();
        let Some(rng) = &mut self.hand_overs.rng else {
            return Ok(());
        };
        if rng.within(0..=99_999) >= u64::from(rate) {
            return Ok(());
        }
        let mesh = self.mesh.as_ref().map(|mesh| mesh.successor());
        let mut successors = Vec::new();
        for (worker, engine) in self.workers.iter_mut().enumerate() {
            let id = pontoon_engine::WorkerId(worker as u8);
            let siblings = mesh.as_ref().map(|mesh| Box::new(mesh.member(id)) as Box<_>);
            successors.push(succeed(engine, siblings, rng.key(), &mut self.host, self.now)?);
        }
        // A handler that has panicked may have left a claim without a flow.
        if let (Some(old), Some(new), 0) = (&self.mesh, &mesh, panics)
            && old.registered() != new.registered()
        {
            return Err(format!(
                "the mesh is {}, and was {}",
                new.registered(),
                old.registered()
            ));
        }
        if rng.chance(250) {
            for (worker, engine) in self.workers.iter_mut().enumerate() {
                if let Some(mesh) = &self.mesh {
                    let id = pontoon_engine::WorkerId(worker as u8);
                    engine.join(Box::new(mesh.member(id)));
                }
            }
            return Ok(());
        }
        (self.workers, self.mesh) = (successors, mesh);
        self.hand_overs.count += 1;
        self.record("hand-over");
        for engine in &mut self.workers {
            engine.handle_restored(&mut self.link, &mut self.host, self.now);
        }
        self.host.report_all();
        Ok(())
    }
}
