//! UDP throughput when the sender passes many datagrams to the kernel in one call (`UDP_SEGMENT`).

use crate::job::Job;
use crate::scenario::{CellSpec, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "udp-gso",
    title: "UDP with segmentation offload",
    about: "How many datagrams per second arrive if many go in one send?",
    cells: |_| vec![spec("gro", true), spec("plain", false)],
};

/// Number of datagrams in one send: 56,000 bytes.
const SEGMENTS: u16 = 40;
/// UDP payload of each datagram in bytes.
const SIZE: u16 = 1400;

fn spec(receiver: &str, gro: bool) -> CellSpec {
    let job = Job::SegmentedDatagrams {
        size: SIZE,
        segments: SEGMENTS,
        gro,
    };
    CellSpec::job(&SCENARIO, &[("receiver", receiver)], "per_s", Unit::Datagram, job)
}
