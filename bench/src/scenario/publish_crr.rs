//! Inbound `crr`: the host connects to a port of the guest that is published on the host's loopback.

use crate::job::Job;
use crate::run::measurement::{Measurement, Observation};
use crate::scenario::{CellSpec, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "publish-crr",
    title: "Inbound connection",
    about: "How long does a short connection take from the host to a published port of the guest?",
    cells: |_| vec![spec()],
};

fn spec() -> CellSpec {
    let measure = |measurement: &Measurement<'_>| match measurement.config.publish {
        Some(port) => measurement.client(Job::PublishConnect {
            address: measurement.addresses().published,
            port,
        }),
        None => Observation::failed("no port is published"),
    };
    CellSpec {
        publish: true,
        ..CellSpec::new(
            &SCENARIO,
            &[("clients", "1")],
            "p50_us",
            Unit::Transaction,
            measure,
        )
    }
}
