//! `pontoon bench relay`: compares the throughput, loss and CPU time of multicast relays.
//!
//! The network has a sender with a constant rate, a chain of relays or one relay with several outputs, and sinks. The
//! sockets of the sinks have a filter that drops every datagram, and the kernel counts the drops, so that sinks need
//! no CPU time in user mode. The sender has one CPU and the relays another, if the machine has two. The sender sends
//! sixteen datagrams in each call, as one call for each would limit the rate, and the kernel segments them before the
//! link; with `--super` they stay in one frame.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::sandbox_ns::{SandboxNs, run_in_sandbox_ns};
use crate::stack::{self, Selection, StackPurpose};

mod latency;
mod page;
mod processes;
mod report;
mod sender;
mod sink;
mod topology;

use processes::RelayProcesses;
use report::{RelayFigure, RelayReport};
use sender::{SendBatch, SendPlan};
use topology::{RelayNetwork, Topology};

pub(crate) use topology::{Hop, group, sender_address};

/// Arguments of `pontoon bench relay`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RelayArguments {
    /// Topologies: one-hop, chain-N, tree-N
    #[arg(
        long,
        value_name = "T,...",
        value_delimiter = ',',
        default_value = "one-hop,chain-3,tree-3"
    )]
    topology: Vec<Topology>,
    /// Relays to compare with: mcr, smcroute, socat, each as NAME[=PROGRAM] [default: those that are installed]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = against)]
    against: Vec<Selection>,
    /// Flags for 'pontoon relay'
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, default_value = "")]
    flags: String,
    /// Datagrams per second
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "100000,300000,500000",
          value_parser = value_parser!(u32).range(1..))]
    rate: Vec<u32>,
    /// Bytes of each datagram
    #[arg(long, value_name = "BYTES", default_value = "1400", value_parser = value_parser!(u16).range(64..=1472))]
    size: u16,
    /// Number of senders, which send in turn; with several, datagrams have lengths from an eighth of --size up to it
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u16).range(1..=1024))]
    flows: u16,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "3", value_parser = value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Send 32 datagrams in one frame (GSO), which the kernel does not segment
    #[arg(long = "super")]
    together: bool,
    /// Send single datagrams, and measure their latency
    #[arg(long, conflicts_with = "together")]
    latency: bool,
    /// Write the figures as JSON, after every measurement
    #[arg(long, value_name = "F.json")]
    output: Option<PathBuf>,
    /// Write an HTML page, at the end
    #[arg(long, value_name = "F.html")]
    html: Option<PathBuf>,
}

/// Runs `pontoon bench relay`.
///
/// # Errors
/// A program is missing, or the namespaces cannot be made.
pub(crate) fn relay(arguments: &RelayArguments) -> Result<u8> {
    let stacks = stack::find_relays(&arguments.against, &arguments.flags)?;
    let report = RelayReport::new(arguments.seconds, arguments.latency);
    run_in_sandbox_ns(|_: &SandboxNs| match measure(arguments, &stacks, report) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error:#}");
            1
        }
    })
}

fn measure(
    arguments: &RelayArguments,
    stacks: &[(String, Box<dyn InstalledRelay>)],
    mut report: RelayReport,
) -> Result<()> {
    let cpus = AllowedCpus::allowed()?;
    report::print_line(&report.header())?;
    for topology in &arguments.topology {
        for rate in &arguments.rate {
            for (name, relay) in stacks {
                let figure = one(arguments, *topology, *rate, (name, relay.as_ref()), &cpus)
                    .with_context(|| format!("{name} {topology} {rate}"))?;
                report::print_line(&figure.row())?;
                report.figures.push(figure);
                if let Some(path) = &arguments.output {
                    report.write(path)?;
                }
            }
        }
    }
    match &arguments.html {
        Some(path) => std::fs::write(path, page::html(&report))
            .with_context(|| format!("cannot write {}", path.display())),
        None => Ok(()),
    }
}

fn one(
    arguments: &RelayArguments,
    topology: Topology,
    rate: u32,
    (name, relay): (&str, &dyn InstalledRelay),
    cpus: &AllowedCpus,
) -> Result<RelayFigure> {
    let network = RelayNetwork::new(topology)?;
    let frames = match (arguments.together, arguments.latency) {
        (true, _) => SendBatch::Coalesced(32),
        (false, true) => SendBatch::Single,
        (false, false) => SendBatch::Segmented(16),
    };
    if let SendBatch::Segmented(_) = frames {
        network.disable_tx_segmentation()?;
    }
    // Processes that are started after this call inherit the affinity.
    cpus.pin_to_first()?;
    let relays = start(relay, &network)?;
    let group = network.last_group(relay.rewrites_group());
    let sinks = network.sinks(group)?;
    network.wait_until_forwarding(&sinks)?;
    let latency = arguments
        .latency
        .then(|| latency::LatencyReceiver::start(&network, group))
        .transpose()?;
    let before = (relays.cpu(), processes::machine_cpu()?, sinks.count()?);
    let plan = SendPlan {
        rate,
        size: arguments.size,
        flows: arguments.flows,
        frames,
        time: Duration::from_secs(arguments.seconds.into()),
    };
    let sent = network.send(plan, cpus.last)?;
    let after = (relays.cpu(), processes::machine_cpu()?);
    let arrived = sinks.final_count()? - before.2;
    let seconds = sent.time.as_secs_f64();
    let each = arrived as f64 / network.outputs() as f64;
    Ok(RelayFigure {
        stack: name.to_owned(),
        topology: topology.to_string(),
        wanted: rate,
        sent: sent.datagrams as f64 / seconds,
        delivered: each / seconds,
        loss: (1.0 - each / sent.datagrams as f64).max(0.0),
        relay_cpu: (after.0 - before.0) / seconds,
        machine_cpu: (after.1 - before.1) / seconds,
        latency_us: latency.map(latency::LatencyReceiver::finish).transpose()?,
    })
}

/// An installed multicast relay that can run at each hop of the network.
pub(crate) trait InstalledRelay {
    /// Returns true if the relay sends to the group of the next hop. The kernel's multicast routes keep the group.
    fn rewrites_group(&self) -> bool {
        true
    }

    /// Starts the processes of the relay in the namespace of `hop`.
    ///
    /// # Errors
    /// A program cannot be run, or refuses its configuration.
    fn start(&self, hop: &Hop<'_>) -> Result<Vec<Child>>;
}

/// Directory for sockets and files of the relays; no other program runs in this mount namespace.
pub(crate) const SCRATCH: &str = "/tmp";

/// Starts a relay at every hop of the network.
fn start(relay: &dyn InstalledRelay, network: &RelayNetwork) -> Result<RelayProcesses> {
    let mut running = RelayProcesses(Vec::new());
    for hop in network.hops() {
        running.0.extend(relay.start(&hop)?);
    }
    Ok(running)
}

/// Starts a program in the namespace of `hop`.
///
/// # Errors
/// The program cannot be run.
pub(crate) fn spawn(hop: &Hop<'_>, command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let program = command.get_program().display().to_string();
    hop.namespace
        .enter(|| command.spawn().with_context(|| format!("cannot run {program}")))
}

fn against(text: &str) -> Result<Selection, String> {
    Selection::parse(text, StackPurpose::Relay)
}

/// The first and the last CPU of this process's affinity mask: the first for the relays, the last for the sender.
struct AllowedCpus {
    first: usize,
    last: usize,
}

impl AllowedCpus {
    fn allowed() -> Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let Some(first) = cpus.next() else {
            bail!("no CPU is allowed");
        };
        Ok(Self {
            first,
            last: cpus.next_back().unwrap_or(first),
        })
    }

    fn pin_to_first(&self) -> Result<()> {
        pin_to_cpu(self.first)
    }
}

fn pin_to_cpu(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
