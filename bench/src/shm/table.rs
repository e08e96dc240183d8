//! The tables of `pontoon bench shm`, as Markdown and JSON.

use pontoon_guest::Pacing;
use serde_json::{Value, json};

use super::{FrameLink, GuestTask, LinkPeer, SendMode, ShmCase, ShmSample, ShmSummary};
use crate::args::Shm;
use crate::commands::command_line;
use crate::machine;
use crate::report::number::{factor, figure, percent};

/// Returns the Markdown tables: one line for each row, and published figures of other systems for comparison.
pub(super) fn markdown(conditions: &str, rows: &[(ShmCase, ShmSummary)]) -> String {
    let (alone, through): (Vec<_>, Vec<_>) = rows
        .iter()
        .partition(|(case, _)| case.endpoint == LinkPeer::Nothing);
    let alone: String = alone
        .iter()
        .map(|(case, summary)| alone_row(*case, summary, rows))
        .collect();
    let through: String = through
        .iter()
        .map(|(case, summary)| through_row(*case, summary, rows))
        .collect();
    format!("# A guest's link\n\n{conditions}\n\n{ALONE}{alone}\n{THROUGH}{through}\n{NOTES}")
}

/// Returns the figures as JSON: the program, the machine, and an object for each row with the medians of its
/// measurements.
pub(super) fn json(arguments: &Shm, rows: &[(ShmCase, ShmSummary)]) -> Value {
    let row = |(case, summary): &(ShmCase, ShmSummary)| {
        let ShmSample {
            rate,
            kicks,
            calls,
            guest,
            device,
            source,
            lost,
        } = summary.median;
        json!({
            "task": task(*case),
            "link": link(*case),
            "has_engine": matches!(case.endpoint, LinkPeer::Engine(..)),
            "per_s": rate,
            "least_per_s": summary.rates[0],
            "most_per_s": summary.rates[1],
            "kicks_per_frame": kicks,
            "calls_per_frame": calls,
            "guest_cpu": guest,
            "device_cpu": device,
            "source_cpu": source,
            "loss": lost,
        })
    };
    json!({
        "generator": concat!("pontoon bench shm ", env!("CARGO_PKG_VERSION")),
        "command": command_line(),
        "machine": machine::describe(),
        "rounds": arguments.rounds,
        "seconds": arguments.duration,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn alone_row(case: ShmCase, summary: &ShmSummary, rows: &[(ShmCase, ShmSummary)]) -> String {
    let sample = &summary.median;
    let [kicks, calls] = match (case.link, case.task) {
        (FrameLink::Packet | FrameLink::Tap(_), _) => ["a call each"; 2].map(str::to_owned),
        (FrameLink::Memory(_), GuestTask::Idle) => ["-"; 2].map(str::to_owned),
        (FrameLink::Memory(_), _) => [sample.kicks, sample.calls].map(figure),
    };
    format!(
        "| {} | {} | {} | {} | {kicks} | {calls} | {} | {} |\n",
        task(case),
        link(case),
        rate(case, summary),
        times(case, summary, rows),
        cpu(sample.guest),
        cpu(sample.device),
    )
}

fn through_row(case: ShmCase, summary: &ShmSummary, rows: &[(ShmCase, ShmSummary)]) -> String {
    let sample = &summary.median;
    let [kicks, wakes] = match case.link {
        FrameLink::Packet => ["a call each"; 2].map(str::to_owned),
        FrameLink::Tap(_) => ["5 calls for both", "-"].map(str::to_owned),
        FrameLink::Memory(_) => [sample.kicks, sample.calls].map(figure),
    };
    let device = match case.endpoint {
        LinkPeer::Kernel => "-".to_owned(),
        LinkPeer::Nothing | LinkPeer::Engine(..) => cpu(sample.device),
    };
    format!(
        "| {} | {} | {} | {} | {kicks} | {wakes} | {} | {device} | {} | {} |\n",
        task(case),
        link(case),
        rate(case, summary),
        times(case, summary, rows),
        cpu(sample.guest),
        cpu(sample.source),
        percent(sample.lost),
    )
}

fn task(case: ShmCase) -> String {
    let what = match case.task {
        GuestTask::Receive => "receive 1300 B",
        GuestTask::Echo => "echo 64 B",
        GuestTask::Send(1) => "send 64 B, each by itself",
        GuestTask::Send(batch) => return format!("send 64 B, flushed by {batch}"),
        GuestTask::Idle => "idle",
    };
    match case.endpoint {
        LinkPeer::Nothing => what.to_owned(),
        LinkPeer::Engine(_, SendMode::Single) => format!("{what}, a call for each"),
        LinkPeer::Engine(_, SendMode::Segmented) => format!("{what}, UDP_SEGMENT"),
        LinkPeer::Kernel => format!("{what}, ICMP"),
    }
}

fn link(case: ShmCase) -> String {
    let side = |pacing| match pacing {
        Pacing::Event => "event",
        Pacing::Hybrid => "hybrid",
        Pacing::Poll => "poll",
    };
    match (case.link, case.endpoint) {
        (FrameLink::Packet, LinkPeer::Engine(pacing, _)) => format!("packet socket, {} engine", side(pacing)),
        (FrameLink::Packet, LinkPeer::Nothing | LinkPeer::Kernel) => "packet socket".to_owned(),
        (FrameLink::Memory(pacing), _) => format!("memory, {}", side(pacing)),
        (FrameLink::Tap(window), _) => format!("Solo5 spt over a tap, {window} in flight"),
    }
}

fn rate(case: ShmCase, summary: &ShmSummary) -> String {
    match case.task {
        GuestTask::Idle => "-".to_owned(),
        GuestTask::Receive | GuestTask::Echo | GuestTask::Send(_) => {
            let [low, high] = summary.rates.map(figure);
            format!("{} ({low}-{high})", figure(summary.median.rate))
        }
    }
}

/// Returns the ratio of this row's rate to that of the fastest packet link with the same task, as text.
fn times(case: ShmCase, summary: &ShmSummary, rows: &[(ShmCase, ShmSummary)]) -> String {
    let same = |other: &ShmCase| {
        let task = match (case.task, other.task) {
            // A packet link has one system call for each frame and no flush, so its batch size does not matter.
            (GuestTask::Send(_), GuestTask::Send(_)) => true,
            (one, other) => one == other,
        };
        let endpoint = match (case.endpoint, other.endpoint) {
            (LinkPeer::Engine(_, one), LinkPeer::Engine(_, other)) => one == other,
            (one, other) => one == other,
        };
        other.link == FrameLink::Packet && task && endpoint
    };
    let packet = rows
        .iter()
        .filter(|(other, _)| same(other))
        .map(|(_, summary)| summary.median.rate)
        .fold(0.0, f64::max);
    match case.link {
        FrameLink::Memory(_) if packet > 0.0 => factor(summary.median.rate / packet),
        FrameLink::Memory(_) | FrameLink::Packet | FrameLink::Tap(_) => "-".to_owned(),
    }
}

fn cpu(load: f64) -> String {
    format!("{:.0} %", 100.0 * load)
}

const ALONE: &str = "\
## The link alone, with a generator and a sink in place of the engine

| task | link | frames/s | times the packet socket | kicks per frame | calls per frame | CPU of the guest | CPU of the device |
|---|---|---:|---:|---:|---:|---:|---:|
";

const THROUGH: &str = "\
## Through the engine, from a source on the host through a published port

| task | link | datagrams/s | times the packet socket | kicks per frame | guest woken per frame | CPU of the guest | CPU of the engine | CPU of the source | lost |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
";

const NOTES: &str = "\
A kick notifies the device, a call the guest. The packet socket is of type SOCK_SEQPACKET, and the guest a process
restricted by seccomp; poll is busy waiting on both sides, and needs a CPU for each process. The source keeps at most 128
datagrams in flight, sends 16 in a call with UDP_SEGMENT, and receives echoes with UDP_GRO; `times` is the ratio to the
fastest packet socket with the same task. Solo5's guest answers echo requests of as many bytes, from a raw socket that
sends and receives up to 64 in a call.

Solo5's shmstream (mail of 2017, another machine), UDP of 1300 B to the guest:

| | packets/s | exits of the VM in 30 s | CPU |
|---|---:|---:|---:|
| a call for each packet, an exit each (ukvm) | 160,000 | 8,700,000 | 100 % |
| a call for each packet, of a process restricted by seccomp | 440,000 | | |
| shared memory, event | 435,000 | 260,000 | 160 % |
| shared memory, poll | 490,000 | 215,000 | 200 % |
| QEMU, vhost | 460,000 | 20,000,000 | 150 % |
| QEMU, without vhost | 310,000 | | |
";
