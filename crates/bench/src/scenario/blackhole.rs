//! Whether connects that nobody answers slow down those who talk.

use crate::job::Job;
use crate::network::BLACKHOLE;
use crate::scenario::{Profile, Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "blackhole",
    title: "Round trip beside pending connections",
    about: "Do connections that nobody answers slow the others down?",
    questions,
};

fn questions(profile: Profile) -> Vec<Question> {
    let pending: &[u32] = profile.pick(&[1000], &[0, 100, 1000]);
    let question = |pending: &u32| {
        let job = Job::Blackhole {
            pending: *pending,
            address: BLACKHOLE,
        };
        Question::job(
            &SCENARIO,
            &[("pending", &pending.to_string())],
            "p99_us",
            Unit::Transaction,
            job,
        )
    };
    pending.iter().map(question).collect()
}
