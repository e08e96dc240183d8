//! Sending of frames to the guest: the device side of the guest's receive queue.

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

/// Limit on the number of frames in a reservation.
const MAX_FRAMES: usize = 64;

/// Limit on the number of receive buffers per frame: twice the number that the largest frame needs with the smallest
/// buffers that drivers offer.
const MAX_BUFFERS: usize = 96;

/// Limit on the number of slices of guest memory per frame. A buffer may consist of several slices, but the number that
/// is passed to one system call must be bounded.
const MAX_PIECES: usize = 256;

/// Limit in bytes on the headers of a frame: Ethernet to TCP with all options are 114.
const MAX_HEAD: usize = 128;

/// Size of the longest `virtio_net_hdr` in bytes.
const MAX_HEADER: usize = vnet::LEN;

/// Sends frames to the guest on one queue pair.
#[derive(Debug)]
pub struct Transmitter {
    data_plane: DataPlane,
    limits: Limits,
    full: bool,
    /// Number of available chains when a frame was refused for lack of room; the lowest if several were refused.
    chains_when_full: Option<u16>,
    /// True if chains were returned and not published yet.
    unpublished: bool,
    store: ReusedLists,
}

/// Lists and buffers that every reservation reuses, to avoid allocation.
#[derive(Debug)]
struct ReusedLists {
    chains: Vec<Chain>,
    pieces: PieceStore,
    payloads: SliceStore,
    /// Buffer for a copy of a frame's payload, if its checksum must be completed by the device.
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
            store: ReusedLists {
                chains: vec![Chain::default(); MAX_FRAMES * MAX_BUFFERS],
                pieces: Vec::new(),
                payloads: Vec::new(),
                bounce: Vec::new(),
            },
        })
    }

    /// Returns true if a frame was refused for lack of room since the last call. The descriptor becomes readable when
    /// there is room, if [`rearm`](Self::rearm) is called before waiting.
    pub fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }

    /// Requests a kick for more room than there was when a frame was refused; a smaller frame that was sent afterwards
    /// may have withdrawn an earlier request. If there is more room already, the descriptor becomes readable.
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
        // On an error the queue is unusable, and the ring is marked as failed at its next use.
        let Ok(before) = queue.poll() else { return };
        // The kick is requested for chains behind those that `poll` has seen. Chains that were added between the two
        // calls are reported here. Chains that were seen before are not reported, because too few of them would be
        // tried again and again.
        if notifier
            .rearm(&mut queue)
            .is_ok_and(|now| now > before.min(chains_when_full))
        {
            self.data_plane.wake();
        }
    }

    /// Polls the ring, and returns true if a guest with receive buffers is attached.
    pub fn poll(&mut self) -> bool {
        let ring = self.data_plane.live().filter(|ring| ring.is_enabled());
        ring.and_then(|ring| ring.open().ok())
            .is_some_and(|(mut queue, _)| queue.poll().is_ok_and(|waiting| waiting > 0))
    }

    /// Returns the number of times that the ring has failed because of the driver.
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
            // All chains were published when the ring was stopped.
            None => self.unpublished = false,
        }
    }

    fn take(
        &mut self,
        frames: usize,
        head: usize,
        payload: usize,
    ) -> Result<GuestReservation<'_>, TransmitError> {
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
            // A driver without free buffers needs the returned ones, and then kicks when it adds new ones.
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
            // The number of buffers suffices, but they are too small.
            Ok(waiting) if usize::from(waiting) >= most_buffers(&notifier) => Some(TransmitError::Rejected),
            // On an error the queue is unusable, and the ring is marked as failed at its next use.
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
        Ok(GuestReservation {
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
    type Room<'a> = GuestReservation<'a>;

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

    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<GuestReservation<'_>> {
        self.take(frames, head, payload).ok()
    }

    /// Publishes the returned chains, and signals the driver at most once.
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
    /// Returns a descriptor that is readable, to be registered edge triggered, when there is a command or room after a
    /// refused frame: then [`flush`](Self::flush) must be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.data_plane.as_fd()
    }
}

/// Chains that were taken for the frames of a reservation.
#[derive(Debug)]
struct TakenChains<'a> {
    /// Pieces of guest memory of all chains, in order.
    pieces: Vec<Piece<VolatileSlice<'a>>>,
    frames: ArrayVec<FrameRoom, MAX_FRAMES>,
    chains: usize,
}

/// Room for one frame of a reservation: ranges in the lists of chains, pieces and payload slices.
#[derive(Clone, Debug)]
struct FrameRoom {
    chains: Range<usize>,
    pieces: Range<usize>,
    payloads: Range<usize>,
}

impl<'a> TakenChains<'a> {
    /// Takes chains for up to `frames` frames of `bytes` bytes, and returns the number of chains that were available.
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
                // One piece too many is enough for the frame to be rejected below.
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
                // The value is at most the queue size, which is a u16.
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

/// Returns the limit on the buffers of one frame. Without mergeable buffers a frame has one (virtio 1.2, section
/// 5.1.6.3.1).
fn most_buffers(notifier: &Notifier<'_>) -> usize {
    if notifier.features.has(Features::MRG_RXBUF) {
        MAX_BUFFERS
    } else {
        1
    }
}

/// Returns the slices of `pieces` that cover `len` bytes from offset `skip` on.
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

/// Reserved frames in the guest's receive buffers, into which the engine peeks data.
#[derive(Debug)]
pub struct GuestReservation<'a> {
    queue: DeviceQueue<'a, &'a MemoryTable>,
    notifier: Notifier<'a>,
    limits: Limits,
    unpublished: &'a mut bool,
    store: &'a mut ReusedLists,
    /// Bytes of each frame that are reserved for its headers, and for its payload.
    head: usize,
    payload: usize,
    room: TakenChains<'a>,
    payloads: Vec<VolatileSlice<'a>>,
    /// Index of the next frame to be committed.
    next: usize,
    /// Number of chains that were returned to the guest, from the first taken chain on.
    returned: usize,
}

impl Room for GuestReservation<'_> {
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
            // Unused chains of this frame can be returned to the available ones only if no later chain is returned to
            // the guest.
            self.room.frames.truncate(self.next);
        }
        committed.map(|_| ())
    }
}

impl GuestReservation<'_> {
    /// Writes the headers and returns the frame's chains to the guest. The result is true if the frame has used all its
    /// chains.
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
        // The value is at most the number of reserved bytes, which is a u32.
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

    /// Completes the checksum in `head`, for a guest without VIRTIO_NET_F_GUEST_CSUM.
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

impl Drop for GuestReservation<'_> {
    fn drop(&mut self) {
        let left = self.room.chains - self.returned;
        // The value is at most the queue size, which is a u16.
        self.queue.rewind(left as u16);
        self.store.pieces = parts::recycle(std::mem::take(&mut self.room.pieces));
        self.store.payloads = parts::recycle(std::mem::take(&mut self.payloads));
    }
}
