//! How long an echo request takes to a host one hop behind ours, and back.

use crate::job::Job;
use crate::network::OUTSIDE;
use crate::scenario::{Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "icmp-rr",
    title: "Ping",
    about: "How long does an ICMP echo take to come back?",
    questions: |_| {
        let job = Job::Echo { address: OUTSIDE };
        vec![Question::job(&SCENARIO, &[], "p50_us", Unit::Transaction, job)]
    },
};
