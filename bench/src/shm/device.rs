//! The device's side of the virtqueues in shared memory, without an engine: a generator and a sink of frames.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Result;
use pontoon_guest::{HEADER, Pacing};
use pontoon_ring::device::{self, State};
use pontoon_ring::memory::{Area, Raw, Window};
use pontoon_ring::{Features, Layout, Notification};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::GuestTask;
use super::process::{GuestProcess, SideCounts, Stopwatch};

/// Number of frames that the device adds to the used ring at once.
const BURST: usize = 64;

/// Time that the device polls before it sleeps.
const WINDOW: Duration = Duration::from_micros(50);

/// Number of turns of the loop between two checks whether the guest has finished.
const TURNS: u32 = 256;

/// The device's side of the two virtqueues, receive and transmit.
pub(super) struct RingDevice<'m> {
    memory: Window<Raw<'m>>,
    to_guest: device::Device,
    from_guest: device::Device,
    kicks: [OwnedFd; 2],
    calls: [OwnedFd; 2],
    pacing: Pacing,
    called: u64,
    frames: u64,
    scratch: Box<[u8]>,
}

impl<'m> RingDevice<'m> {
    pub(super) fn new(
        memory: Window<Raw<'m>>,
        [receive, transmit]: [Layout; 2],
        features: Features,
        kicks: [OwnedFd; 2],
        calls: [OwnedFd; 2],
        pacing: Pacing,
    ) -> Result<Self> {
        Ok(Self {
            memory,
            to_guest: device::Device::new(receive, features, State::default())?,
            from_guest: device::Device::new(transmit, features, State::default())?,
            kicks,
            calls,
            pacing,
            called: 0,
            frames: 0,
            scratch: vec![0; 2048].into(),
        })
    }

    /// Serves the guest until it has finished. Returns the device's counts.
    pub(super) fn serve(&mut self, task: GuestTask, guest: &GuestProcess) -> Result<SideCounts> {
        let mut frame = vec![0x55; HEADER + task.frame()];
        frame[..HEADER].fill(0);
        // The field num_buffers of virtio_net_hdr.
        frame[HEADER - 2] = 1;
        let watch = Stopwatch::start();
        let mut idle: Option<Instant> = None;
        let mut turn = 0_u32;
        loop {
            let made = if task.generates() {
                self.generate(&frame)?
            } else {
                0
            };
            let moved = made + self.sink()?;
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(TURNS) && guest.is_done()? {
                break;
            }
            if moved > 0 {
                idle = None;
                continue;
            }
            let since = *idle.get_or_insert_with(Instant::now);
            let sleeps = match self.pacing {
                Pacing::Event => true,
                Pacing::Hybrid => since.elapsed() > WINDOW,
                Pacing::Poll => false,
            };
            if !sleeps {
                std::hint::spin_loop();
            } else if !self.rearm(task)? {
                self.sleep(guest)?;
                idle = None;
                if guest.is_done()? {
                    break;
                }
            }
        }
        Ok(watch.stop(self.frames, self.called))
    }

    /// Writes `frame` into at most [`BURST`] buffers of the guest's receive queue. Returns the number of frames.
    fn generate(&mut self, frame: &[u8]) -> Result<usize> {
        let mut ring = self.to_guest.attach(self.memory)?;
        ring.suppress();
        ring.poll()?;
        let mut made = 0;
        while made < BURST
            && let Some(chain) = ring.pop(|piece| piece.area.copy_in(0, frame))?
        {
            ring.put(chain, frame.len() as u32);
            made += 1;
        }
        let notification = ring.publish();
        if notification == Notification::Required {
            self.call(0)?;
        }
        self.frames += made as u64;
        Ok(made)
    }

    /// Reads at most [`BURST`] frames from the guest's transmit queue. Returns the number of frames.
    fn sink(&mut self) -> Result<usize> {
        let mut ring = self.from_guest.attach(self.memory)?;
        ring.suppress();
        ring.poll()?;
        let mut received = 0;
        while received < BURST {
            let scratch = &mut self.scratch;
            let popped = ring.pop(|piece| {
                let len = piece.area.len().min(scratch.len());
                piece.area.copy_out(0, &mut scratch[..len]);
            })?;
            let Some(chain) = popped else { break };
            ring.put(chain, 0);
            received += 1;
        }
        let notification = ring.publish();
        if notification == Notification::Required {
            self.call(1)?;
        }
        self.frames += received as u64;
        Ok(received)
    }

    /// Enables notifications by the guest. Returns true if frames have arrived meanwhile.
    fn rearm(&mut self, task: GuestTask) -> Result<bool> {
        let sent = self.from_guest.attach(self.memory)?.rearm()?;
        let room = if task.generates() {
            self.to_guest.attach(self.memory)?.rearm()?
        } else {
            0
        };
        Ok(sent + room > 0)
    }

    /// Sleeps until the guest notifies the device (a kick), or has finished.
    fn sleep(&mut self, guest: &GuestProcess) -> Result<()> {
        let [receive, transmit] = &self.kicks;
        let mut fds = [receive.as_fd(), transmit.as_fd(), guest.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for (kick, fd) in self.kicks.iter().zip(&fds) {
            if fd.revents().contains(PollFlags::IN) {
                rustix::io::read(kick, &mut [0; 8])?;
            }
        }
        Ok(())
    }

    fn call(&mut self, ring: usize) -> Result<()> {
        self.called += 1;
        rustix::io::write(&self.calls[ring], &1_u64.to_ne_bytes())?;
        Ok(())
    }
}
