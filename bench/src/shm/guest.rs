//! The guest's part of a measurement without an engine: sends or receives frames through the guest library.

use std::time::Duration;

use anyhow::Result;
use pontoon_guest::{Interface, Platform, Process, QueueError};
use pontoon_ring::memory::{Raw, Window};

use super::GuestTask;
use super::process::{SideCounts, Stopwatch};

/// Number of descriptors of each virtqueue.
pub(super) const SIZE: usize = 256;

/// The guest library's interface on virtqueues in shared memory.
pub(super) type NetInterface<'m> = Interface<Window<Raw<'m>>, Process, SIZE>;

/// Number of frames after which the clock is read, if frames arrive without a pause.
const TURN: usize = 1024;

/// Sends or receives frames for `duration`. Returns the guest's counts.
pub(super) fn work(net: &mut NetInterface<'_>, task: GuestTask, duration: Duration) -> Result<SideCounts> {
    net.start();
    let watch = Stopwatch::start();
    let end = net.platform().now() + duration;
    let rung = net.counters().doorbells;
    while watch.elapsed() < duration {
        match task {
            GuestTask::Receive | GuestTask::Echo | GuestTask::Idle => {
                net.poll(Some(end))?;
                take(net, task == GuestTask::Echo, end)?;
            }
            GuestTask::Send(batch) => send(net, batch, end)?,
        }
    }
    let counters = net.counters();
    let frames = match task {
        GuestTask::Receive | GuestTask::Echo | GuestTask::Idle => counters.received,
        GuestTask::Send(_) => counters.sent,
    };
    Ok(watch.stop(frames, counters.doorbells - rung))
}

/// Receives frames until there are none, at most [`TURN`], and sends each back if `echo` is true.
fn take(net: &mut NetInterface<'_>, echo: bool, end: Duration) -> Result<()> {
    let mut frame = [0; 1514];
    for _ in 0..TURN {
        let Some(len) = net.read(&mut frame)? else { break };
        if echo {
            queue(net, &frame[..len], end)?;
        }
    }
    Ok(())
}

/// Sends [`TURN`] frames of 64 bytes, with a flush after each `batch`.
fn send(net: &mut NetInterface<'_>, batch: usize, end: Duration) -> Result<()> {
    let frame = [0x55; 64];
    for _ in 0..TURN / batch {
        for _ in 0..batch {
            queue(net, &frame, end)?;
        }
        net.flush()?;
    }
    Ok(())
}

/// Adds a frame to the transmit queue, and waits for a free descriptor if necessary.
fn queue(net: &mut NetInterface<'_>, frame: &[u8], end: Duration) -> Result<()> {
    loop {
        match net.queue(frame) {
            Ok(()) => return Ok(()),
            Err(QueueError::Full) => {
                net.poll(Some(end))?;
                if net.platform().now() >= end {
                    return Ok(());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}
