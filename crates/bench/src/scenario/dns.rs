//! How long a name takes, through the stack's forwarder to a resolver on the host; `direct` and `veth` ask it themselves.

use crate::job::Job;
use crate::run::asking::{Answer, Asking};
use crate::scenario::{Question, Scenario, Unit};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "dns",
    title: "Names",
    about: "How many names per second does the guest's resolver answer?",
    questions: |_| vec![Question::new(&SCENARIO, &[], "p50_us", Unit::Transaction, ask)],
};

fn ask(asking: &Asking<'_>) -> Answer {
    if let Some(why) = &asking.host.no_resolver {
        return Answer::unreachable(format!("the harness has no resolver: {why}"));
    }
    asking.client(Job::Names {
        resolver: asking.place().resolver,
    })
}
