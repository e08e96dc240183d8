//! The Markdown table and the JSON figures of `pontoon bench exits`.

use serde_json::{Value, json};

use super::{FramePath, GuestTask, RunResult};
use crate::commands::command_line;
use crate::machine;
use crate::report::number::figure;

/// Returns a Markdown table with one line for each run, and below it published figures of other systems for
/// comparison.
pub(super) fn markdown(rows: &[(GuestTask, FramePath, RunResult)]) -> String {
    let mut out = String::from(HEAD);
    for (task, link, result) in rows {
        out += &row(*task, *link, result);
    }
    out + PUBLISHED
}

/// Returns the figures as JSON: the program, the machine, and an object for each run.
pub(super) fn json(rows: &[(GuestTask, FramePath, RunResult)]) -> Value {
    let row = |(task, link, result): &(GuestTask, FramePath, RunResult)| {
        json!({
            "task": task.name(),
            "link": link.name(),
            "done": result.done,
            "returns": result.returns,
            "doorbells": result.doorbells,
            "halts": result.kvm.halts,
            "interrupts": result.kvm.interrupts,
            "exits_each": result.exits(*link) as f64 / f64::from(result.done),
        })
    };
    json!({
        "generator": concat!("pontoon bench exits ", env!("CARGO_PKG_VERSION")),
        "command": command_line(),
        "machine": machine::describe(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn row(task: GuestTask, link: FramePath, result: &RunResult) -> String {
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
        task.name(),
        link.name(),
        result.done,
        result.returns,
        result.doorbells,
        result.kvm.halts,
        result.kvm.interrupts,
        figure(result.exits(link) as f64 / f64::from(result.done)),
    )
}

const HEAD: &str = "\
# Exits of a virtual machine with the engine inside

| task | link | done | returns from KVM_RUN | doorbells | halts | interrupts | exits for each |
|---|---|---:|---:|---:|---:|---:|---:|
";

const PUBLISHED: &str = "
An exit is a return from KVM_RUN, a doorbell that the kernel handled, a halt, or an interrupt: KVM's own count contains
emulated instructions where it emulates the guest. Solo5's shmstream (mail of 2017, another machine), receiving 1300 B of
UDP: 1.8 exits for each packet by calls, 0.02 in shared memory by event, 0.015 by poll.
";
