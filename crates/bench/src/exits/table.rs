//! The table.

use super::{Link, Outcome, Task};
use crate::report::number::figure;

/// One line for each run, and the figures of which this is the successor.
pub(super) fn markdown(rows: &[(Task, Link, Outcome)]) -> String {
    let mut out = String::from(HEAD);
    for (task, link, outcome) in rows {
        out += &row(*task, *link, outcome);
    }
    out + MAIL
}

fn row(task: Task, link: Link, outcome: &Outcome) -> String {
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
        task.name(),
        link.name(),
        outcome.done,
        outcome.returns,
        outcome.doorbells,
        outcome.kvm.halts,
        outcome.kvm.interrupts,
        figure(outcome.exits(link) as f64 / f64::from(outcome.done)),
    )
}

const HEAD: &str = "\
# Exits of a virtual machine with the engine inside

| task | link | done | returns from KVM_RUN | doorbells | halts | interrupts | exits for each |
|---|---|---:|---:|---:|---:|---:|---:|
";

const MAIL: &str = "
An exit is a return from KVM_RUN, a doorbell that the kernel took, a halt, or an interrupt: KVM's own count has emulated
instructions in it, where it emulates the guest. Solo5's shmstream (mail of 2017, another machine), receiving 1300 B of
UDP: 1.8 exits for each packet by calls, 0.02 in shared memory by event, 0.015 by poll.
";
