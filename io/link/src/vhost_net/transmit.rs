//! Frames to the guest: put together in a circular buffer, shown to the kernel when a burst ends, and its room had back
//! when more is needed. One frame is one descriptor.

use std::io;
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::Limits;
use pontoon_engine::link::{Room, TransmitError};
use pontoon_ring::driver::Buffer;
use pontoon_sys::vhost::{Device, Which};
use pontoon_wire::vnet::{self, Offload, Segmentation};
use vm_memory::VolatileSlice;

use super::frame_ring::{FrameRing, Run};
use super::places;
use super::queue::{Alarm, EventFd, Failure, VhostNetQueue};

/// Frames that the kernel may have at one time.
pub(super) const FRAMES: u16 = 256;

/// Bytes that frames are put together in.
pub(super) const BYTES: usize = 2 << 20;

/// Frames of one reservation.
const MAX_FRAMES: usize = 64;

/// Bytes in front of each reserved payload, for `virtio_net_hdr` and the frame's headers.
const HEADROOM: usize = 128;

/// Bytes of the largest IP packet, segmented or not.
const MAX_PACKET: usize = 65_535;

/// Bytes of the longest frame: Ethernet header with a tag, and the largest packet.
const MAX_FRAME: usize = 18 + MAX_PACKET;

/// The sending half.
#[derive(Debug)]
pub(super) struct VringTransmitter {
    device: Arc<Device>,
    queue: VhostNetQueue,
    ring: FrameRing,
    limits: Limits,
    /// A frame was refused for want of room.
    full: bool,
    /// Bytes that were shown to the kernel.
    bytes: usize,
}

impl VringTransmitter {
    pub(super) fn new(
        device: &Arc<Device>,
        kick: &EventFd,
        alarm: &Arc<Alarm>,
        limits: Limits,
    ) -> io::Result<Self> {
        let (which, at) = (Which::Transmit, places::TRANSMIT_RING);
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

    /// As [`VhostNetQueue::take_due`].
    pub(super) fn take_due(&mut self) -> bool {
        self.queue.take_due()
    }

    /// Bytes that were shown to the kernel since this was last asked.
    pub(super) fn take_bytes(&mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }

    /// Returns true if a frame was refused for lack of room since the last call.
    pub(super) fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }

    /// Requests a notification when the kernel has sent another frame. Returns the number that it has sent already.
    pub(super) fn rearm(&mut self) -> Result<u16, Failure> {
        Ok(self.queue.ring()?.rearm()?)
    }

    /// As [`pontoon_engine::Transmit::send`].
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

    /// As [`pontoon_engine::Transmit::reserve`].
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

    /// Shows the kernel what was produced.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        if !self.ring.has_unsubmitted() {
            return Ok(());
        }
        let base = self.queue.address(places::TRANSMIT_BUFFERS);
        let mut ring = self.queue.ring()?;
        while let Some(frame) = self.ring.submit() {
            let buffer = Buffer::readable(base + frame.at as u64, frame.len as u32);
            ring.add(frame.name, &[buffer]).map_err(|_| Failure::Add)?;
            self.bytes += frame.len;
        }
        self.queue.publish()
    }

    /// Room for a frame of `len` bytes, had back from the kernel if need be.
    fn room(&mut self, len: usize) -> Option<Run> {
        let reclaimed = self.reclaim();
        self.queue.checked(reclaimed);
        let run = match self.ring.vacancies() {
            0 => None,
            _ => self.ring.room(len),
        };
        if run.is_none() {
            self.full = true;
            // However little it is, more cannot gather.
            self.bytes += BYTES;
        }
        run
    }

    /// Shows the kernel a frame that is nowhere.
    #[cfg(test)]
    pub(super) fn offer_nonsense(&mut self) {
        let mut ring = self.queue.ring().unwrap();
        ring.add(u32::MAX, &[Buffer::readable(64, 64)]).unwrap();
        self.queue.publish().unwrap();
    }

    /// Takes back what the kernel is done with.
    fn reclaim(&mut self) -> Result<(), Failure> {
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

/// Reserved frames.
#[derive(Debug)]
pub struct VringReservation<'a> {
    device: &'a Device,
    ring: &'a mut FrameRing,
    limits: &'a Limits,
    /// Frames side by side, each [`HEADROOM`] and then its payload.
    run: Run,
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

/// Returns true if the limits permit the segmentation of a frame.
fn takes(limits: &Limits, offload: Offload) -> bool {
    match offload.segmentation {
        Segmentation::Whole => true,
        Segmentation::Tcp4 { .. } => limits.tso4,
        Segmentation::Tcp6 { .. } => limits.tso6,
        Segmentation::Udp { .. } => limits.uso,
    }
}

/// `len` bytes of the circular buffer.
fn place(device: &Device, at: usize, len: usize) -> Result<VolatileSlice<'_>, TransmitError> {
    let memory = device.memory().whole();
    memory
        .subslice(places::TRANSMIT_BUFFERS + at, len)
        .map_err(|_| TransmitError::Rejected)
}

/// Copies bytes to `at` in a frame.
fn write(frame: &VolatileSlice<'_>, at: usize, bytes: &[u8]) -> Result<(), TransmitError> {
    let to = frame
        .subslice(at, bytes.len())
        .map_err(|_| TransmitError::Rejected)?;
    to.copy_from(bytes);
    Ok(())
}
