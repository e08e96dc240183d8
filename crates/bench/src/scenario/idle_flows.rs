//! What open, silent connections cost: memory of the stack for each, and the round trip beside them.

use std::time::Duration;

use crate::job::Job;
use crate::run::asking::{Answer, Asking, Request};
use crate::scenario::{Profile, Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "idle-flows",
    title: "Idle connections",
    about: "What does an open, silent connection cost in memory and in others' latency?",
    questions,
};

/// A stack that makes a thousand connections in a second is slow.
const CONNECTS_PER_SECOND: f64 = 1000.0;
/// What to expect of one that is not.
const USUAL_CONNECTS_PER_SECOND: f64 = 8000.0;

/// More take minutes where a stack is slow, so that they are opened in one round only.
const REPEATED: u32 = 10_000;

fn questions(profile: Profile) -> Vec<Question> {
    let flows: &[u32] = profile.pick(&[0, 10_000], &[0, 10_000, 100_000]);
    // Ten thousand take a second to open.
    let repeated = profile.pick(0, REPEATED);
    let question = |flows: &u32| question(*flows).once(*flows > repeated);
    flows.iter().map(question).collect()
}

fn question(flows: u32) -> Question {
    let opening = f64::from(flows) / USUAL_CONNECTS_PER_SECOND;
    let question = Question::new(
        &SCENARIO,
        &[("flows", &flows.to_string())],
        "p99_us",
        Unit::Transaction,
        move |asking| ask(flows, asking),
    );
    Question {
        cost: (question.cost.0, question.cost.1 + opening),
        ..question
    }
}

fn ask(flows: u32, asking: &Asking<'_>) -> Answer {
    let mut answer = asking.request(Request {
        start: Duration::from_secs_f64(f64::from(flows) / CONNECTS_PER_SECOND),
        memory: true,
        ..Request::usual(asking, Job::IdleFlows { flows })
    });
    // It is not idle.
    answer.values.remove("wakeups_per_s");
    let without = asking
        .earlier
        .iter()
        .find(|sample| sample.cell == format!("{}/0", SCENARIO.name))
        .and_then(|sample| sample.values.get("rss_bytes"));
    if let (Some(with), Some(without), 1..) = (answer.values.get("rss_bytes"), without, flows) {
        answer.set("bytes_per_flow", (with - without).max(0.0) / f64::from(flows));
    }
    answer
}
