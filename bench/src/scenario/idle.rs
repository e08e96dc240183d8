//! The cost of an idle stack.

use crate::job::Job;
use crate::run::measurement::{JobRequest, Measurement};
use crate::scenario::{CellSpec, Profile, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "idle",
    title: "Idle",
    about: "What does an idle stack cost?",
    // A measurement has the same length in every profile.
    cells: |profile| vec![spec().once(profile == Profile::Quick)],
};

/// The least length in seconds, to include timers of a second or two.
const LENGTH: f64 = 3.0;

fn spec() -> CellSpec {
    let measure = |measurement: &Measurement<'_>| {
        measurement.request(JobRequest {
            duration: measurement.duration.max(LENGTH),
            memory: true,
            ..JobRequest::usual(measurement, Job::Idle)
        })
    };
    let spec = CellSpec::new(&SCENARIO, &[], "wakeups_per_s", Unit::Nothing, measure);
    CellSpec {
        cost: (0.0, spec.cost.1 + LENGTH),
        ..spec
    }
}
