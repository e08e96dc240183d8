//! TCP throughput up and down: with one connection or several, at the stack's best MTU and at Ethernet's, with two
//! congestion controls. Once per stack and direction, both ends hash all transferred bytes.

use crate::job::{Direction, Job};
use crate::run::measurement::{JobRequest, Measurement, Observation};
use crate::scenario::{CellSpec, Profile, Scenario, Unit};

pub(super) const UP: Scenario = Scenario {
    name: "tcp-up",
    title: "TCP up",
    about: "How fast do bytes flow from the guest to the host? All of them are checked on arrival.",
    cells: |profile| cells(&UP, Direction::Up, profile),
};

pub(super) const DOWN: Scenario = Scenario {
    name: "tcp-down",
    title: "TCP down",
    about: "How fast do bytes flow from the host to the guest? All of them are checked on arrival.",
    cells: |profile| cells(&DOWN, Direction::Down, profile),
};

const ETHERNET_MTU: u16 = 1500;

/// Number of bytes of the transfer that is hashed at both ends.
const HASHED_BYTES: u64 = 64 << 20;
/// Estimated time of the hashed transfer in seconds.
const HASH_LENGTH: f64 = 10.0;

/// Number of streams, congestion control, MTU (`None` is the stack's best).
type Parameters = (u16, &'static str, Option<u16>);

const QUICK: &[Parameters] = &[
    (1, "cubic", None),
    (1, "bbr", None),
    (1, "cubic", Some(ETHERNET_MTU)),
];

const FULL: &[Parameters] = &[
    (1, "cubic", None),
    (4, "cubic", None),
    (16, "cubic", None),
    (1, "bbr", None),
    (4, "bbr", None),
    (16, "bbr", None),
    (1, "cubic", Some(ETHERNET_MTU)),
    (4, "cubic", Some(ETHERNET_MTU)),
    (16, "cubic", Some(ETHERNET_MTU)),
    (1, "bbr", Some(ETHERNET_MTU)),
    (4, "bbr", Some(ETHERNET_MTU)),
    (16, "bbr", Some(ETHERNET_MTU)),
];

fn cells(scenario: &Scenario, direction: Direction, profile: Profile) -> Vec<CellSpec> {
    let timed = profile.pick(QUICK, FULL).iter();
    let timed = timed.map(|(streams, congestion_control, mtu)| CellSpec {
        mtu: *mtu,
        congestion_control: Some(congestion_control),
        ..CellSpec::job(
            scenario,
            &[
                ("streams", &streams.to_string()),
                ("congestion_control", congestion_control),
                ("mtu", &mtu.map_or("best".to_owned(), |mtu| mtu.to_string())),
            ],
            "mbps",
            Unit::Gbit,
            Job::Stream {
                direction,
                streams: *streams,
            },
        )
    });
    timed.chain([hash(scenario, direction)]).collect()
}

fn hash(scenario: &Scenario, direction: Direction) -> CellSpec {
    let job = Job::Hash {
        direction,
        bytes: HASHED_BYTES,
    };
    let measure = move |measurement: &Measurement<'_>| -> Observation {
        let mut observation = measurement.request(JobRequest {
            duration: HASH_LENGTH,
            ..JobRequest::usual(measurement, job.clone())
        });
        if observation.is_measured() {
            observation.set("errors", 0.0);
        }
        observation
    };
    CellSpec {
        cost: (0.0, 2.0),
        ..CellSpec::new(scenario, &[("check", "hash")], "errors", Unit::Nothing, measure).once(true)
    }
}
