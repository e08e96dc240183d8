//! Clients on the host of a port of the guest that is published on the host's loopback: bulk data, round trips and short
//! connections.

use std::net::IpAddr;

use crate::job::{Direction, Job};
use crate::run::measurement::{Measurement, Observation};
use crate::scenario::{CellSpec, Profile, Scenario, Unit};

pub(super) const UP: Scenario = Scenario {
    name: "publish-up",
    title: "Inbound TCP up",
    about: "How fast do bytes flow from a published port of the guest to a client on the host?",
    cells: |profile| streams(&UP, Direction::Up, profile),
};

pub(super) const DOWN: Scenario = Scenario {
    name: "publish-down",
    title: "Inbound TCP down",
    about: "How fast do bytes flow from a client on the host to a published port of the guest?",
    cells: |profile| streams(&DOWN, Direction::Down, profile),
};

pub(super) const RR: Scenario = Scenario {
    name: "publish-rr",
    title: "Inbound TCP round trip",
    about: "How long does one byte take from the host to a published port of the guest and back?",
    cells: |_| {
        vec![spec(&RR, &[], "p50_us", Unit::Transaction, |address, port| {
            Job::PublishRoundTrip { address, port }
        })]
    },
};

pub(super) const CRR: Scenario = Scenario {
    name: "publish-crr",
    title: "Inbound connection",
    about: "How long does a short connection take from the host to a published port of the guest?",
    cells: |_| {
        let job = |address, port| Job::PublishConnect { address, port };
        vec![spec(&CRR, &[("clients", "1")], "p50_us", Unit::Transaction, job)]
    },
};

const CONGESTION_CONTROL: &str = "cubic";

fn streams(scenario: &'static Scenario, direction: Direction, profile: Profile) -> Vec<CellSpec> {
    let cell = |streams: &u16| {
        let streams = *streams;
        let parameters = [
            ("streams", &*streams.to_string()),
            ("congestion_control", CONGESTION_CONTROL),
        ];
        let job = move |address, port| Job::PublishStream {
            address,
            port,
            direction,
            streams,
        };
        CellSpec {
            congestion_control: Some(CONGESTION_CONTROL),
            ..spec(scenario, &parameters, "mbps", Unit::Gbit, job)
        }
    };
    profile.pick(&[1][..], &[1, 4]).iter().map(cell).collect()
}

/// Returns a cell that runs a job with a published port, at an address of the host.
fn spec(
    scenario: &Scenario,
    parameters: &[(&str, &str)],
    figure: &str,
    unit: Unit,
    job: impl Fn(IpAddr, u16) -> Job + 'static,
) -> CellSpec {
    let measure = move |measurement: &Measurement<'_>| match measurement.config.publish {
        Some(port) => measurement.client(job(measurement.addresses().published, port)),
        None => Observation::failed("no port is published"),
    };
    CellSpec {
        publish: true,
        ..CellSpec::new(scenario, parameters, figure, unit, measure)
    }
}
