//! The same as `crr` inbound: the host connects to a port that the guest publishes on the host's loopback.

use crate::job::Job;
use crate::run::asking::{Answer, Asking};
use crate::scenario::{Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "publish-crr",
    title: "Inbound connection",
    about: "How long does a short connection take from the host to a published port of the guest?",
    questions: |_| vec![question()],
};

fn question() -> Question {
    let ask = |asking: &Asking<'_>| match asking.wish.publish {
        Some(port) => asking.client(Job::PublishConnect {
            address: asking.place().published,
            port,
        }),
        None => Answer::failed("no port is published"),
    };
    Question {
        publish: true,
        ..Question::new(&SCENARIO, &[("clients", "1")], "p50_us", Unit::Transaction, ask)
    }
}
