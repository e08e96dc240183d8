//! Frames from the guest: the kernel writes them to buffers of ours, as many for each as it takes.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::Frame;
use pontoon_ring::driver::{Buffer, Used};
use pontoon_sys::vhost::{Device, Which};
use pontoon_wire::frame::HEAD;
use pontoon_wire::vnet::{self, Offload};
use vm_memory::VolatileSlice;

use super::places;
use super::queue::{Alarm, EventFd, Failure, VhostNetQueue};
use crate::{BURST, ReceivedBurst, Rest};

/// Buffers: a burst of the longest frames with us, and another with the kernel.
pub(super) const BUFFERS: u16 = 128;

/// Bytes of a buffer. Four hold the longest frame, `virtio_net_hdr`, Ethernet header with a tag and all; most frames are
/// that long, or fit into one.
const STRIDE: usize = (16 << 10) + 512;

/// Buffers that are given back together: a kernel that has run out of them is woken once for so many.
const TOGETHER: usize = BUFFERS as usize / 2;

/// Bytes of all buffers.
pub(super) const BYTES: usize = BUFFERS as usize * STRIDE;

/// Buffers of the longest frame.
const MOST: usize = 4;

/// The receiving half.
#[derive(Debug)]
pub(super) struct VringReceiver {
    device: Arc<Device>,
    queue: VhostNetQueue,
    headers: Box<[[u8; vnet::LEN + HEAD]; BURST]>,
    /// Buffers that are not the kernel's. Where it has none left to write to, they are all here, or written to and wait.
    ours: ArrayVec<u32, { BUFFERS as usize }>,
    /// Bytes that were received.
    bytes: usize,
}

impl VringReceiver {
    /// Offers all buffers to the kernel, which fills them once the queue has started.
    pub(super) fn new(device: &Arc<Device>, kick: &EventFd, alarm: &Arc<Alarm>) -> io::Result<Self> {
        let (which, at) = (Which::Receive, places::RECEIVE_RING);
        let mut receiver = Self {
            device: device.clone(),
            queue: VhostNetQueue::new(device, which, BUFFERS, at, kick, alarm)?,
            headers: Box::new([[0; vnet::LEN + HEAD]; BURST]),
            ours: (0..u32::from(BUFFERS)).collect(),
            bytes: 0,
        };
        receiver.offer().map_err(io::Error::other)?;
        Ok(receiver)
    }

    pub(super) fn queue(&self) -> &VhostNetQueue {
        &self.queue
    }

    /// As [`VhostNetQueue::take_due`].
    pub(super) fn take_due(&mut self) -> bool {
        self.queue.take_due()
    }

    /// Bytes that were received since this was last asked.
    pub(super) fn take_bytes(&mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }

    /// Buffers that the kernel has written to and that wait here.
    pub(super) fn waiting(&mut self) -> Result<u16, Failure> {
        Ok(self.queue.ring()?.poll()?)
    }

    /// Requests a notification for the next frame. Returns the number that are waiting, as [`Self::waiting`].
    pub(super) fn rearm(&mut self) -> Result<u16, Failure> {
        Ok(self.queue.ring()?.rearm()?)
    }

    /// As [`crate::Receive::receive`].
    pub(super) fn receive(
        &mut self,
        max: usize,
        sink: impl FnOnce(&[Frame<'_>]),
    ) -> Result<ReceivedBurst, Failure> {
        let memory = self.device.memory().whole();
        let mut parts = ArrayVec::<VolatileSlice<'_>, { BURST * MOST }>::new();
        let mut taken = ArrayVec::<UsedFrame, BURST>::new();
        let mut malformed = 0;
        let mut ring = self.queue.ring()?;
        ring.suppress();
        ring.poll()?;
        while taken.len() < max.min(BURST)
            && let Some(first) = ring.reap()?
        {
            let begin = parts.len();
            let head = &mut self.headers[taken.len()];
            let buffer = written(&memory, first)?;
            self.ours.push(first.tag);
            let copied = buffer.copy_to(&mut head[..]);
            let count = vnet::buffers(&head[..copied]).unwrap_or(0);
            if !(1..=MOST).contains(&count.into()) {
                return Err(Failure::Frame(count));
            }
            parts.push(buffer.offset(vnet::LEN).map_err(|_| Failure::Frame(count))?);
            for _ in 1..count {
                let next = ring.reap()?.ok_or(Failure::Frame(count))?;
                self.ours.push(next.tag);
                parts.push(written(&memory, next)?);
            }
            match vnet::parse(&head[..copied]) {
                Ok((offload, head)) => taken.push(UsedFrame {
                    offload,
                    head: vnet::LEN..vnet::LEN + head.len(),
                    parts: begin..parts.len(),
                }),
                Err(_) => {
                    parts.truncate(begin);
                    malformed += 1;
                }
            }
        }
        if !taken.is_empty() {
            let headers = self.headers.iter();
            let frames = taken
                .iter()
                .zip(headers)
                .map(|(taken, head)| taken.frame(head, &parts));
            let frames = frames.collect::<ArrayVec<_, BURST>>();
            self.bytes += frames.iter().map(|frame| frame.len).sum::<usize>();
            sink(&frames);
        }
        drop(parts);
        if self.ours.len() >= TOGETHER {
            self.offer()?;
        }
        let rest = match self.waiting()? {
            0 => Rest::Drained,
            _ => Rest::More,
        };
        Ok(ReceivedBurst {
            frames: taken.len(),
            malformed,
            rest,
        })
    }

    /// Gives our buffers to the kernel.
    fn offer(&mut self) -> Result<(), Failure> {
        let base = self.queue.address(places::RECEIVE_BUFFERS);
        let mut ring = self.queue.ring()?;
        for buffer in self.ours.drain(..) {
            let address = base + u64::from(buffer) * STRIDE as u64;
            ring.add(buffer, &[Buffer::writable(address, STRIDE as u32)])
                .map_err(|_| Failure::Add)?;
        }
        self.queue.publish()
    }
}

/// The bytes that the kernel has written to a buffer.
fn written<'a>(memory: &VolatileSlice<'a>, used: Used) -> Result<VolatileSlice<'a>, Failure> {
    let at = places::RECEIVE_BUFFERS + used.tag as usize * STRIDE;
    // The ring has checked that it had this buffer, and that it has room for so much.
    memory.subslice(at, used.len as usize).map_err(|_| Failure::Add)
}

/// A frame that was taken.
struct UsedFrame {
    offload: Offload,
    /// The range of its head in the copy of its first buffer.
    head: Range<usize>,
    /// The range of its parts among those of all frames.
    parts: Range<usize>,
}

impl UsedFrame {
    fn frame<'a>(&self, head: &'a [u8], parts: &'a [VolatileSlice<'a>]) -> Frame<'a> {
        let parts = &parts[self.parts.clone()];
        Frame {
            offload: self.offload,
            head: &head[self.head.clone()],
            parts,
            len: parts.iter().map(VolatileSlice::len).sum(),
        }
    }
}
