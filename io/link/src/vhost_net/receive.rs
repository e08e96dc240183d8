//! Receiving of frames from the guest through a virtqueue: the kernel writes each frame into one or several buffers of
//! this process.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::Frame;
use pontoon_ring::driver::{Buffer, Used};
use pontoon_sys::vhost::{VhostDevice, VringIndex};
use pontoon_wire::frame::HEAD;
use pontoon_wire::vnet::{self, Offload};
use vm_memory::VolatileSlice;

use super::places;
use super::queue::{EventFd, FailureAlarm, VhostNetFailure, VhostNetQueue};
use crate::{BURST, ReceivedBurst, Rest};

/// Number of buffers: enough for a burst of the longest frames that the engine processes, and for another in the
/// kernel.
pub(super) const BUFFERS: u16 = 128;

/// Size of a buffer in bytes. Four buffers hold the longest frame with `virtio_net_hdr` and VLAN tag; most frames have
/// the maximum length or fit into one buffer.
const STRIDE: usize = (16 << 10) + 512;

/// Number of buffers that are returned together, so that a kernel that has run out of buffers is notified once for all
/// of them.
const TOGETHER: usize = BUFFERS as usize / 2;

/// Total size in bytes of the receive buffers.
pub(super) const BYTES: usize = BUFFERS as usize * STRIDE;

/// Number of buffers of the longest frame.
const MOST: usize = 4;

/// The receive virtqueue of a vhost-net device and its buffers.
#[derive(Debug)]
pub(super) struct VringReceiver {
    device: Arc<VhostDevice>,
    queue: VhostNetQueue,
    headers: Box<[[u8; vnet::LEN + HEAD]; BURST]>,
    /// Indices of the buffers that the kernel does not have. If the kernel has none left, each buffer is here or in the
    /// used ring.
    ours: ArrayVec<u32, { BUFFERS as usize }>,
    /// Number of bytes that were received since the last `take_bytes`.
    bytes: usize,
}

impl VringReceiver {
    /// Creates the virtqueue and makes all buffers available to the kernel, which fills them after the queue has
    /// started.
    pub(super) fn new(
        device: &Arc<VhostDevice>,
        kick: &EventFd,
        alarm: &Arc<FailureAlarm>,
    ) -> io::Result<Self> {
        let (which, at) = (VringIndex::Receive, places::RECEIVE_RING);
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

    /// Returns true if the kernel needs a notification for buffers that were published since the last call.
    pub(super) fn take_due(&mut self) -> bool {
        self.queue.take_due()
    }

    /// Returns the number of bytes that were received since the last call.
    pub(super) fn take_bytes(&mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }

    /// Returns the number of used buffers in the ring: filled by the kernel and not received yet.
    pub(super) fn waiting(&mut self) -> Result<u16, VhostNetFailure> {
        Ok(self.queue.ring()?.poll()?)
    }

    /// Requests a notification for the next used buffer. Returns the number of used buffers in the ring, as
    /// [`Self::waiting`].
    pub(super) fn rearm(&mut self) -> Result<u16, VhostNetFailure> {
        Ok(self.queue.ring()?.rearm()?)
    }

    /// Implements [`crate::Receive::receive`].
    pub(super) fn receive(
        &mut self,
        max: usize,
        sink: impl FnOnce(&[Frame<'_>]),
    ) -> Result<ReceivedBurst, VhostNetFailure> {
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
                return Err(VhostNetFailure::Frame(count));
            }
            parts.push(
                buffer
                    .offset(vnet::LEN)
                    .map_err(|_| VhostNetFailure::Frame(count))?,
            );
            for _ in 1..count {
                let next = ring.reap()?.ok_or(VhostNetFailure::Frame(count))?;
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

    /// Makes the buffers in `ours` available to the kernel.
    fn offer(&mut self) -> Result<(), VhostNetFailure> {
        let base = self.queue.address(places::RECEIVE_BUFFERS);
        let mut ring = self.queue.ring()?;
        for buffer in self.ours.drain(..) {
            let address = base + u64::from(buffer) * STRIDE as u64;
            ring.add(buffer, &[Buffer::writable(address, STRIDE as u32)])
                .map_err(|_| VhostNetFailure::Add)?;
        }
        self.queue.publish()
    }
}

/// Returns the bytes that the kernel has written into a buffer.
fn written<'a>(memory: &VolatileSlice<'a>, used: Used) -> Result<VolatileSlice<'a>, VhostNetFailure> {
    let at = places::RECEIVE_BUFFERS + used.tag as usize * STRIDE;
    // The ring has checked that the kernel had this buffer, and that the length does not exceed the buffer's.
    memory
        .subslice(at, used.len as usize)
        .map_err(|_| VhostNetFailure::Add)
}

/// A frame in one or several used buffers.
struct UsedFrame {
    offload: Offload,
    /// Range of the frame's headers in the copy of its first buffer.
    head: Range<usize>,
    /// Range of the frame's parts in the list of parts of all frames.
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
