//! `pontoon bench shm`: measures the cost of frames for a guest, by a call for each and in shared memory.
//!
//! The guest is a process that may make only a few system calls. First the engine is left out: on the device's side,
//! frames come from a generator and go to a sink, so that the figures are those of the link alone. Then the device is
//! `pontoon vm`, and datagrams come from a source on the host through a published port.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use pontoon_guest::Pacing;
use pontoon_netns::ip;

use crate::args::Shm;
use crate::report::machine::in_words;
use crate::report::number::counted;
use crate::report::write_figures;
use crate::sandbox_ns::{SandboxNs, run_in_sandbox_ns};
use crate::stack;
use crate::stats::median;

mod datagram;
mod device;
mod engine;
mod guest;
mod memory;
mod packet;
mod process;
mod solo5;
mod source;
mod table;
mod unikernel;

use process::SideCounts;
use solo5::Solo5;

/// A row: one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    task: GuestTask,
    link: FrameLink,
    endpoint: LinkPeer,
}

/// The guest's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestTask {
    /// Receives frames with 1,300 bytes of UDP payload.
    Receive,
    /// Sends frames back: of 64 bytes, or with an engine of 64 bytes of UDP payload.
    Echo,
    /// Sends frames of 64 bytes, this many at a time.
    Send(usize),
    /// Waits, and receives nothing.
    Idle,
}

/// The link that carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameLink {
    /// A SOCK_SEQPACKET socket, with a system call of the guest for each frame.
    Packet,
    /// Shared memory, with this pacing on both sides.
    Memory(Pacing),
    /// A tap under Solo5's tender for seccomp, which makes the system calls, with so many echo requests in flight.
    Tap(usize),
}

/// The other end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkPeer {
    /// A generator and a sink.
    Nothing,
    /// The engine with this pacing, and behind it the source.
    Engine(Pacing, SendMode),
    /// The kernel.
    Kernel,
}

/// The system calls of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendMode {
    /// A call for each datagram.
    Single,
    /// Many in a call (UDP_SEGMENT).
    Segmented,
}

/// The figures of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    /// Frames per second.
    rate: f64,
    /// Notifications of the device, per frame.
    kicks: f64,
    /// Notifications of the guest, per frame.
    calls: f64,
    /// CPUs that the guest was busy on.
    guest: f64,
    /// CPUs that the device was busy on.
    device: f64,
    /// CPUs that the source was busy on.
    source: f64,
    /// Share of the sent datagrams that did not arrive.
    lost: f64,
}

/// The figures of all measurements of a row, each summarised by itself.
#[derive(Clone, Copy, Debug)]
struct Summary {
    median: Sample,
    /// The lowest and the highest rate.
    rates: [f64; 2],
}

const MEMORY: [FrameLink; 3] = [
    FrameLink::Memory(Pacing::Event),
    FrameLink::Memory(Pacing::Hybrid),
    FrameLink::Memory(Pacing::Poll),
];

/// Measures all rows in turn, prints the tables, and returns the exit status.
///
/// # Errors
/// Namespaces cannot be made here.
pub(crate) fn shm(arguments: &Shm) -> Result<u8> {
    run_in_sandbox_ns(|sandbox_ns| {
        let measured = ip("link set lo up").and_then(|()| measure_all(arguments, sandbox_ns));
        match measured.and_then(|tables| crate::commands::print(&tables)) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("error: {error:#}");
                1
            }
        }
    })
}

fn measure_all(arguments: &Shm, sandbox_ns: &SandboxNs) -> Result<String> {
    let solo5 = arguments.solo5.as_deref().map(Solo5::find).transpose()?;
    if solo5.is_none() {
        eprintln!("Solo5 is not measured (try: --solo5 DIR, with a built source tree)");
    }
    let cases = cases(solo5.is_some());
    let mut samples = vec![Vec::new(); cases.len()];
    let harness = Harness {
        duration: Duration::from_secs_f64(arguments.duration),
        sandbox_ns,
        program: stack::pontoon()?,
        solo5,
    };
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        for (case, samples) in cases.iter().zip(&mut samples) {
            let sample = harness.measure(*case).with_context(|| format!("{case:?}"))?;
            samples.push(sample);
        }
    }
    let rows: Vec<_> = cases
        .into_iter()
        .zip(samples.iter().map(|samples| Summary::of(samples)))
        .collect();
    if let Some(path) = &arguments.output {
        write_figures(&table::json(arguments, &rows), path)?;
    }
    let conditions = format!(
        "{}. Each row {} for {} s, in turn: medians, and in brackets the lowest and the highest.",
        in_words(&crate::machine::describe()),
        counted(arguments.rounds as usize, "time"),
        arguments.duration,
    );
    Ok(table::markdown(&conditions, &rows))
}

/// Returns the rows.
fn cases(solo5: bool) -> Vec<Case> {
    let alone = |task, link| Case {
        task,
        link,
        endpoint: LinkPeer::Nothing,
    };
    let through = |task, link, pacing, send_mode| Case {
        task,
        link,
        endpoint: LinkPeer::Engine(pacing, send_mode),
    };
    let mut cases = Vec::new();
    for task in [GuestTask::Receive, GuestTask::Echo, GuestTask::Send(1)] {
        cases.push(alone(task, FrameLink::Packet));
        cases.extend(MEMORY.map(|link| alone(task, link)));
    }
    cases.extend(MEMORY.map(|link| alone(GuestTask::Send(32), link)));
    cases.extend(MEMORY[..2].iter().map(|link| alone(GuestTask::Idle, *link)));
    for (task, send_mode) in [
        (GuestTask::Receive, SendMode::Segmented),
        (GuestTask::Echo, SendMode::Segmented),
        (GuestTask::Echo, SendMode::Single),
    ] {
        cases.extend(
            [Pacing::Hybrid, Pacing::Poll].map(|pacing| through(task, FrameLink::Packet, pacing, send_mode)),
        );
        cases.extend(
            [Pacing::Event, Pacing::Hybrid, Pacing::Poll]
                .map(|pacing| through(task, FrameLink::Memory(pacing), pacing, send_mode)),
        );
    }
    let tap = |window| Case {
        task: GuestTask::Echo,
        link: FrameLink::Tap(window),
        endpoint: LinkPeer::Kernel,
    };
    cases.extend([16, source::WINDOW].map(tap).into_iter().filter(|_| solo5));
    cases
}

/// The environment of all measurements.
struct Harness<'b> {
    duration: Duration,
    sandbox_ns: &'b SandboxNs,
    /// The path of pontoon.
    program: PathBuf,
    solo5: Option<Solo5>,
}

impl Harness<'_> {
    fn measure(&self, case: Case) -> Result<Sample> {
        match (case.endpoint, case.link) {
            (LinkPeer::Engine(pacing, send_mode), _) => engine::measure(self, case, pacing, send_mode),
            (LinkPeer::Kernel, FrameLink::Tap(window)) => {
                let solo5 = self.solo5.as_ref().context("no Solo5")?;
                solo5.measure(window, self.duration)
            }
            (_, FrameLink::Memory(pacing)) => {
                let (guest, device) = memory::measure(case.task, pacing, self.duration)?;
                Ok(Sample::alone(&guest, &device))
            }
            (_, FrameLink::Packet | FrameLink::Tap(_)) => {
                let (guest, device) = packet::measure(case.task, self.duration)?;
                Ok(Sample::alone(&guest, &device))
            }
        }
    }

    /// Returns a copy of pontoon that every user may execute.
    fn pontoon(&self) -> Result<PathBuf> {
        self.sandbox_ns.install_program(&self.program, "pontoon")
    }

    fn socket(&self) -> Result<PathBuf> {
        self.sandbox_ns.world_writable_path("guest.sock")
    }
}

impl Sample {
    /// Returns the sample of a link without an engine.
    fn alone(guest: &SideCounts, device: &SideCounts) -> Self {
        let frames = guest.frames.max(1) as f64;
        Self {
            rate: guest.frames as f64 / guest.seconds(),
            kicks: guest.notifications as f64 / frames,
            calls: device.notifications as f64 / frames,
            guest: guest.load(),
            device: device.load(),
            ..Self::default()
        }
    }
}

impl Summary {
    /// Summarises samples, of which there must be one at least.
    fn of(samples: &[Sample]) -> Self {
        let all = |figure: fn(&Sample) -> f64| samples.iter().map(figure).collect::<Vec<_>>();
        let middle = |figure| median(&all(figure)).unwrap_or(f64::NAN);
        let rates = all(|sample| sample.rate);
        Self {
            median: Sample {
                rate: middle(|sample| sample.rate),
                kicks: middle(|sample| sample.kicks),
                calls: middle(|sample| sample.calls),
                guest: middle(|sample| sample.guest),
                device: middle(|sample| sample.device),
                source: middle(|sample| sample.source),
                lost: middle(|sample| sample.lost),
            },
            rates: [
                rates.iter().copied().fold(f64::INFINITY, f64::min),
                rates.iter().copied().fold(0.0, f64::max),
            ],
        }
    }
}

impl GuestTask {
    /// Returns the bytes of each frame without an engine.
    fn frame(self) -> usize {
        match self {
            Self::Receive => 14 + 20 + 8 + self.payload(),
            Self::Echo | Self::Send(_) | Self::Idle => 64,
        }
    }

    /// Returns the bytes of each datagram.
    fn payload(self) -> usize {
        match self {
            Self::Receive => 1300,
            Self::Echo | Self::Send(_) | Self::Idle => 64,
        }
    }

    /// Returns true if frames are sent to the guest.
    fn generates(self) -> bool {
        matches!(self, Self::Receive | Self::Echo)
    }
}

#[cfg(test)]
mod tests;
