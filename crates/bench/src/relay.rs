//! `pontoon bench relay`: what relays of multicast deliver, lose, and cost, side by side.
//!
//! A sender that keeps a rate, relays in a row or one with several outputs, and sinks that count in the kernel, so that
//! they cost no CPU of their own: a socket whose filter takes nothing counts what came all the way up as dropped. The
//! sender has one CPU and the relays another, where there are two. Its datagrams leave in calls of eight, which the kernel
//! takes apart before the link, as one call for each would be the limit; `--super` leaves them together.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::enclosure::{Enclosure, enclosed};

mod latency;
mod processes;
mod sender;
mod sink;
mod stack;
mod topology;

use sender::{Frames, Pace};
use stack::{Stack, Wanted};
use topology::{Network, Topology};

/// What was asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct Relay {
    /// one-hop, chain-N, tree-N
    #[arg(
        long,
        value_name = "T,...",
        value_delimiter = ',',
        default_value = "one-hop,chain-3,tree-3"
    )]
    topology: Vec<Topology>,
    /// Relays beside pontoon: smcroute, socat, mcr, each with =PROGRAM where it is not in the path [default: all there are]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    against: Vec<Wanted>,
    /// Flags for 'pontoon relay'
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, default_value = "")]
    flags: String,
    /// Datagrams a second
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "100000,300000,500000",
          value_parser = value_parser!(u32).range(1..))]
    rate: Vec<u32>,
    /// Bytes of each
    #[arg(long, value_name = "BYTES", default_value = "1400", value_parser = value_parser!(u16).range(16..=1472))]
    size: u16,
    /// Seconds of a measurement
    #[arg(long, value_name = "S", default_value = "3", value_parser = value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// The sender's kernel leaves 32 datagrams together
    #[arg(long = "super")]
    together: bool,
    /// Single frames, and how long they take
    #[arg(long, conflicts_with = "together")]
    latency: bool,
    /// Write the figures, too
    #[arg(long, value_name = "F.json")]
    output: Option<PathBuf>,
}

/// What came of one measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    stack: &'static str,
    topology: String,
    /// Datagrams a second that were asked for.
    wanted: u32,
    /// That were sent.
    sent: f64,
    /// That arrived at each sink, on average.
    delivered: f64,
    /// Share of what was sent that did not arrive.
    loss: f64,
    /// CPUs that all processes of the relays used.
    relay_cpu: f64,
    /// CPUs that the whole machine used, the sender's among them.
    machine_cpu: f64,
    /// From the sender to the sink's kernel, in microseconds: half, 99 %, and 99.9 % took no longer.
    latency_us: Option<[f64; 3]>,
}

/// `pontoon bench relay`.
///
/// # Errors
/// What failed, on what, and what to try.
pub(crate) fn relay(arguments: &Relay) -> Result<u8> {
    let stacks = stack::find(&arguments.against, &arguments.flags)?;
    enclosed(|_: &Enclosure| match measure(arguments, &stacks) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error:#}");
            1
        }
    })
}

fn measure(arguments: &Relay, stacks: &[Stack]) -> Result<()> {
    let cpus = Cpus::look()?;
    let mut figures = Vec::new();
    say(&header(arguments))?;
    for topology in &arguments.topology {
        for rate in &arguments.rate {
            for stack in stacks {
                let figure = one(arguments, *topology, *rate, stack, &cpus)
                    .with_context(|| format!("{} {topology} {rate}", stack.name()))?;
                say(&row(&figure))?;
                figures.push(figure);
                if let Some(path) = &arguments.output {
                    std::fs::write(path, serde_json::to_vec_pretty(&figures)?)
                        .with_context(|| format!("cannot write {}", path.display()))?;
                }
            }
        }
    }
    Ok(())
}

fn one(arguments: &Relay, topology: Topology, rate: u32, stack: &Stack, cpus: &Cpus) -> Result<Figure> {
    let network = Network::new(topology)?;
    let frames = match (arguments.together, arguments.latency) {
        (true, _) => Frames::Together(32),
        (false, true) => Frames::Single,
        (false, false) => Frames::Apart(8),
    };
    if let Frames::Apart(_) = frames {
        network.take_apart()?;
    }
    // What is started now inherits it.
    cpus.stay_on_the_first()?;
    let relays = stack.start(&network)?;
    let group = network.last_group(stack.rewritten());
    let sinks = network.sinks(group)?;
    network.settle(&sinks)?;
    let latency = arguments
        .latency
        .then(|| latency::Listener::start(&network, group))
        .transpose()?;
    let before = (relays.cpu(), processes::machine_cpu()?, sinks.count()?);
    let pace = Pace {
        rate,
        size: arguments.size,
        frames,
        time: Duration::from_secs(arguments.seconds.into()),
    };
    let sent = network.send(pace, cpus.last)?;
    let after = (relays.cpu(), processes::machine_cpu()?);
    // What is on its way arrives.
    std::thread::sleep(Duration::from_millis(300));
    let arrived = sinks.count()? - before.2;
    let seconds = sent.time.as_secs_f64();
    let each = arrived as f64 / network.outputs() as f64;
    Ok(Figure {
        stack: stack.name(),
        topology: topology.to_string(),
        wanted: rate,
        sent: sent.datagrams as f64 / seconds,
        delivered: each / seconds,
        loss: (1.0 - each / sent.datagrams as f64).max(0.0),
        relay_cpu: (after.0 - before.0) / seconds,
        machine_cpu: (after.1 - before.1) / seconds,
        latency_us: latency.map(latency::Listener::finish).transpose()?,
    })
}

fn header(arguments: &Relay) -> String {
    let columns = "| topology | offered | stack | sent | delivered | loss | relay CPU | machine CPU |";
    let rule = "|---|---|---|---|---|---|---|---|";
    if arguments.latency {
        format!("{columns} p50 / p99 / p99.9, us |\n{rule}---|")
    } else {
        format!("{columns}\n{rule}")
    }
}

fn row(figure: &Figure) -> String {
    let mut row = format!(
        "| {} | {} | {} | {:.0} | {:.0} | {:.2} % | {:.0} % | {:.0} % |",
        figure.topology,
        figure.wanted,
        figure.stack,
        figure.sent,
        figure.delivered,
        figure.loss * 100.0,
        figure.relay_cpu * 100.0,
        figure.machine_cpu * 100.0,
    );
    if let Some([half, most, nearly_all]) = figure.latency_us {
        row.push_str(&format!(" {half:.0} / {most:.0} / {nearly_all:.0} |"));
    }
    row
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}

/// CPUs that we may use.
struct Cpus {
    first: usize,
    last: usize,
}

impl Cpus {
    fn look() -> Result<Self> {
        let ours = sched_getaffinity(None)?;
        let mut there = (0..CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu));
        let Some(first) = there.next() else {
            bail!("there is no CPU");
        };
        Ok(Self {
            first,
            last: there.next_back().unwrap_or(first),
        })
    }

    fn stay_on_the_first(&self) -> Result<()> {
        stay_on(self.first)
    }
}

fn stay_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
