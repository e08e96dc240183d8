//! Sending of frames to the guest by writing to a queue of the tap.

use std::io::IoSlice;
use std::os::fd::AsFd;

use arrayvec::ArrayVec;
use pontoon_engine::link::{Room, TransmitError};
use pontoon_engine::{Limits, Transmit};
use pontoon_sys::message;
use pontoon_wire::checksum;
use pontoon_wire::vnet::{self, Offload, Segmentation};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::{MAX_PACKET, QueueFd};

/// Size in bytes of the buffer from which frames are reserved.
const ROOM: usize = 1 << 20;

/// Limit on the frames of one reservation.
const MAX_FRAMES: usize = 64;

/// Bytes in front of each reserved payload, for `virtio_net_hdr` and the frame's headers: then a frame is one
/// contiguous range of bytes, for one write(2).
const HEADROOM: usize = 128;

/// The half of a tap link that sends frames.
#[derive(Debug)]
pub struct TapTransmitter {
    writer: TapWriter,
    limits: Limits,
    room: Vec<u8>,
}

impl TapTransmitter {
    pub(super) fn new(queue: QueueFd, vnet_hdr: bool, limits: Limits) -> Self {
        // On a tap without offload metadata, frames are assembled here and their checksums completed.
        let plain = (!vnet_hdr).then(|| Vec::with_capacity(HEADROOM + MAX_PACKET));
        Self {
            writer: TapWriter {
                queue,
                plain,
                full: false,
            },
            limits,
            room: vec![0; ROOM],
        }
    }

    /// Returns true if a frame was refused for lack of room since the last call.
    pub fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.writer.full)
    }
}

impl Transmit for TapTransmitter {
    type Room<'a> = TapReservation<'a>;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        self.writer.send(offload, head, payload)
    }

    fn reserve(&mut self, frames: usize, _head: usize, payload: usize) -> Option<TapReservation<'_>> {
        let payload = payload.min(MAX_PACKET);
        let stride = HEADROOM + payload;
        let frames = frames.min(MAX_FRAMES).min(self.room.len() / stride);
        let room = VolatileSlice::from(&mut self.room[..]);
        let mut reservation = TapReservation {
            writer: &mut self.writer,
            room,
            stride,
            payloads: ArrayVec::new(),
            next: 0,
        };
        for nth in 0..frames {
            reservation
                .payloads
                .push(room.subslice(nth * stride + HEADROOM, payload).ok()?);
        }
        (frames > 0).then_some(reservation)
    }

    /// Does nothing: a frame has reached the guest's network stack when its write(2) returns.
    fn flush(&mut self) {}
}

/// Reserved frames of a tap link, into which the engine peeks data.
#[derive(Debug)]
pub struct TapReservation<'a> {
    writer: &'a mut TapWriter,
    /// Memory of the reserved frames, each of which is [`HEADROOM`] bytes and then its payload.
    room: VolatileSlice<'a>,
    stride: usize,
    payloads: ArrayVec<VolatileSlice<'a>, MAX_FRAMES>,
    next: usize,
}

impl Room for TapReservation<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        &self.payloads[self.next..]
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError> {
        if self.next == self.payloads.len() {
            return Err(TransmitError::Rejected);
        }
        let slot = self
            .room
            .subslice(self.next * self.stride, self.stride)
            .map_err(|_| TransmitError::Rejected)?;
        self.next += 1;
        self.writer.commit(offload, head, len, &slot)
    }
}

/// Writer of frames to the tap's queue, with offload metadata or with completed checksums.
#[derive(Debug)]
struct TapWriter {
    queue: QueueFd,
    /// Buffer in which frames are assembled; `None` on a tap with offload metadata.
    plain: Option<Vec<u8>>,
    full: bool,
}

impl TapWriter {
    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        if let Some(frame) = &mut self.plain {
            frame.clear();
            frame.extend_from_slice(head);
            frame.extend_from_slice(payload);
            return self.write_plain(offload);
        }
        let header = vnet::emit(offload, head.len());
        let parts = [IoSlice::new(&header), IoSlice::new(head), IoSlice::new(payload)];
        let used = if payload.is_empty() { 2 } else { 3 };
        let written = rustix::io::writev(self.queue.as_fd(), &parts[..used]);
        self.outcome(written)
    }

    /// Sends a reserved frame: `head`, which is copied in front of the payload in `slot`, and the first `len` bytes of
    /// the payload.
    fn commit(
        &mut self,
        offload: Offload,
        head: &[u8],
        len: usize,
        slot: &VolatileSlice<'_>,
    ) -> Result<(), TransmitError> {
        let end = HEADROOM + len;
        if let Some(frame) = &mut self.plain {
            let payload = slot
                .subslice(HEADROOM, len)
                .map_err(|_| TransmitError::Rejected)?;
            frame.clear();
            frame.extend_from_slice(head);
            frame.resize(head.len() + len, 0);
            payload.copy_to(&mut frame[head.len()..]);
            return self.write_plain(offload);
        }
        let header = vnet::emit(offload, head.len());
        let begin = HEADROOM
            .checked_sub(header.len() + head.len())
            .ok_or(TransmitError::Rejected)?;
        let frame = slot
            .subslice(begin, end.saturating_sub(begin))
            .map_err(|_| TransmitError::Rejected)?;
        frame.copy_from(&header);
        frame
            .offset(header.len())
            .map_err(|_| TransmitError::Rejected)?
            .copy_from(head);
        let written = message::write(&self.queue, &frame);
        self.outcome(written)
    }

    /// Completes the checksum of the frame in `plain`, and writes the frame to the tap.
    fn write_plain(&mut self, offload: Offload) -> Result<(), TransmitError> {
        let Some(frame) = &mut self.plain else {
            return Err(TransmitError::Rejected);
        };
        // The link's `limits` permit no segmentation without offload metadata.
        if offload.segmentation != Segmentation::Whole {
            return Err(TransmitError::Rejected);
        }
        checksum::complete(frame, offload.checksum, []).map_err(|_| TransmitError::Rejected)?;
        let written = rustix::io::write(self.queue.as_fd(), frame);
        self.outcome(written)
    }

    fn outcome(&mut self, written: Result<usize, Errno>) -> Result<(), TransmitError> {
        match written {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                self.full = true;
                Err(TransmitError::Full)
            }
            // EIO: the interface is down. EINVAL, EMSGSIZE: the frame is refused. EBADFD: the interface was deleted.
            Err(_) => Err(TransmitError::Rejected),
        }
    }
}
