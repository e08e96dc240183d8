//! The time in which a stack starts, runs `true` and exits, and the time from its start to the first byte received
//! from the host.

use std::time::{Duration, Instant};

use crate::host::FIRST_BYTE;
use crate::run::measurement::{Measurement, Observation, TimedEvent};
use crate::scenario::{CellSpec, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "startup",
    title: "Startup",
    about: "How long until a command runs behind the stack?",
    cells: |_| vec![CellSpec::new(&SCENARIO, &[], "start_us", Unit::Nothing, measure)],
};

/// The least number of starts in a measurement.
const TIMES: usize = 3;

/// Measures the median of the start times, with as many starts as fit into the duration.
fn measure(measurement: &Measurement<'_>) -> Observation {
    if measurement.stack.boot() > Duration::ZERO {
        return Observation::unreachable("a virtual machine has to boot first");
    }
    let begun = Instant::now();
    let (mut starts, mut first_bytes) = (Vec::new(), Vec::new());
    while starts.len() < TIMES || begun.elapsed().as_secs_f64() < measurement.duration {
        let addresses = measurement.addresses();
        let touch = [
            measurement.host.client.clone().into(),
            FIRST_BYTE.into(),
            addresses.server.to_string().into(),
            measurement.ports.echo.to_string().into(),
        ];
        let timed = measurement
            .time(&["true".into()], TimedEvent::End)
            .and_then(|start| Ok((start, measurement.time(&touch, TimedEvent::FirstLine)?)));
        match timed {
            Ok((start, first_byte)) => {
                starts.push(start);
                first_bytes.push(first_byte);
            }
            Err(observation) => return *observation,
        }
    }
    let mut observation = Observation::measured();
    observation.set("start_us", median(starts));
    observation.set("first_byte_us", median(first_bytes));
    observation
}

/// Returns the median of durations in microseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
