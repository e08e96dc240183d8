//! The round trip of an ICMP echo request to a host one hop behind the host of the harness.

use crate::job::Job;
use crate::network::OUTSIDE;
use crate::scenario::{CellSpec, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "icmp-rr",
    title: "Ping",
    about: "How long does an ICMP echo request take to be answered?",
    cells: |_| {
        let job = Job::Echo { address: OUTSIDE };
        vec![CellSpec::job(&SCENARIO, &[], "p50_us", Unit::Transaction, job)]
    },
};
