//! The effect of TCP connections in SYN-SENT, to an address that never answers, on the round trip of another
//! connection.

use crate::job::Job;
use crate::network::BLACKHOLE;
use crate::scenario::{CellSpec, Profile, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "blackhole",
    title: "Round trip with pending connections",
    about: "Do pending connections to an address that never answers slow others down?",
    cells,
};

fn cells(profile: Profile) -> Vec<CellSpec> {
    let pending: &[u32] = profile.pick(&[1000], &[0, 100, 1000]);
    let spec = |pending: &u32| {
        let job = Job::Blackhole {
            pending: *pending,
            address: BLACKHOLE,
        };
        CellSpec::job(
            &SCENARIO,
            &[("pending", &pending.to_string())],
            "p99_us",
            Unit::Transaction,
            job,
        )
    };
    pending.iter().map(spec).collect()
}
