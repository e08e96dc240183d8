//! The round trip of one datagram.

use crate::job::Job;
use crate::scenario::{CellSpec, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "udp-rr",
    title: "UDP round trip",
    about: "How long does a datagram take to the server and back?",
    cells: |_| {
        let job = Job::DatagramRoundTrip;
        vec![CellSpec::job(&SCENARIO, &[], "p50_us", Unit::Transaction, job)]
    },
};
