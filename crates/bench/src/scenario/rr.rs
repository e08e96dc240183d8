//! How long one byte takes there and back, over one TCP connection.

use crate::job::Job;
use crate::scenario::{Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "rr",
    about: "round trip of one byte over TCP",
    questions: |_| {
        vec![Question::job(
            &SCENARIO,
            &[],
            "p50_us",
            Unit::Transaction,
            Job::RoundTrip,
        )]
    },
};
