//! CPU time, wakeups and memory of an idle stack.

use crate::job::Job;
use crate::run::measurement::{JobRequest, Measurement};
use crate::scenario::{CellSpec, Profile, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "idle",
    title: "Idle",
    about: "What does an idle stack cost?",
    // A measurement has the same duration in both profiles, so one round is enough for the quick profile.
    cells: |profile| vec![spec().once(profile == Profile::Quick)],
};

/// The least duration in seconds, which contains timers of one or two seconds.
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
