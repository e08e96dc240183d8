//! How long one datagram takes there and back.

use crate::job::Job;
use crate::scenario::{Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "udp-rr",
    about: "round trip of one datagram",
    questions: |_| {
        let job = Job::DatagramRoundTrip;
        vec![Question::job(&SCENARIO, &[], "p50_us", Unit::Transaction, job)]
    },
};
