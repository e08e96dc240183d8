//! The time of a DNS query through the stack's DNS forwarder to a resolver on the host; `direct` and `veth` query the
//! resolver directly.

use crate::job::Job;
use crate::run::measurement::{Measurement, Observation};
use crate::scenario::{CellSpec, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "dns",
    title: "DNS",
    about: "How many names per second does the guest's resolver answer?",
    cells: |_| {
        vec![CellSpec::new(
            &SCENARIO,
            &[],
            "p50_us",
            Unit::Transaction,
            measure,
        )]
    },
};

fn measure(measurement: &Measurement<'_>) -> Observation {
    if let Some(why) = &measurement.host.no_resolver {
        return Observation::unreachable(format!("the harness has no resolver: {why}"));
    }
    measurement.client(Job::Names {
        resolver: measurement.addresses().resolver,
    })
}
