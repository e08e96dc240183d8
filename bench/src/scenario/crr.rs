//! The time of a TCP transaction (connect, send a byte, receive one, close), and the rate at which several clients
//! make them.

use crate::job::Job;
use crate::scenario::{CellSpec, Profile, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "crr",
    title: "TCP connect, request, response, close",
    about: "How long does a short connection take, with connect and close?",
    cells,
};

fn cells(profile: Profile) -> Vec<CellSpec> {
    let clients: &[u16] = profile.pick(&[1, 8], &[1, 2, 4, 8]);
    let spec = |clients: &u16| {
        CellSpec::job(
            &SCENARIO,
            &[("clients", &clients.to_string())],
            // One client measures latency, several measure throughput.
            if *clients == 1 { "p50_us" } else { "per_s" },
            Unit::Transaction,
            Job::Connect { clients: *clients },
        )
    };
    clients.iter().map(spec).collect()
}
