//! `pontoon bench exits`: counts how often a guest leaves its virtual machine, for a packet and for a connection.
//!
//! The machine is the example's, `pontoon-microvm`, with the engine inside. Exits are counted and nothing is timed:
//! where KVM emulates the guest instruction by instruction, times are meaningless, and KVM's own count of exits
//! contains those instructions. So an exit is a return from KVM_RUN, a doorbell that the kernel handled (ioeventfd), a
//! halt, or an interrupt.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use serde::Deserialize;

use crate::report;

mod table;
#[cfg(test)]
mod tests;

/// Arguments of `pontoon bench exits`.
#[derive(Args, Debug)]
pub(crate) struct Exits {
    /// Number of datagrams of each measurement
    #[arg(long, value_name = "N", default_value = "2000", value_parser = value_parser!(u32).range(1..=1_000_000))]
    datagrams: u32,
    /// Number of connections of each measurement
    #[arg(long, value_name = "N", default_value = "100", value_parser = value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// The program of the machine [default: pontoon-microvm beside this program]
    #[arg(long, value_name = "PATH")]
    machine: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long, value_name = "F.json")]
    output: Option<PathBuf>,
}

/// The guest's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestTask {
    Send,
    Receive,
    Connect,
}

/// The path of frames between guest and engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePath {
    /// A call (an exit to the VMM) for each frame.
    Calls,
    /// Virtio, with doorbells and interrupts that the VMM forwards.
    Passed,
    /// Virtio with ioeventfd and irqfd.
    Direct,
    /// `Direct` with event indices.
    EventIndex,
    /// `EventIndex` with both sides polling.
    Poll,
}

const TASKS: [GuestTask; 3] = [GuestTask::Send, GuestTask::Receive, GuestTask::Connect];
const LINKS: [FramePath; 5] = [
    FramePath::Calls,
    FramePath::Passed,
    FramePath::Direct,
    FramePath::EventIndex,
    FramePath::Poll,
];

/// The fields of the machine's report that are of interest.
#[derive(Clone, Copy, Debug, Deserialize)]
struct RunResult {
    done: u32,
    doorbells: u64,
    returns: u64,
    kvm: Statistics,
}

/// Counters of KVM.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Statistics {
    halts: u64,
    interrupts: u64,
}

/// Runs the machine for each row, and returns the table.
///
/// # Errors
/// There is no KVM or no machine, or a machine failed.
pub(crate) fn exits(arguments: &Exits) -> Result<String> {
    if !Path::new("/dev/kvm").exists() {
        bail!("there is no /dev/kvm, so exits cannot be counted");
    }
    let machine = machine(arguments.machine.as_deref())?;
    let mut rows = Vec::new();
    for task in TASKS {
        for link in LINKS {
            let result = run(&machine, task, link, arguments)
                .with_context(|| format!("{}, {}", task.name(), link.name()))?;
            rows.push((task, link, result));
        }
    }
    if let Some(path) = &arguments.output {
        report::write_figures(&table::json(&rows), path)?;
    }
    Ok(table::markdown(&rows))
}

fn machine(wanted: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = wanted {
        return Ok(path.to_owned());
    }
    let beside = std::env::current_exe()?.with_file_name("pontoon-microvm");
    if !beside.exists() {
        bail!(
            "{} does not exist (try: cargo build --release -p pontoon-microvm, or --machine PATH)",
            beside.display()
        );
    }
    Ok(beside)
}

fn run(machine: &Path, task: GuestTask, link: FramePath, arguments: &Exits) -> Result<RunResult> {
    let count = match task {
        GuestTask::Send | GuestTask::Receive => arguments.datagrams,
        GuestTask::Connect => arguments.connections,
    };
    let output = Command::new(machine)
        .args(["--json", "--task", task.argument(), "--count", &count.to_string()])
        .args(link.arguments())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", machine.display()))?;
    if !output.status.success() {
        bail!("the machine ended with {}", output.status);
    }
    let result: RunResult =
        serde_json::from_slice(&output.stdout).context("cannot parse the report of the machine")?;
    if result.done == 0 {
        bail!("the guest has completed no operation");
    }
    Ok(result)
}

impl RunResult {
    /// Returns the number of exits. A doorbell that the VMM handles is among the returns already.
    fn exits(&self, link: FramePath) -> u64 {
        let taken = match link {
            FramePath::Calls | FramePath::Passed => 0,
            FramePath::Direct | FramePath::EventIndex | FramePath::Poll => self.doorbells,
        };
        self.returns + taken + self.kvm.halts + self.kvm.interrupts
    }
}

impl GuestTask {
    fn argument(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Connect => "crr",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Send => "send 64 B",
            Self::Receive => "receive 64 B",
            Self::Connect => "connect, 1 B each way, close",
        }
    }
}

impl FramePath {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Calls => &["--link", "calls"],
            Self::Passed => &["--no-event-idx", "--doorbells", "vmm", "--interrupts", "vmm"],
            Self::Direct => &["--no-event-idx"],
            Self::EventIndex => &[],
            Self::Poll => &["--io", "poll"],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Calls => "a call each",
            Self::Passed => "virtio, through the VMM",
            Self::Direct => "virtio, ioeventfd and irqfd",
            Self::EventIndex => "the same, event index",
            Self::Poll => "the same, poll",
        }
    }
}
