//! The cost of idle TCP connections: the stack's memory for each, and the round trip of another connection.

use std::time::Duration;

use crate::job::Job;
use crate::run::measurement::{JobRequest, Measurement, Observation};
use crate::scenario::{CellSpec, Profile, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "idle-flows",
    title: "Idle connections",
    about: "What does an idle connection cost, in memory and in the latency of others?",
    cells,
};

/// Rate at which a slow stack opens connections, for the deadline.
const CONNECTS_PER_SECOND: f64 = 1000.0;
/// Rate at which a typical stack opens connections, for the estimate of the duration.
const USUAL_CONNECTS_PER_SECOND: f64 = 8000.0;

/// The largest number of flows that is measured in every round: more take minutes if a stack is slow.
const REPEATED: u32 = 10_000;

fn cells(profile: Profile) -> Vec<CellSpec> {
    let flows: &[u32] = profile.pick(&[0, 10_000], &[0, 10_000, 100_000]);
    // Ten thousand connections take about a second to open.
    let repeated = profile.pick(0, REPEATED);
    let spec = |flows: &u32| spec(*flows).once(*flows > repeated);
    flows.iter().map(spec).collect()
}

fn spec(flows: u32) -> CellSpec {
    let opening = f64::from(flows) / USUAL_CONNECTS_PER_SECOND;
    let spec = CellSpec::new(
        &SCENARIO,
        &[("flows", &flows.to_string())],
        "p99_us",
        Unit::Transaction,
        move |measurement| measure(flows, measurement),
    );
    CellSpec {
        cost: (spec.cost.0, spec.cost.1 + opening),
        ..spec
    }
}

fn measure(flows: u32, measurement: &Measurement<'_>) -> Observation {
    let mut observation = measurement.request(JobRequest {
        start: Duration::from_secs_f64(f64::from(flows) / CONNECTS_PER_SECOND),
        memory: true,
        ..JobRequest::usual(measurement, Job::IdleFlows { flows })
    });
    // The round trips wake the stack, so wakeups are not a property of idle flows.
    observation.values.remove("wakeups_per_s");
    let without = measurement
        .earlier
        .iter()
        .find(|sample| sample.cell == format!("{}/0", SCENARIO.name))
        .and_then(|sample| sample.values.get("rss_bytes"));
    if let (Some(with), Some(without), 1..) = (observation.values.get("rss_bytes"), without, flows) {
        observation.set("bytes_per_flow", (with - without).max(0.0) / f64::from(flows));
    }
    observation
}
