//! How long one datagram takes there and back.

use crate::job::Job;
use crate::scenario::{Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "udp-rr",
    title: "UDP round trip",
    about: "How long does a datagram take to the server and back?",
    questions: |_| {
        let job = Job::DatagramRoundTrip;
        vec![Question::job(&SCENARIO, &[], "p50_us", Unit::Transaction, job)]
    },
};
