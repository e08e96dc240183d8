//! The scenarios: each is one module and one entry of [`SCENARIOS`]. A scenario with values of its parameters is a
//! cell.

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
mod publish;
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
    publish::UP,
    publish::DOWN,
    publish::RR,
    publish::CRR,
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

/// A kind of measurement, with texts for the report and the cells of a profile.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Title for readers who do not know `pontoon bench`.
    pub(crate) title: &'static str,
    /// The question that the scenario answers, in one line.
    pub(crate) about: &'static str,
    pub(crate) cells: fn(Profile) -> Vec<CellSpec>,
}

impl Scenario {
    /// Returns the scenario of this name, or `None` for names that only newer versions know.
    pub(crate) fn of(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }
}

/// The extent of a run: how many cells and rounds are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// Under ten minutes on two cores
    Quick,
    /// Under two hours
    Full,
}

impl Profile {
    /// Returns `full` in the full profile, otherwise `quick`.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// A cell, and the function that measures it.
pub(crate) struct CellSpec {
    pub(crate) cell: Cell,
    /// MTU of the guest's interface in bytes; `None` is the stack's best.
    pub(crate) mtu: Option<u16>,
    /// TCP congestion control of both ends; `None` is the machine's default.
    pub(crate) congestion_control: Option<&'static str>,
    /// True if the stack must publish a TCP port of the guest.
    pub(crate) publish: bool,
    pub(crate) unit: Unit,
    /// The estimated time of a measurement: a multiple of its duration, and additional seconds.
    pub(crate) cost: (f64, f64),
    pub(crate) measure: Box<dyn Fn(&Measurement<'_>) -> Observation>,
}

/// Seconds to start a stack, warm up, and stop the stack.
const OVERHEAD: f64 = 0.4;

impl CellSpec {
    /// Returns a cell that runs one job of the load client for the duration of the measurement.
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

    /// Restricts the measurement of the cell to the first round if `once` is true.
    pub(crate) fn once(mut self, once: bool) -> Self {
        self.cell.once = once;
        self
    }

    /// Returns the estimated time of one measurement in seconds.
    pub(crate) fn seconds(&self, duration: f64) -> f64 {
        self.cost.0 * duration + self.cost.1
    }
}

/// The unit of work of a scenario, by which the CPU time is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Gbit,
    Transaction,
    Datagram,
    Nothing,
}

impl Unit {
    /// Returns the number of units of work that a measurement of `duration` seconds has done, from its figures.
    pub(crate) fn done(self, values: &BTreeMap<String, f64>, duration: f64) -> Option<f64> {
        match self {
            Self::Gbit => values.get("mbps").map(|mbps| mbps / 1000.0 * duration),
            Self::Transaction | Self::Datagram => values.get("per_s").map(|rate| rate * duration),
            Self::Nothing => None,
        }
    }

    /// Returns the suffix of the names of CPU cost metrics, and the factor from seconds to their unit.
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
