//! `pontoon bench exits`: counts the VM exits of a guest for each packet and for each TCP connection.
//!
//! The virtual machine is the example `pontoon-microvm`, whose VMM contains the engine. Exits are counted and
//! nothing is timed: where KVM emulates the guest instruction by instruction, times are meaningless, and
//! KVM's own count of exits contains those instructions. So an exit is a return from KVM_RUN, a doorbell that
//! the kernel handled (ioeventfd), a halt (HLT), or an interrupt.

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

/// Traffic of the guest during one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestTask {
    Send,
    Receive,
    Connect,
}

/// Path of frames between guest and engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePath {
    /// One hypercall, and so one exit to the VMM, for each frame.
    Calls,
    /// Virtio with notifications by exits: the VMM handles the doorbell of the driver and injects the
    /// interrupts.
    Passed,
    /// Virtio with ioeventfd and irqfd: the kernel handles doorbells and interrupts.
    Direct,
    /// As `Direct`, with VIRTIO_F_EVENT_IDX, by which both sides suppress notifications.
    EventIndex,
    /// As `EventIndex`, with guest and engine polling the rings instead of sleeping.
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

/// Fields of the JSON report of `pontoon-microvm` from which the table is computed.
#[derive(Clone, Copy, Debug, Deserialize)]
struct RunResult {
    done: u32,
    doorbells: u64,
    returns: u64,
    kvm: KvmStatistics,
}

/// Counters of exits from KVM's statistics of the virtual CPU.
#[derive(Clone, Copy, Debug, Deserialize)]
struct KvmStatistics {
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
    /// Returns the number of VM exits of a run. A doorbell that the VMM handles is one of the returns from
    /// KVM_RUN already.
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
