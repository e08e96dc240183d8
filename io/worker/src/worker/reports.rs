//! A worker's statistics, and its reports to the supervisor.

use pontoon_engine::{Counters, Instant};
use pontoon_link::{Link, LinkCounters};
use pontoon_sandbox::{Layers, trap};
use tracing::debug;

use super::Worker;
use crate::messages::{Confirmation, PortError, Report};
use crate::stats::{Gauges, INTERVAL, ProcessCounters, Values};

impl<L: Link> Worker<L> {
    /// Publishes the worker's statistics. See [`crate::stats`].
    #[inline]
    pub(crate) fn publish(&mut self, now: Instant) {
        self.published_at = now;
        let values = Values {
            gauges: Gauges {
                flows: self.engine.flows() as u64,
                pool_bytes: self.engine.pool_in_use() as u64,
                tls_proving: self.engine.proving().into(),
            },
            layers: self.sandbox.as_ref().map_or([0; _], Layers::gauges),
            link: self.link_counters(),
        };
        let egress = self.engine.egress();
        let rules = Some((self.rules_generation, egress.matches()));
        let changed = (self.published_rules != rules).then(|| (self.rules_generation, egress.hits()));
        self.published_rules = rules;
        self.stats.publish(
            &values,
            self.engine.counters(),
            (self.engine.histograms(), &self.histograms),
            changed,
        );
        self.process_stats.raise(&ProcessCounters {
            sandbox_refused: trap::refused(),
            ..ProcessCounters::default()
        });
    }

    /// Publishes the statistics of a worker that does not sleep, if the last time was an [`INTERVAL`] ago.
    #[inline]
    pub(super) fn publish_awake(&mut self, now: Instant) {
        if now.since(self.published_at) >= INTERVAL {
            self.publish(now);
        }
    }

    /// Confirms that all earlier updates were applied.
    pub(super) fn confirm(&mut self, round: u64, now: Instant) {
        self.publish(now);
        let ended = std::mem::take(&mut self.ended).into();
        self.report(&Report::Confirmed(Confirmation {
            round,
            worker: self.engine.worker().0,
            port_errors: self.port_errors.values().take(PortError::MOST).cloned().collect(),
            ended,
        }));
    }

    /// Sends a report to the supervisor. If the socket has no room, the report is lost, and the supervisor's request times
    /// out.
    pub(super) fn report(&self, report: &Report) {
        if let Err(error) = self.reports.try_send(report) {
            debug!("cannot send a report to the supervisor: {error}");
        }
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
            link_malformed: self.malformed,
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
