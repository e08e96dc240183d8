//! `pontoon bench shm`: measures the cost of a frame for a guest, with one system call for each frame and in shared
//! memory.
//!
//! The guest is a process whose seccomp filter permits only a few system calls. In the first measurements there is no
//! engine: on the device's side frames come from a generator and go to a sink, so the figures are those of the link
//! alone. In the others `pontoon vm` is the device, and a source on the host sends datagrams through a published
//! port.

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

/// A row of the table: the parameters of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShmCase {
    task: GuestTask,
    link: FrameLink,
    endpoint: LinkPeer,
}

/// Traffic of the guest during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestTask {
    /// The guest receives frames with 1,300 bytes of UDP payload.
    Receive,
    /// The guest sends received frames back: frames of 64 bytes, or, with an engine, 64 bytes of UDP payload.
    Echo,
    /// The guest sends frames of 64 bytes, this many per flush.
    Send(usize),
    /// The guest sleeps and receives nothing.
    Idle,
}

/// The link between the guest and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameLink {
    /// A SOCK_SEQPACKET socket, on which the guest makes one system call for each frame.
    Packet,
    /// Virtqueues in shared memory, with this pacing on both sides.
    Memory(Pacing),
    /// A tap under Solo5's tender for seccomp (spt), which makes the system calls, with this number of echo requests
    /// in flight.
    Tap(usize),
}

/// The process or kernel at the device's end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkPeer {
    /// A generator and a sink of frames, without an engine.
    Nothing,
    /// The engine (`pontoon vm`) with this pacing, and behind it the source of datagrams.
    Engine(Pacing, SendMode),
    /// The IP stack of the host's kernel, behind a tap.
    Kernel,
}

/// The system calls by which the source sends datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendMode {
    /// One system call for each datagram.
    Single,
    /// Many datagrams in one system call (UDP_SEGMENT).
    Segmented,
}

/// The figures of one measurement of `pontoon bench shm`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ShmSample {
    /// Number of frames per second.
    rate: f64,
    /// Notifications of the device by the guest (kicks), per frame.
    kicks: f64,
    /// Notifications of the guest by the device (calls), per frame.
    calls: f64,
    /// CPU seconds per second that the guest's process used.
    guest: f64,
    /// CPU seconds per second that the device's process used.
    device: f64,
    /// CPU seconds per second that the source used.
    source: f64,
    /// Share (0 to 1) of the sent datagrams that did not arrive.
    lost: f64,
}

/// The medians of the figures over all measurements of a row.
#[derive(Clone, Copy, Debug)]
struct ShmSummary {
    median: ShmSample,
    /// The lowest and the highest of the measured frame rates.
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
/// This user may not create namespaces.
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
        .zip(samples.iter().map(|samples| ShmSummary::of(samples)))
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

/// Returns the rows of the table, with those of Solo5 if `solo5` is true.
fn cases(solo5: bool) -> Vec<ShmCase> {
    let alone = |task, link| ShmCase {
        task,
        link,
        endpoint: LinkPeer::Nothing,
    };
    let through = |task, link, pacing, send_mode| ShmCase {
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
    let tap = |window| ShmCase {
        task: GuestTask::Echo,
        link: FrameLink::Tap(window),
        endpoint: LinkPeer::Kernel,
    };
    cases.extend([16, source::WINDOW].map(tap).into_iter().filter(|_| solo5));
    cases
}

/// Programs and parameters that all measurements share.
struct Harness<'b> {
    duration: Duration,
    sandbox_ns: &'b SandboxNs,
    /// Path of the program `pontoon`.
    program: PathBuf,
    solo5: Option<Solo5>,
}

impl Harness<'_> {
    fn measure(&self, case: ShmCase) -> Result<ShmSample> {
        match (case.endpoint, case.link) {
            (LinkPeer::Engine(pacing, send_mode), _) => engine::measure(self, case, pacing, send_mode),
            (LinkPeer::Kernel, FrameLink::Tap(window)) => {
                let solo5 = self.solo5.as_ref().context("no source tree of Solo5 was given")?;
                solo5.measure(window, self.duration)
            }
            (_, FrameLink::Memory(pacing)) => {
                let (guest, device) = memory::measure(case.task, pacing, self.duration)?;
                Ok(ShmSample::alone(&guest, &device))
            }
            (_, FrameLink::Packet | FrameLink::Tap(_)) => {
                let (guest, device) = packet::measure(case.task, self.duration)?;
                Ok(ShmSample::alone(&guest, &device))
            }
        }
    }

    /// Returns the path of a copy of `pontoon` that every user may execute.
    fn pontoon(&self) -> Result<PathBuf> {
        self.sandbox_ns.install_program(&self.program, "pontoon")
    }

    fn socket(&self) -> Result<PathBuf> {
        self.sandbox_ns.world_writable_path("guest.sock")
    }
}

impl ShmSample {
    /// Returns the figures of a measurement without an engine, from the counts of both sides.
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

impl ShmSummary {
    /// Summarises one or more samples of a row.
    fn of(samples: &[ShmSample]) -> Self {
        let all = |figure: fn(&ShmSample) -> f64| samples.iter().map(figure).collect::<Vec<_>>();
        let middle = |figure| median(&all(figure)).unwrap_or(f64::NAN);
        let rates = all(|sample| sample.rate);
        Self {
            median: ShmSample {
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
    /// Returns the number of bytes of a frame in measurements without an engine.
    fn frame(self) -> usize {
        match self {
            Self::Receive => 14 + 20 + 8 + self.payload(),
            Self::Echo | Self::Send(_) | Self::Idle => 64,
        }
    }

    /// Returns the number of bytes of UDP payload in measurements with an engine.
    fn payload(self) -> usize {
        match self {
            Self::Receive => 1300,
            Self::Echo | Self::Send(_) | Self::Idle => 64,
        }
    }

    /// Returns true if the device sends frames to the guest.
    fn generates(self) -> bool {
        matches!(self, Self::Receive | Self::Echo)
    }
}

#[cfg(test)]
mod tests;
