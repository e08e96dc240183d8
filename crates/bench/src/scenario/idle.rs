//! What a stack costs while nothing happens.

use crate::job::Job;
use crate::run::asking::{Asking, Request};
use crate::scenario::{Profile, Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "idle",
    title: "Idle",
    about: "What does the stack cost while nothing happens?",
    // It is as long in every profile.
    questions: |profile| vec![question().once(profile == Profile::Quick)],
};

/// At least, in seconds: timers of a second or two should be seen.
const LENGTH: f64 = 3.0;

fn question() -> Question {
    let ask = |asking: &Asking<'_>| {
        asking.request(Request {
            duration: asking.duration.max(LENGTH),
            memory: true,
            ..Request::usual(asking, Job::Idle)
        })
    };
    let question = Question::new(&SCENARIO, &[], "wakeups_per_s", Unit::Nothing, ask);
    Question {
        cost: (0.0, question.cost.1 + LENGTH),
        ..question
    }
}
