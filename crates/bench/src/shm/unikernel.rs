//! What the guest does behind an engine: makes itself known, then takes datagrams or send_mode them back.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use pontoon_guest::{Attached, Platform as _, QueueError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::Task;
use super::datagram;
use super::memory::SharedCounter;
use super::process::{SideCounts, Stopwatch};

/// Frames after which what was received is told, and what was queued is flushed.
const BURST: usize = 32;

/// How long the guest waits for the first datagram.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long it waits for a frame before it looks at the clock.
const TURN: Duration = Duration::from_millis(20);

/// What carries the guest's frames.
pub(super) trait FrameLink {
    /// The next frame, for which this waits a moment.
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>>;

    /// SendMode a frame with the next flush; one that finds no room is lost.
    fn queue(&mut self, frame: &[u8]) -> Result<()>;

    fn flush(&mut self) -> Result<()>;

    /// Notifications of the device and times asleep, so endpoint.
    fn counts(&self) -> (u64, u64);
}

/// A call for each frame.
pub(super) struct Packets(pub(super) OwnedFd);

/// Shared memory.
pub(super) struct Rings(pub(super) Attached);

impl FrameLink for Packets {
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        match recv(&self.0, into, RecvFlags::empty()) {
            Ok((0, _)) => bail!("the engine is gone"),
            Ok((len, _)) => Ok(Some(len)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn queue(&mut self, frame: &[u8]) -> Result<()> {
        match send(&self.0, frame, SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn counts(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl FrameLink for Rings {
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        if let Some(len) = self.0.read(into)? {
            return Ok(Some(len));
        }
        let until = self.0.platform().now() + TURN;
        self.0.poll(Some(until))?;
        Ok(self.0.read(into)?)
    }

    fn queue(&mut self, frame: &[u8]) -> Result<()> {
        match self.0.queue(frame) {
            Ok(()) | Err(QueueError::Full) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.0.flush()?)
    }

    fn counts(&self) -> (u64, u64) {
        let counters = self.0.counters();
        (counters.doorbells, counters.sleeps)
    }
}

/// Moves datagrams for so long, from the first one on. `received` is one more than their number as soon as the guest is known.
pub(super) fn work(
    net: &mut impl FrameLink,
    task: Task,
    duration: Duration,
    received: &SharedCounter,
) -> Result<SideCounts> {
    let mut frame = [0; 2048];
    resolve_gateway(net, &mut frame)?;
    received.store(1, Ordering::Release);
    let mut frames = first_datagram(net, task, &mut frame, TIMEOUT)?;
    ensure!(frames > 0, "no datagram came");
    let watch = Stopwatch::start();
    let before = net.counts();
    while watch.elapsed() < duration {
        for _ in 0..BURST {
            match take_frame(net, task, &mut frame)? {
                Some(more) => frames += more,
                None => break,
            }
        }
        net.flush()?;
        received.store(1 + frames, Ordering::Release);
    }
    let after = net.counts();
    Ok(SideCounts {
        sleeps: after.1 - before.1,
        ..watch.stop(frames, after.0 - before.0)
    })
}

/// Has the engine learn the guest's Ethernet address.
fn resolve_gateway(net: &mut impl FrameLink, frame: &mut [u8]) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT {
        net.queue(&datagram::arp_request())?;
        net.flush()?;
        if let Some(len) = net.read(frame)?
            && datagram::is_arp_reply(&frame[..len])
        {
            return Ok(());
        }
    }
    bail!("the gateway does not answer")
}

/// Waits for a first datagram.
fn first_datagram(net: &mut impl FrameLink, task: Task, frame: &mut [u8], timeout: Duration) -> Result<u64> {
    let begin = Instant::now();
    let mut frames = 0;
    while frames == 0 && begin.elapsed() < timeout {
        frames = take_frame(net, task, frame)?.unwrap_or(0);
    }
    net.flush()?;
    Ok(frames)
}

/// Takes a frame, and says how many datagrams that is. `None`: there was none.
fn take_frame(net: &mut impl FrameLink, task: Task, frame: &mut [u8]) -> Result<Option<u64>> {
    let Some(len) = net.read(frame)? else {
        return Ok(None);
    };
    let Some(frame) = frame.get_mut(..len).filter(|frame| datagram::is_for_guest(frame)) else {
        return Ok(Some(0));
    };
    if task == Task::Echo {
        datagram::swap_endpoints(frame);
        net.queue(frame)?;
    }
    Ok(Some(1))
}
