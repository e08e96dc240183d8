//! Test that the worker allocates nothing in steady state: ten seconds of each workload, after its warm-up, through a real tap.
//!
//! Every workload is a test of its own, and runs in a process of its own with one worker, whose thread is judged.
//! `--nocapture` shows how much each did.

#[cfg(test)]
mod counting;
#[cfg(test)]
mod workload;
#[cfg(test)]
mod world;

#[cfg(test)]
use pontoon_test_support::namespace;

#[test]
fn up() {
    namespace::run("up", || world::judge(&workload::UP));
}

#[test]
fn down() {
    namespace::run("down", || world::judge(&workload::DOWN));
}

#[test]
fn rr() {
    namespace::run("rr", || world::judge(&workload::RR));
}

#[test]
fn crr() {
    namespace::run("crr", || world::judge(&workload::CRR));
}

#[test]
fn udp() {
    namespace::run("udp", || world::judge(&workload::UDP));
}

#[test]
fn udp_rr() {
    namespace::run("udp_rr", || world::judge(&workload::UDP_RR));
}
