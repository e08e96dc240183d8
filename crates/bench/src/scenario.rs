//! Scenarios: one file and one line in [`SCENARIOS`] each. With parameters, a scenario is a cell.

use std::collections::BTreeMap;

use crate::job::Job;
use crate::run::measurement::{Measurement, Observation};
use crate::schema::Cell;

mod blackhole;
mod crr;
mod dns;
mod icmp_rr;
mod idle;
mod idle_flows;
mod publish_crr;
mod rr;
mod startup;
mod tcp;
mod udp_gso;
mod udp_rate;
mod udp_rr;

/// Every scenario, in the order in which reports show them.
pub(crate) const SCENARIOS: &[Scenario] = &[
    tcp::UP,
    tcp::DOWN,
    rr::SCENARIO,
    crr::SCENARIO,
    publish_crr::SCENARIO,
    udp_rate::SCENARIO,
    udp_gso::SCENARIO,
    udp_rr::SCENARIO,
    blackhole::SCENARIO,
    idle_flows::SCENARIO,
    startup::SCENARIO,
    idle::SCENARIO,
    dns::SCENARIO,
    icmp_rr::SCENARIO,
];

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// For readers who do not know the bench.
    pub(crate) title: &'static str,
    /// What it asks, in a line.
    pub(crate) about: &'static str,
    pub(crate) cells: fn(Profile) -> Vec<CellSpec>,
}

/// How much is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// Under ten minutes on two cores
    Quick,
    /// Under two hours
    Full,
}

impl Profile {
    /// `full` in the full profile, else `quick`.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// A cell and how it is measured.
pub(crate) struct CellSpec {
    pub(crate) cell: Cell,
    /// Of the guest's interface; none is the stack's best.
    pub(crate) mtu: Option<u16>,
    /// Of both ends; none is the machine's.
    pub(crate) congestion_control: Option<&'static str>,
    /// Whether a TCP port of the guest must be published.
    pub(crate) publish: bool,
    pub(crate) unit: Unit,
    /// What it takes, as lengths of a measurement and seconds beyond.
    pub(crate) cost: (f64, f64),
    pub(crate) measure: Box<dyn Fn(&Measurement<'_>) -> Observation>,
}

/// To start a stack, warm up, and end it, in seconds.
const OVERHEAD: f64 = 0.4;

impl CellSpec {
    /// A spec that one job answers, in the usual way.
    pub(crate) fn job(
        scenario: &Scenario,
        parameters: &[(&str, &str)],
        figure: &str,
        unit: Unit,
        job: Job,
    ) -> Self {
        Self::new(scenario, parameters, figure, unit, move |measurement| {
            measurement.client(job.clone())
        })
    }

    pub(crate) fn new(
        scenario: &Scenario,
        parameters: &[(&str, &str)],
        figure: &str,
        unit: Unit,
        measure: impl Fn(&Measurement<'_>) -> Observation + 'static,
    ) -> Self {
        let values = parameters.iter().map(|(_, value)| *value);
        let name = std::iter::once(scenario.name)
            .chain(values)
            .collect::<Vec<_>>()
            .join("/");
        let parameters = parameters
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self {
            cell: Cell {
                name,
                scenario: scenario.name.to_owned(),
                parameters: parameters.collect::<BTreeMap<_, _>>(),
                figure: figure.to_owned(),
                once: false,
            },
            mtu: None,
            congestion_control: None,
            publish: false,
            unit,
            cost: (1.0, OVERHEAD),
            measure: Box::new(measure),
        }
    }

    /// The same, asked in the first round only where `once` says so.
    pub(crate) fn once(mut self, once: bool) -> Self {
        self.cell.once = once;
        self
    }

    /// Estimated seconds of one measurement.
    pub(crate) fn seconds(&self, duration: f64) -> f64 {
        self.cost.0 * duration + self.cost.1
    }
}

/// What a scenario counts, to which CPU time is related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Gbit,
    Transaction,
    Datagram,
    Nothing,
}

impl Unit {
    /// How many there were, by the figures of a measurement of `duration` seconds.
    pub(crate) fn done(self, values: &BTreeMap<String, f64>, duration: f64) -> Option<f64> {
        match self {
            Self::Gbit => values.get("mbps").map(|mbps| mbps / 1000.0 * duration),
            Self::Transaction | Self::Datagram => values.get("per_s").map(|rate| rate * duration),
            Self::Nothing => None,
        }
    }

    /// The end of the names of the costs of one, and what a second is in their unit.
    pub(crate) fn costs(self) -> (Option<&'static str>, f64) {
        match self {
            Self::Gbit => (Some("gbit_s"), 1.0),
            Self::Transaction => (Some("transaction_us"), 1e6),
            Self::Datagram => (Some("datagram_us"), 1e6),
            Self::Nothing => (None, 1.0),
        }
    }
}

#[cfg(test)]
mod tests;
