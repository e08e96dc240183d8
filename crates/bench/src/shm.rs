//! `pontoon bench shm`: what it costs a guest to move frames, by a call for each and in shared memory.
//!
//! The guest is a process of its own that may make next to no system calls. The engine is left out: on the device's side
//! frames come from a generator and go to a sink, so that the figures are the link's alone.

use std::time::Duration;

use anyhow::{Context, Result};
use pontoon_guest::Pacing;

use crate::args::Shm;
use crate::stats::median;

mod device;
mod guest;
mod memory;
mod packet;
mod process;
mod table;

use process::Outcome;

/// What is measured: one row.
#[derive(Clone, Copy, Debug)]
struct Case {
    task: Task,
    link: Link,
}

/// What the guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Takes frames of 1,300 bytes of UDP payload.
    Receive,
    /// Sends frames of 64 bytes back.
    Echo,
    /// Sends frames of 64 bytes, this many at a time.
    Send(usize),
    /// Waits for nothing.
    Idle,
}

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// A SOCK_SEQPACKET socket, with a call for each frame.
    Packet,
    /// Shared memory; both sides wait in this way.
    Memory(Pacing),
}

/// What came of one measurement.
#[derive(Clone, Copy, Debug)]
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
}

const MEMORY: [Link; 3] = [
    Link::Memory(Pacing::Event),
    Link::Memory(Pacing::Hybrid),
    Link::Memory(Pacing::Poll),
];

/// Measures all rows in turn, as often as asked, and prints the table.
///
/// # Errors
/// Out of processes, memory or descriptors; or the guest failed.
pub(crate) fn shm(arguments: &Shm) -> Result<String> {
    let cases = cases();
    let mut samples = vec![Vec::new(); cases.len()];
    let duration = Duration::from_secs_f64(arguments.duration);
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        for (case, samples) in cases.iter().zip(&mut samples) {
            let sample = measure(*case, duration).with_context(|| format!("{case:?}"))?;
            samples.push(sample);
        }
    }
    let summed: Vec<_> = samples.iter().map(|samples| Sample::median(samples)).collect();
    Ok(table::markdown(&cases, &summed))
}

/// The rows.
fn cases() -> Vec<Case> {
    let all = [Link::Packet].into_iter().chain(MEMORY);
    let of = |task| all.clone().map(move |link| Case { task, link });
    of(Task::Receive)
        .chain(of(Task::Echo))
        .chain(of(Task::Send(1)))
        .chain(MEMORY.map(|link| Case {
            task: Task::Send(32),
            link,
        }))
        .chain(MEMORY[..2].iter().map(|link| Case {
            task: Task::Idle,
            link: *link,
        }))
        .collect()
}

fn measure(case: Case, duration: Duration) -> Result<Sample> {
    let (guest, device) = match case.link {
        Link::Packet => packet::measure(case.task, duration)?,
        Link::Memory(pacing) => memory::measure(case.task, pacing, duration)?,
    };
    Ok(Sample::new(&guest, &device))
}

impl Sample {
    fn new(guest: &Outcome, device: &Outcome) -> Self {
        let frames = guest.frames.max(1) as f64;
        Self {
            rate: guest.frames as f64 / guest.seconds(),
            kicks: guest.notifications as f64 / frames,
            calls: device.notifications as f64 / frames,
            guest: guest.load(),
            device: device.load(),
        }
    }

    /// Of each figure by itself. There is one sample at least.
    fn median(samples: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let values: Vec<_> = samples.iter().map(figure).collect();
            median(&values).unwrap_or(f64::NAN)
        };
        Self {
            rate: of(|sample| sample.rate),
            kicks: of(|sample| sample.kicks),
            calls: of(|sample| sample.calls),
            guest: of(|sample| sample.guest),
            device: of(|sample| sample.device),
        }
    }
}

impl Task {
    /// Bytes of each frame.
    fn frame(self) -> usize {
        match self {
            Self::Receive => 14 + 20 + 8 + 1300,
            Self::Echo | Self::Send(_) | Self::Idle => 64,
        }
    }

    /// Whether frames go to the guest.
    fn generates(self) -> bool {
        matches!(self, Self::Receive | Self::Echo)
    }
}

#[cfg(test)]
mod tests;
