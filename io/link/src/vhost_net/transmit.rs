//! Sending of frames to the guest through a virtqueue: frames are assembled in a circular buffer and made available to
//! the kernel when a burst ends; their memory is reclaimed when more room is needed. Each frame has one descriptor.

use std::io;
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::Limits;
use pontoon_engine::link::{Room, TransmitError};
use pontoon_ring::driver::Buffer;
use pontoon_sys::vhost::{VhostDevice, VringIndex};
use pontoon_wire::vnet::{self, Offload, Segmentation};
use vm_memory::VolatileSlice;

use super::frame_ring::{FrameRing, FreeRange};
use super::places;
use super::queue::{EventFd, FailureAlarm, VhostNetFailure, VhostNetQueue};

/// Limit on the number of frames that the kernel has not sent yet.
pub(super) const FRAMES: u16 = 256;

/// Size of the circular buffer in bytes.
pub(super) const BYTES: usize = 2 << 20;

/// Limit on the frames of one reservation.
const MAX_FRAMES: usize = 64;

/// Bytes in front of each reserved payload, for `virtio_net_hdr` and the frame's headers.
const HEADROOM: usize = 128;

/// Size in bytes of the largest IP packet, also if it will be segmented.
const MAX_PACKET: usize = 65_535;

/// Size of the longest frame in bytes: Ethernet header with a VLAN tag, and the largest packet.
const MAX_FRAME: usize = 18 + MAX_PACKET;

/// The transmit virtqueue of a vhost-net device and its circular buffer.
#[derive(Debug)]
pub(super) struct VringTransmitter {
    device: Arc<VhostDevice>,
    queue: VhostNetQueue,
    ring: FrameRing,
    limits: Limits,
    /// True if a frame was refused for lack of room since the last `take_full`.
    full: bool,
    /// Number of bytes that were made available to the kernel since the last `take_bytes`.
    bytes: usize,
}

impl VringTransmitter {
    pub(super) fn new(
        device: &Arc<VhostDevice>,
        kick: &EventFd,
        alarm: &Arc<FailureAlarm>,
        limits: Limits,
    ) -> io::Result<Self> {
        let (which, at) = (VringIndex::Transmit, places::TRANSMIT_RING);
        Ok(Self {
            device: device.clone(),
            queue: VhostNetQueue::new(device, which, FRAMES, at, kick, alarm)?,
            ring: FrameRing::new(BYTES, FRAMES),
            limits,
            full: false,
            bytes: 0,
        })
    }

    pub(super) fn queue(&self) -> &VhostNetQueue {
        &self.queue
    }

    /// Returns true if the kernel needs a notification for buffers that were published since the last call.
    pub(super) fn take_due(&mut self) -> bool {
        self.queue.take_due()
    }

    /// Returns the number of bytes that were made available to the kernel since the last call.
    pub(super) fn take_bytes(&mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }

    /// Returns true if a frame was refused for lack of room since the last call.
    pub(super) fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }

    /// Requests a notification for the next frame that the kernel has sent. Returns the number of frames that it has
    /// sent already.
    pub(super) fn rearm(&mut self) -> Result<u16, VhostNetFailure> {
        Ok(self.queue.ring()?.rearm()?)
    }

    /// Implements [`pontoon_engine::Transmit::send`].
    pub(super) fn send(
        &mut self,
        offload: Offload,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), TransmitError> {
        let len = head.len() + payload.len();
        if len > MAX_FRAME || !takes(&self.limits, offload) {
            return Err(TransmitError::Rejected);
        }
        let run = self.room(vnet::LEN + len).ok_or(TransmitError::Full)?;
        let frame = place(&self.device, run.at, vnet::LEN + len)?;
        frame.copy_from(&vnet::emit(offload, head.len()));
        write(&frame, vnet::LEN, head)?;
        write(&frame, vnet::LEN + head.len(), payload)?;
        self.ring.produce(run, 0, vnet::LEN + len);
        Ok(())
    }

    /// Implements [`pontoon_engine::Transmit::reserve`].
    pub(super) fn reserve(&mut self, frames: usize, payload: usize) -> Option<VringReservation<'_>> {
        let payload = payload.min(MAX_PACKET);
        let stride = (HEADROOM + payload).next_multiple_of(HEADROOM);
        if frames == 0 {
            return None;
        }
        let run = self.room(stride)?;
        let frames = frames
            .min(MAX_FRAMES)
            .min(run.len / stride)
            .min(self.ring.vacancies());
        let payloads: Option<ArrayVec<_, MAX_FRAMES>> = (0..frames)
            .map(|nth| place(&self.device, run.at + nth * stride + HEADROOM, payload).ok())
            .collect();
        Some(VringReservation {
            payloads: payloads?,
            device: &self.device,
            ring: &mut self.ring,
            limits: &self.limits,
            run,
            stride,
            next: 0,
        })
    }

    /// Makes the produced frames available to the kernel.
    pub(super) fn flush(&mut self) -> Result<(), VhostNetFailure> {
        if !self.ring.has_unsubmitted() {
            return Ok(());
        }
        let base = self.queue.address(places::TRANSMIT_BUFFERS);
        let mut ring = self.queue.ring()?;
        while let Some(frame) = self.ring.submit() {
            let buffer = Buffer::readable(base + frame.at as u64, frame.len as u32);
            ring.add(frame.name, &[buffer])
                .map_err(|_| VhostNetFailure::Add)?;
            self.bytes += frame.len;
        }
        self.queue.publish()
    }

    /// Returns room for a frame of `len` bytes, after reclaiming the memory of sent frames.
    fn room(&mut self, len: usize) -> Option<FreeRange> {
        let reclaimed = self.reclaim();
        self.queue.checked(reclaimed);
        let run = match self.ring.vacancies() {
            0 => None,
            _ => self.ring.room(len),
        };
        if run.is_none() {
            self.full = true;
            // As no more frames can gather, the kernel has to be notified however few bytes have gathered.
            self.bytes += BYTES;
        }
        run
    }

    /// Makes a frame with an invalid address available to the kernel.
    #[cfg(test)]
    pub(super) fn offer_nonsense(&mut self) {
        let mut ring = self.queue.ring().unwrap();
        ring.add(u32::MAX, &[Buffer::readable(64, 64)]).unwrap();
        self.queue.publish().unwrap();
    }

    /// Reclaims the memory of frames that the kernel has sent.
    fn reclaim(&mut self) -> Result<(), VhostNetFailure> {
        let mut ring = self.queue.ring()?;
        ring.suppress();
        if ring.poll()? > 0 {
            while let Some(used) = ring.reap()? {
                self.ring.give_back(used.tag);
            }
        }
        Ok(())
    }
}

/// Reserved frames in the circular buffer, into which the engine peeks data.
#[derive(Debug)]
pub struct VringReservation<'a> {
    device: &'a VhostDevice,
    ring: &'a mut FrameRing,
    limits: &'a Limits,
    /// Range of the reserved frames, each of which is [`HEADROOM`] bytes and then its payload.
    run: FreeRange,
    stride: usize,
    payloads: ArrayVec<VolatileSlice<'a>, MAX_FRAMES>,
    next: usize,
}

impl Room for VringReservation<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        &self.payloads[self.next..]
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError> {
        let payload = self.payloads.get(self.next).ok_or(TransmitError::Rejected)?;
        let skip = self.next * self.stride + HEADROOM;
        self.next += 1;
        let front = vnet::LEN + head.len();
        if len > payload.len() || front > HEADROOM || !takes(self.limits, offload) {
            return Err(TransmitError::Rejected);
        }
        let begin = place(self.device, self.run.at + skip - front, front)?;
        begin.copy_from(&vnet::emit(offload, head.len()));
        write(&begin, vnet::LEN, head)?;
        self.ring.produce(self.run, skip - front, front + len);
        Ok(())
    }
}

/// Returns true if the limits permit the segmentation that a frame requires.
fn takes(limits: &Limits, offload: Offload) -> bool {
    match offload.segmentation {
        Segmentation::Whole => true,
        Segmentation::Tcp4 { .. } => limits.tso4,
        Segmentation::Tcp6 { .. } => limits.tso6,
        Segmentation::Udp { .. } => limits.uso,
    }
}

/// Returns `len` bytes at offset `at` of the circular buffer.
fn place(device: &VhostDevice, at: usize, len: usize) -> Result<VolatileSlice<'_>, TransmitError> {
    let memory = device.memory().whole();
    memory
        .subslice(places::TRANSMIT_BUFFERS + at, len)
        .map_err(|_| TransmitError::Rejected)
}

/// Copies `bytes` to offset `at` of a frame.
fn write(frame: &VolatileSlice<'_>, at: usize, bytes: &[u8]) -> Result<(), TransmitError> {
    let to = frame
        .subslice(at, bytes.len())
        .map_err(|_| TransmitError::Rejected)?;
    to.copy_from(bytes);
    Ok(())
}
