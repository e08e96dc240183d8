//! Frames to the guest: the receive queue of its driver.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::link::{Room, TransmitError};
use pontoon_engine::{Limits, Transmit};
use pontoon_ring::device::{self, Chain, DeviceQueue, Piece};
use pontoon_wire::checksum;
use pontoon_wire::vnet::{self, Checksum, Offload, Segmentation};
use vm_memory::VolatileSlice;

use crate::data_plane::{ActiveRing, CommandOutcome, DataPlane, Notifier};
use crate::features::Features;
use crate::mailbox::Mailbox;
use crate::memory::MemoryTable;
use crate::parts::{self, PieceStore, SliceStore};

/// Maximum number of frames in a reservation.
const MAX_FRAMES: usize = 64;

/// Maximum number of receive buffers per frame: twice what the largest frame needs with the smallest buffers that
/// drivers offer.
const MAX_BUFFERS: usize = 96;

/// Maximum number of pieces of guest memory per frame: a buffer may consist of several, but the number passed to one
/// system call must be bounded.
const MAX_PIECES: usize = 256;

/// Bytes of a frame that may count as its headers: Ethernet to TCP with all options are 114.
const MAX_HEAD: usize = 128;

/// Bytes of the longest `virtio_net_hdr`.
const MAX_HEADER: usize = vnet::LEN;

/// Sends frames to the guest.
#[derive(Debug)]
pub struct Transmitter {
    data_plane: DataPlane,
    limits: Limits,
    full: bool,
    /// The number of chains that were ready when a frame did not fit: the smallest, if that happened several times.
    chains_when_full: Option<u16>,
    /// Chains were returned and not published.
    unpublished: bool,
    store: Store,
}

/// Buffers that are reused by every reservation, to avoid allocation.
#[derive(Debug)]
struct Store {
    chains: Vec<Chain>,
    pieces: PieceStore,
    payloads: SliceStore,
    /// A copy of a frame's payload, if its checksum must be completed here.
    bounce: Vec<u8>,
}

impl Transmitter {
    pub(crate) fn new(mailbox: Arc<Mailbox>, mtu: usize) -> rustix::io::Result<Self> {
        Ok(Self {
            data_plane: DataPlane::new(mailbox)?,
            limits: Features::default().limits(mtu, 0),
            full: false,
            chains_when_full: None,
            unpublished: false,
            store: Store {
                chains: vec![Chain::default(); MAX_FRAMES * MAX_BUFFERS],
                pieces: Vec::new(),
                payloads: Vec::new(),
                bounce: Vec::new(),
            },
        })
    }

    /// Returns and clears whether a frame was refused for lack of room. The descriptor becomes readable when there is
    /// room, if [`rearm`](Self::rearm) is called before waiting.
    pub fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }

    /// Requests a kick when there is more room than when a frame was refused: a frame sent since may have withdrawn the
    /// earlier request. Room that is available already makes the descriptor readable.
    pub fn rearm(&mut self) {
        let Some(chains_when_full) = self.chains_when_full.take() else {
            return;
        };
        let Some((mut queue, notifier)) = self
            .data_plane
            .live()
            .filter(|ring| ring.is_enabled())
            .and_then(|ring| ring.open().ok())
        else {
            return;
        };
        // On an error the queue is broken, and is marked as failed at the next use.
        let Ok(before) = queue.poll() else { return };
        // The kick is requested for chains after those seen by `poll`. Chains added between the two calls are reported
        // here. Chains seen before are not, or too few would be tried again and again.
        if notifier
            .rearm(&mut queue)
            .is_ok_and(|now| now > before.min(chains_when_full))
        {
            self.data_plane.wake();
        }
    }

    /// Polls the ring, and returns whether there is a guest with receive buffers.
    pub fn poll(&mut self) -> bool {
        let ring = self.data_plane.live().filter(|ring| ring.is_enabled());
        ring.and_then(|ring| ring.open().ok())
            .is_some_and(|(mut queue, _)| queue.poll().is_ok_and(|waiting| waiting > 0))
    }

    /// Returns the number of rings that failed because of the driver.
    pub fn faults(&self) -> u64 {
        self.data_plane.faults()
    }

    fn execute_command(&mut self) {
        match self.data_plane.execute_command() {
            CommandOutcome::NonePending => return,
            CommandOutcome::Executed => {}
        }
        match self.data_plane.ring() {
            Some(ActiveRing { config, .. }) => {
                self.limits = config.features.limits(config.mtu, config.layout.size)
            }
            // All chains were published when the ring stopped.
            None => self.unpublished = false,
        }
    }

    fn take(&mut self, frames: usize, head: usize, payload: usize) -> Result<Reservation<'_>, TransmitError> {
        self.execute_command();
        let Self {
            data_plane,
            limits,
            full,
            chains_when_full,
            unpublished,
            store,
        } = self;
        let Some((mut queue, notifier)) = data_plane
            .live()
            .filter(|ring| ring.is_enabled())
            .and_then(|ring| ring.open().ok())
        else {
            *full = true;
            *chains_when_full = Some(0);
            return Err(TransmitError::Full);
        };
        let bytes = notifier.features.header_len() + head + payload;
        let mut room = TakenChains {
            pieces: parts::recycle(std::mem::take(&mut store.pieces)),
            frames: ArrayVec::new(),
            chains: 0,
        };
        queue.suppress();
        let mut outcome = room.take(&mut queue, &notifier, &mut store.chains, frames, bytes);
        if let Ok(waiting) = outcome
            && room.frames.is_empty()
        {
            // A driver without free buffers needs those that were returned, and then kicks for new ones.
            notifier.publish(&mut queue);
            *unpublished = false;
            outcome = notifier.rearm(&mut queue);
            if outcome.is_ok_and(|now| now > waiting) {
                outcome = room.take(&mut queue, &notifier, &mut store.chains, frames, bytes);
                if !room.frames.is_empty() {
                    queue.suppress();
                }
            }
        }
        let refused = match outcome {
            Ok(_) if !room.frames.is_empty() => None,
            // The buffers suffice in number but are too small.
            Ok(waiting) if usize::from(waiting) >= most_buffers(&notifier) => Some(TransmitError::Rejected),
            // On an error the queue is broken, and is marked as failed at the next use.
            Ok(_) | Err(_) => Some(TransmitError::Full),
        };
        if let Some(refused) = refused {
            if refused == TransmitError::Full {
                *full = true;
                let waiting = outcome.unwrap_or(0);
                *chains_when_full =
                    Some(chains_when_full.map_or(waiting, |chains_when_full| chains_when_full.min(waiting)));
            }
            store.pieces = parts::recycle(room.pieces);
            return Err(refused);
        }
        let mut payloads: Vec<VolatileSlice<'_>> = parts::recycle(std::mem::take(&mut store.payloads));
        for frame in &mut room.frames {
            let first = payloads.len();
            let pieces = room.pieces[frame.pieces.clone()].iter().map(|piece| piece.area);
            payloads.extend(window(pieces, bytes - payload, payload));
            frame.payloads = first..payloads.len();
        }
        Ok(Reservation {
            queue,
            notifier,
            limits: *limits,
            unpublished,
            store,
            head,
            payload,
            room,
            payloads,
            next: 0,
            returned: 0,
        })
    }
}

impl Transmit for Transmitter {
    type Room<'a> = Reservation<'a>;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        let (head, more) = head.split_at(head.len().min(MAX_HEAD));
        let len = more.len() + payload.len();
        let mut room = self.take(1, head.len(), len)?;
        parts::copy_in(room.payloads(), more);
        let behind = window(room.payloads().iter().copied(), more.len(), payload.len());
        parts::copy_in(behind, payload);
        room.commit(offload, head, len)
    }

    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<Reservation<'_>> {
        self.take(frames, head, payload).ok()
    }

    /// Publishes returned chains, with at most one call.
    fn flush(&mut self) {
        self.execute_command();
        if self.unpublished
            && let Some(ring) = self.data_plane.live()
            && let Ok((mut queue, notifier)) = ring.open()
        {
            notifier.publish(&mut queue);
            self.unpublished = false;
        }
    }
}

impl AsFd for Transmitter {
    /// Readable, edge-triggered, when there is room again after a refusal, or a command: call [`flush`](Self::flush).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.data_plane.as_fd()
    }
}

/// Chains taken for frames.
#[derive(Debug)]
struct TakenChains<'a> {
    /// The pieces of all chains, in order.
    pieces: Vec<Piece<VolatileSlice<'a>>>,
    frames: ArrayVec<FrameRoom, MAX_FRAMES>,
    chains: usize,
}

/// Room for one frame: ranges in the lists of chains, pieces and payload slices.
#[derive(Clone, Debug)]
struct FrameRoom {
    chains: Range<usize>,
    pieces: Range<usize>,
    payloads: Range<usize>,
}

impl<'a> TakenChains<'a> {
    /// Takes room for up to `frames` frames of `bytes` bytes, and returns the number of chains that were ready.
    fn take(
        &mut self,
        queue: &mut DeviceQueue<'a, &'a MemoryTable>,
        notifier: &Notifier<'_>,
        chains: &mut [Chain],
        frames: usize,
        bytes: usize,
    ) -> Result<u16, device::VirtqueueError> {
        let waiting = queue.poll()?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        for _ in 0..frames.min(MAX_FRAMES) {
            let (first, pieces) = (self.chains, self.pieces.len());
            let places = &mut chains[first..first + most_buffers(notifier)];
            let taken = queue.take(bytes, places, |piece| {
                // One piece too many is enough to reject the frame below.
                if self.pieces.len() - pieces <= MAX_PIECES {
                    self.pieces.push(piece);
                }
            })?;
            let Some(taken) = taken else {
                self.pieces.truncate(pieces);
                break;
            };
            if self.pieces.len() - pieces > MAX_PIECES {
                self.pieces.truncate(pieces);
                // At most the queue size, which is a u16.
                queue.rewind(taken as u16);
                break;
            }
            self.chains += taken;
            self.frames.push(FrameRoom {
                chains: first..self.chains,
                pieces: pieces..self.pieces.len(),
                payloads: 0..0,
            });
        }
        Ok(waiting)
    }
}

/// Returns the maximum number of buffers per frame. Without mergeable buffers a frame must fit one (5.1.6.3.1).
fn most_buffers(notifier: &Notifier<'_>) -> usize {
    if notifier.features.has(Features::MRG_RXBUF) {
        MAX_BUFFERS
    } else {
        1
    }
}

/// Returns the `len` bytes from `skip` on in `pieces`.
fn window<'a>(
    pieces: impl Iterator<Item = VolatileSlice<'a>>,
    mut skip: usize,
    mut len: usize,
) -> impl Iterator<Item = VolatileSlice<'a>> {
    pieces.filter_map(move |piece| {
        let begin = skip.min(piece.len());
        let take = len.min(piece.len() - begin);
        skip -= begin;
        len -= take;
        (take > 0).then(|| piece.subslice(begin, take).ok()).flatten()
    })
}

/// Reserved frames, in the guest's buffers.
#[derive(Debug)]
pub struct Reservation<'a> {
    queue: DeviceQueue<'a, &'a MemoryTable>,
    notifier: Notifier<'a>,
    limits: Limits,
    unpublished: &'a mut bool,
    store: &'a mut Store,
    /// Bytes of each frame's headers, and of its payload.
    head: usize,
    payload: usize,
    room: TakenChains<'a>,
    payloads: Vec<VolatileSlice<'a>>,
    /// The next frame to be committed.
    next: usize,
    /// Number of chains returned, from the beginning of those taken.
    returned: usize,
}

impl Room for Reservation<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        match self.room.frames.get(self.next) {
            Some(frame) => &self.payloads[frame.payloads.start..],
            None => &[],
        }
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError> {
        let committed = self
            .room
            .frames
            .get(self.next)
            .cloned()
            .ok_or(TransmitError::Rejected)
            .and_then(|frame| self.put(&frame, offload, head, len));
        self.next += 1;
        if committed != Ok(true) {
            // Unused chains of this frame can be given back only if no later chain is returned.
            self.room.frames.truncate(self.next);
        }
        committed.map(|_| ())
    }
}

impl Reservation<'_> {
    /// Writes the headers and returns the frame's chains. The result is whether all its chains were used.
    fn put(
        &mut self,
        frame: &FrameRoom,
        offload: Offload,
        head: &[u8],
        len: usize,
    ) -> Result<bool, TransmitError> {
        if head.len() != self.head || head.len() > MAX_HEAD || len > self.payload || !self.takes(offload) {
            return Err(TransmitError::Rejected);
        }
        let header_len = self.notifier.features.header_len();
        let total = header_len + head.len() + len;
        // At most the number of bytes reserved, which was a u32.
        let bytes = u32::try_from(total).map_err(|_| TransmitError::Rejected)?;
        let chains = &self.store.chains[frame.chains.clone()];
        let buffers = device::chains_needed(chains, bytes);

        let mut front = [0; MAX_HEADER + MAX_HEAD];
        let front = &mut front[..header_len + head.len()];
        front[header_len..].copy_from_slice(head);
        let offload = self.complete(frame, offload, &mut front[header_len..], len)?;
        let mut header = vnet::emit(offload, head.len());
        header[vnet::SHORT_LEN..].copy_from_slice(&buffers.to_le_bytes());
        front[..header_len].copy_from_slice(&header[..header_len]);
        let pieces = &self.room.pieces[frame.pieces.clone()];
        parts::copy_in(pieces.iter().map(|piece| &piece.area), front);

        if let Some(log) = self.notifier.log {
            let mut left = total;
            for piece in pieces {
                let written = left.min(piece.area.len());
                log.mark_buffer(piece.addr, written);
                left -= written;
            }
        }
        let chains = &self.store.chains[frame.chains.clone()];
        let used = self.queue.put_frame(chains, bytes);
        debug_assert_eq!(used, buffers);
        self.returned += usize::from(used);
        *self.unpublished = true;
        Ok(usize::from(used) == frame.chains.len())
    }

    /// Completes the checksum in `head` for a guest without VIRTIO_NET_F_GUEST_CSUM.
    fn complete(
        &mut self,
        frame: &FrameRoom,
        offload: Offload,
        head: &mut [u8],
        len: usize,
    ) -> Result<Offload, TransmitError> {
        if self.notifier.features.has(Features::GUEST_CSUM) || offload.checksum == Checksum::Complete {
            return Ok(offload);
        }
        let bounce = &mut self.store.bounce;
        bounce.resize(bounce.len().max(len), 0);
        parts::copy_out(&self.payloads[frame.payloads.clone()], &mut bounce[..len]);
        checksum::complete(head, offload.checksum, [&bounce[..len]]).map_err(|_| TransmitError::Rejected)?;
        Ok(Offload {
            checksum: Checksum::Complete,
            ..offload
        })
    }

    fn takes(&self, offload: Offload) -> bool {
        match offload.segmentation {
            Segmentation::Whole => true,
            Segmentation::Tcp4 { .. } => self.limits.tso4,
            Segmentation::Tcp6 { .. } => self.limits.tso6,
            Segmentation::Udp { .. } => self.limits.uso,
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let left = self.room.chains - self.returned;
        // At most the queue size, which is a u16.
        self.queue.rewind(left as u16);
        self.store.pieces = parts::recycle(std::mem::take(&mut self.room.pieces));
        self.store.payloads = parts::recycle(std::mem::take(&mut self.payloads));
    }
}
