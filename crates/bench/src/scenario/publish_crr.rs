//! The same as `crr` inbound: the host connects to a port that the guest publishes on the host's loopback.

use crate::job::Job;
use crate::run::asking::Asking;
use crate::scenario::{Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "publish-crr",
    about: "connect, request, response, close, from the host to a published port",
    questions: |_| vec![question()],
};

/// Below the ranges from which kernels choose ports, and free: nobody else is in these namespaces.
const PORT: u16 = 1080;

fn question() -> Question {
    let ask = |asking: &Asking<'_>| {
        asking.client(Job::PublishConnect {
            address: asking.place().published,
            port: PORT,
        })
    };
    Question {
        publish: Some(PORT),
        ..Question::new(&SCENARIO, &[("clients", "1")], "p50_us", Unit::Transaction, ask)
    }
}
