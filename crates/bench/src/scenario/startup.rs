//! How long a stack takes to run `true`, and until the first byte has come back from the host.

use std::time::{Duration, Instant};

use crate::host::TOUCH;
use crate::run::asking::{Answer, Asking, Until};
use crate::scenario::{Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "startup",
    title: "Start",
    about: "How long until a command runs behind the stack?",
    questions: |_| vec![Question::new(&SCENARIO, &[], "start_us", Unit::Nothing, ask)],
};

/// At least.
const TIMES: usize = 3;

/// The medians of as many starts as there is time for.
fn ask(asking: &Asking<'_>) -> Answer {
    let begun = Instant::now();
    let (mut starts, mut first_bytes) = (Vec::new(), Vec::new());
    while starts.len() < TIMES || begun.elapsed().as_secs_f64() < asking.duration {
        let place = asking.place();
        let touch = [
            asking.host.client.clone().into(),
            TOUCH.into(),
            place.server.to_string().into(),
            asking.ports.echo.to_string().into(),
        ];
        let timed = asking
            .time(&["true".into()], Until::End)
            .and_then(|start| Ok((start, asking.time(&touch, Until::FirstLine)?)));
        match timed {
            Ok((start, first_byte)) => {
                starts.push(start);
                first_bytes.push(first_byte);
            }
            Err(answer) => return *answer,
        }
    }
    let mut answer = Answer::measured();
    answer.set("start_us", median(starts));
    answer.set("first_byte_us", median(first_bytes));
    answer
}

/// In microseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
