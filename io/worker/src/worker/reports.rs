//! Reports of a worker's counters and state.

use pontoon_engine::{Counters, siblings};
use pontoon_link::{Link, LinkCounters};
use pontoon_sandbox::trap;
use tracing::debug;

use super::Worker;
use crate::messages::{BATCHES, CONNECT_TIMES, Distribution, PortError, Report, Stats};

impl<L: Link> Worker<L> {
    /// Reports the worker's counters and state for the request `round`.
    pub(super) fn answer(&self, round: u64) {
        let counters = self.engine.counters().iter();
        let stats = Stats {
            round,
            worker: self.engine.worker().0,
            flows: self.engine.flows() as u64,
            pool_bytes: self.engine.pool_in_use() as u64,
            rules: self.engine.egress().counts().map(|(_, hits)| hits).collect(),
            port_errors: self.port_errors.values().take(PortError::MOST).cloned().collect(),
            histograms: vec![
                Distribution::of(CONNECT_TIMES, self.engine.connect_times()),
                Distribution::of(BATCHES, &self.bursts),
            ],
            counters: counters
                .chain(self.link_counters().iter())
                .chain(self.of_the_process())
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        };
        self.report(&Report::Stats(stats));
    }

    /// Sends a report to the supervisor. If the socket has no room, the report is lost, and the supervisor's request times
    /// out.
    pub(super) fn report(&self, report: &Report) {
        if let Err(error) = self.reports.try_send(report) {
            debug!("cannot send a report to the supervisor: {error}");
        }
    }

    /// Returns the counters of the process, which do not belong to one worker.
    fn of_the_process(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let layers = self.sandbox.iter();
        let layers = layers.flat_map(|layers| layers.counts().chain([("sandbox_refused", trap::refused())]));
        let first = self.engine.worker() == siblings::FIRST;
        layers.chain(first.then(|| self.capture_control.counts()).into_iter().flatten())
    }

    /// Returns the counters of the worker.
    pub(crate) fn tally(&self) -> Tally {
        Tally {
            engine: *self.engine.counters(),
            link: self.link_counters(),
            flows: self.engine.flows(),
        }
    }

    /// Returns the counters of the link, with the malformed frames of its bursts.
    fn link_counters(&self) -> LinkCounters {
        LinkCounters {
            malformed: self.malformed,
            ..self.link.counters()
        }
    }
}

/// Counters of one worker, or their sum over several workers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    engine: Counters,
    link: LinkCounters,
    /// Number of flows at the end.
    flows: usize,
}

impl Tally {
    /// Adds the counters of another worker.
    pub(crate) fn add(&mut self, other: &Self) {
        self.engine.add(&other.engine);
        self.link.add(&other.link);
        self.flows += other.flows;
    }

    pub(crate) fn log(&self) {
        let counters = self.engine.iter().chain(self.link.iter());
        let rest = [("flows", self.flows as u64), ("sandbox_refused", trap::refused())];
        for (name, count) in counters.chain(rest).filter(|(_, count)| *count > 0) {
            debug!("{name} {count}");
        }
    }
}
