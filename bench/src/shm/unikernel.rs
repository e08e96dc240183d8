//! The guest's part of a measurement with an engine: resolves the gateway's address, then receives datagrams or sends
//! them back.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use pontoon_guest::{Attached, Platform as _, QueueError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::GuestTask;
use super::datagram;
use super::memory::SharedCounter;
use super::process::{SideCounts, Stopwatch};

/// Number of frames after which the shared counter is updated and the link is flushed.
const BURST: usize = 32;

/// Time limit for the first datagram to arrive.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time that the guest waits for a frame before it reads the clock.
const TURN: Duration = Duration::from_millis(20);

/// The guest's end of the link to the engine.
pub(super) trait FrameLink {
    /// Reads the next frame into `into` and returns its length, or `None` if none arrives within a short time.
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>>;

    /// Queues a frame for the next flush. A frame for which there is no room is dropped.
    fn queue(&mut self, frame: &[u8]) -> Result<()>;

    fn flush(&mut self) -> Result<()>;

    /// Returns the number of notifications sent to the device and the number of sleeps.
    fn counts(&self) -> (u64, u64);
}

/// A link over a socket, with one system call for each frame.
pub(super) struct PacketLink(pub(super) OwnedFd);

/// A link over virtqueues in shared memory, through the guest library.
pub(super) struct RingLink(pub(super) Attached);

impl FrameLink for PacketLink {
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        match recv(&self.0, into, RecvFlags::empty()) {
            Ok((0, _)) => bail!("the engine has closed the link"),
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

impl FrameLink for RingLink {
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

/// Receives datagrams (and sends them back, depending on `task`) for `duration`, counted from the first datagram.
/// `received` is set to 1 when the engine knows the guest's Ethernet address, and then to the number of datagrams
/// plus one.
pub(super) fn work(
    net: &mut impl FrameLink,
    task: GuestTask,
    duration: Duration,
    received: &SharedCounter,
) -> Result<SideCounts> {
    let mut frame = [0; 2048];
    resolve_gateway(net, &mut frame)?;
    received.store(1, Ordering::Release);
    let mut frames = first_datagram(net, task, &mut frame, TIMEOUT)?;
    ensure!(frames > 0, "no datagram arrived");
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

/// Sends ARP requests until the gateway answers. By these requests the engine learns the guest's Ethernet address.
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

/// Receives frames until a datagram for the guest arrives. Returns the number of datagrams, 0 after the timeout.
fn first_datagram(
    net: &mut impl FrameLink,
    task: GuestTask,
    frame: &mut [u8],
    timeout: Duration,
) -> Result<u64> {
    let begin = Instant::now();
    let mut frames = 0;
    while frames == 0 && begin.elapsed() < timeout {
        frames = take_frame(net, task, frame)?.unwrap_or(0);
    }
    net.flush()?;
    Ok(frames)
}

/// Reads a frame and sends it back if `task` is `Echo`. Returns 1 for a datagram to the published port, 0 for another
/// frame, `None` if there was no frame.
fn take_frame(net: &mut impl FrameLink, task: GuestTask, frame: &mut [u8]) -> Result<Option<u64>> {
    let Some(len) = net.read(frame)? else {
        return Ok(None);
    };
    let Some(frame) = frame.get_mut(..len).filter(|frame| datagram::is_for_guest(frame)) else {
        return Ok(Some(0));
    };
    if task == GuestTask::Echo {
        datagram::swap_endpoints(frame);
        net.queue(frame)?;
    }
    Ok(Some(1))
}
