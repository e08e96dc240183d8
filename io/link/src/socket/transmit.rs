//! Sending of frames to the guest over a socket: frames are gathered in a buffer, completed and sent together when a
//! burst ends.

use std::fmt;
use std::io::IoSlice;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::link::{Room, TransmitError};
use pontoon_engine::{Limits, Transmit};
use pontoon_wire::checksum;
use pontoon_wire::vnet::{Checksum, Offload, Segmentation};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::{Framing, MAX_FRAME, SocketHalf};
use crate::Disconnected;

/// Size of the buffer in bytes for frames that wait for the end of a burst: the content of a Unix socket's default
/// buffer.
const ROOM: usize = 256 << 10;

/// Limit on the number of frames in the buffer.
const MAX_WAITING: usize = 1024;

/// Limit on the frames of one reservation, and of one system call.
const MAX_FRAMES: usize = 64;

/// Bytes in front of each reserved payload, for the frame's length and headers.
const HEADROOM: usize = 128;

/// The half of a socket link that sends frames.
pub struct SocketTransmitter<F> {
    socket: Option<Arc<OwnedFd>>,
    limits: Limits,
    bytes: Box<[u8]>,
    waiting: WaitingFrames,
    /// True if the kernel has not accepted all frames at the last attempt.
    blocked: bool,
    /// True if a frame was refused for lack of room since the last `take_full`.
    full: bool,
    /// Reason for which nothing can be sent any more; `None` while the guest is connected.
    disconnected: Option<Disconnected>,
    framing: PhantomData<F>,
}

impl<F> SocketTransmitter<F> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            socket: None,
            limits,
            bytes: vec![0; ROOM].into(),
            waiting: WaitingFrames::new(),
            blocked: false,
            full: false,
            disconnected: None,
            framing: PhantomData,
        }
    }

    /// Returns true if a frame was refused for lack of room since the last call, or if frames are not sent yet.
    pub(super) fn take_full(&mut self) -> Result<bool, Disconnected> {
        let full = std::mem::take(&mut self.full) || self.blocked;
        self.disconnected.take().map_or(Ok(full), Err)
    }
}

impl<F> SocketHalf for SocketTransmitter<F> {
    fn set_socket(&mut self, guest: Option<Arc<OwnedFd>>) {
        self.socket = guest;
        self.waiting.clear();
        (self.blocked, self.full, self.disconnected) = (false, false, None);
    }
}

impl<F: Framing> SocketTransmitter<F> {
    /// Sends waiting frames if the buffer has no room for `bytes` contiguous bytes at its end.
    ///
    /// # Errors
    /// The buffer has no room although waiting frames were sent.
    fn make_room(&mut self, bytes: usize) -> Result<(), TransmitError> {
        let fits =
            |waiting: &WaitingFrames| ROOM - waiting.end >= bytes && waiting.frames.len() < MAX_WAITING;
        if !self.blocked && !fits(&self.waiting) {
            self.flush();
        }
        if self.blocked || !fits(&self.waiting) {
            self.full = true;
            return Err(TransmitError::Full);
        }
        Ok(())
    }

    /// Sends the waiting frames until all are sent or the kernel accepts no more.
    fn drain(&mut self) -> Result<(), Errno> {
        let Some(socket) = &self.socket else {
            self.waiting.clear();
            return Ok(());
        };
        self.waiting.finish(&mut self.bytes, F::PREFIX);
        while let Some(runs) = self.waiting.runs(&self.bytes) {
            match F::send(socket.as_fd(), &runs) {
                Ok(sent) => self.waiting.advance(sent),
                Err(Errno::INTR) => {}
                // The frame is too long for the guest's socket; it is dropped, and the next ones are sent.
                Err(Errno::MSGSIZE) => self.waiting.skip(),
                Err(error) => return Err(error),
            }
        }
        self.waiting.clear();
        Ok(())
    }
}

impl<F: Framing> Transmit for SocketTransmitter<F> {
    type Room<'a> = SocketReservation<'a>;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        let len = head.len() + payload.len();
        if self.socket.is_none() || len > MAX_FRAME || !is_whole(offload, head.len()) {
            return Err(TransmitError::Rejected);
        }
        self.make_room(F::PREFIX + len)?;
        let begin = self.waiting.end;
        let (to_head, to_payload) = self.bytes[begin + F::PREFIX..][..len].split_at_mut(head.len());
        to_head.copy_from_slice(head);
        to_payload.copy_from_slice(payload);
        self.waiting.push(begin, F::PREFIX + len, offload.checksum);
        Ok(())
    }

    fn reserve(&mut self, frames: usize, _head: usize, payload: usize) -> Option<SocketReservation<'_>> {
        let payload = payload.min(MAX_FRAME);
        let stride = HEADROOM + payload;
        if frames == 0 {
            return None;
        }
        self.make_room(stride).ok()?;
        let begin = self.waiting.end;
        let frames = frames
            .min(MAX_FRAMES)
            .min((ROOM - begin) / stride)
            .min(MAX_WAITING - self.waiting.frames.len());
        let room = VolatileSlice::from(&mut self.bytes[begin..]);
        let payloads: Option<ArrayVec<_, MAX_FRAMES>> = (0..frames)
            .map(|nth| room.subslice(nth * stride + HEADROOM, payload).ok())
            .collect();
        Some(SocketReservation {
            payloads: payloads?,
            room,
            begin,
            stride,
            next: 0,
            prefix: F::PREFIX,
            connected: self.socket.is_some(),
            waiting: &mut self.waiting,
        })
    }

    fn flush(&mut self) {
        if self.waiting.frames.is_empty() {
            return;
        }
        match self.drain() {
            Ok(()) => self.blocked = false,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => self.blocked = true,
            Err(error) => {
                self.waiting.clear();
                self.blocked = false;
                self.disconnected = Some(match error {
                    Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED | Errno::NOTCONN => {
                        Disconnected::Closed
                    }
                    error => Disconnected::Connection(error),
                });
            }
        }
    }
}

impl<F> fmt::Debug for SocketTransmitter<F> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("SocketTransmitter")
            .field("socket", &self.socket)
            .field("waiting", &self.waiting.frames.len())
            .field("blocked", &self.blocked)
            .finish_non_exhaustive()
    }
}

/// Reserved frames of a socket link, into which the engine peeks data.
#[derive(Debug)]
pub struct SocketReservation<'a> {
    waiting: &'a mut WaitingFrames,
    /// Memory of the reserved frames, each of which is [`HEADROOM`] bytes and then its payload.
    room: VolatileSlice<'a>,
    /// Offset of the reserved memory in the buffer.
    begin: usize,
    stride: usize,
    payloads: ArrayVec<VolatileSlice<'a>, MAX_FRAMES>,
    next: usize,
    prefix: usize,
    connected: bool,
}

impl Room for SocketReservation<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        &self.payloads[self.next..]
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError> {
        if self.next == self.payloads.len() {
            return Err(TransmitError::Rejected);
        }
        let slot = self.next * self.stride;
        self.next += 1;
        let front = (HEADROOM - self.prefix).checked_sub(head.len());
        let fits = len <= self.stride - HEADROOM && is_whole(offload, head.len());
        let (Some(front), true) = (front, self.connected && fits) else {
            return Err(TransmitError::Rejected);
        };
        let at = self.room.subslice(slot + front + self.prefix, head.len());
        at.map_err(|_| TransmitError::Rejected)?.copy_from(head);
        let frame = self.prefix + head.len() + len;
        self.waiting
            .push(self.begin + slot + front, frame, offload.checksum);
        Ok(())
    }
}

/// Returns true if a frame is not to be segmented, and its partial checksum, if any, is in its header.
fn is_whole(offload: Offload, head_len: usize) -> bool {
    let checksum = match offload.checksum {
        Checksum::Complete => true,
        Checksum::Partial { start, offset } => usize::from(start) + usize::from(offset) + 2 <= head_len,
    };
    checksum && offload.segmentation == Segmentation::Whole
}

/// The frames that wait in the buffer, in the order in which they are sent.
#[derive(Debug)]
struct WaitingFrames {
    frames: Vec<FramePosition>,
    /// Number of frames at the front whose length and checksum were written.
    finished: usize,
    /// Index of the first frame that is not sent completely, and the number of its bytes that were sent.
    next: usize,
    sent: usize,
    /// Offset of the end of the last frame in the buffer.
    end: usize,
}

/// Position of a waiting frame in the buffer, with its length in front.
#[derive(Clone, Copy, Debug)]
struct FramePosition {
    begin: usize,
    len: usize,
    checksum: Checksum,
}

impl WaitingFrames {
    fn new() -> Self {
        Self {
            frames: Vec::with_capacity(MAX_WAITING),
            finished: 0,
            next: 0,
            sent: 0,
            end: 0,
        }
    }

    fn push(&mut self, begin: usize, len: usize, checksum: Checksum) {
        self.end = begin + len;
        self.frames.push(FramePosition { begin, len, checksum });
    }

    /// Writes the lengths and checksums of the frames that have none yet.
    fn finish(&mut self, bytes: &mut [u8], prefix: usize) {
        for place in &self.frames[self.finished..] {
            let (length, frame) = bytes[place.begin..][..place.len].split_at_mut(prefix);
            if let Some(length) = length.first_chunk_mut() {
                let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
                *length = len.to_be_bytes();
            }
            // The position of the checksum was validated when the frame was queued.
            let _ = checksum::complete(frame, place.checksum, []);
        }
        self.finished = self.frames.len();
    }

    /// Returns slices of the next frames to be sent, at most [`MAX_FRAMES`].
    fn runs<'a>(&self, bytes: &'a [u8]) -> Option<ArrayVec<IoSlice<'a>, MAX_FRAMES>> {
        let mut skip = self.sent;
        let runs: ArrayVec<_, MAX_FRAMES> = self.frames[self.next..]
            .iter()
            .take(MAX_FRAMES)
            .map(|place| {
                let skip = std::mem::take(&mut skip);
                IoSlice::new(&bytes[place.begin + skip..place.begin + place.len])
            })
            .collect();
        (!runs.is_empty()).then_some(runs)
    }

    /// Advances the position by `bytes` bytes that were sent.
    fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(place) = self.frames.get(self.next)
            && self.sent >= place.len
        {
            self.sent -= place.len;
            self.next += 1;
        }
    }

    /// Drops the next frame without sending it.
    fn skip(&mut self) {
        self.sent = 0;
        self.next += 1;
    }

    fn clear(&mut self) {
        self.frames.clear();
        (self.finished, self.next, self.sent, self.end) = (0, 0, 0, 0);
    }
}
