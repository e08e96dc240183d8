//! The round trip of one byte over one TCP connection.

use crate::job::Job;
use crate::scenario::{CellSpec, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "rr",
    title: "TCP round trip",
    about: "How long does one byte take to the server and back, on an open connection?",
    cells: |_| {
        vec![CellSpec::job(
            &SCENARIO,
            &[],
            "p50_us",
            Unit::Transaction,
            Job::RoundTrip,
        )]
    },
};
