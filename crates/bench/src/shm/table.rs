//! The table.

use pontoon_guest::Pacing;

use super::{Case, Link, Sample, Task};
use crate::report::number::figure;

/// One line for each case, in their order, and the figures of which this is the successor.
pub(super) fn markdown(cases: &[Case], samples: &[Sample]) -> String {
    let mut out = String::from(HEAD);
    for (case, sample) in cases.iter().zip(samples) {
        out += &row(*case, sample);
    }
    out + MAIL
}

fn row(case: Case, sample: &Sample) -> String {
    let notified = |count| match case.link {
        Link::Packet => "a call each".to_owned(),
        Link::Memory(_) if case.task == Task::Idle => "-".to_owned(),
        Link::Memory(_) => figure(count),
    };
    let rate = match case.task {
        Task::Idle => "-".to_owned(),
        Task::Receive | Task::Echo | Task::Send(_) => figure(sample.rate),
    };
    let cpu = |load: f64| format!("{:.0} %", 100.0 * load);
    format!(
        "| {} | {} | {rate} | {} | {} | {} | {} |\n",
        task(case.task),
        link(case.link),
        notified(sample.kicks),
        notified(sample.calls),
        cpu(sample.guest),
        cpu(sample.device),
    )
}

fn task(task: Task) -> String {
    match task {
        Task::Receive => "receive 1300 B".to_owned(),
        Task::Echo => "echo 64 B".to_owned(),
        Task::Send(1) => "send 64 B, each by itself".to_owned(),
        Task::Send(batch) => format!("send 64 B, flushed by {batch}"),
        Task::Idle => "idle".to_owned(),
    }
}

fn link(link: Link) -> &'static str {
    match link {
        Link::Packet => "packet socket",
        Link::Memory(Pacing::Event) => "memory, event",
        Link::Memory(Pacing::Hybrid) => "memory, hybrid",
        Link::Memory(Pacing::Poll) => "memory, poll",
    }
}

const HEAD: &str = "\
# A guest's link, with a generator and a sink in place of the engine

| task | link | frames/s | kicks per frame | calls per frame | CPU of the guest | CPU of the device |
|---|---|---:|---:|---:|---:|---:|
";

const MAIL: &str = "
Solo5's shmstream (mail of 2017, another machine), receiving 1300 B of UDP: a call for each packet, which was an exit of
the VM, 160,000 packets/s; a process behind seccomp 440,000; shared memory by event 435,000 and by poll 490,000; QEMU
with vhost 460,000, without 310,000.
";
