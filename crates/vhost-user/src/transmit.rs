//! Frames to the guest: its receive queue.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::link::{Refused, Room};
use pontoon_engine::{Limits, Transmit};
use pontoon_ring::device::{self, Chain, Piece, Queue};
use pontoon_wire::checksum;
use pontoon_wire::vnet::{self, Checksum, Offload, Segmentation};
use vm_memory::VolatileSlice;

use crate::features::Features;
use crate::half::{Door, Half, Ring};
use crate::mailbox::Mailbox;
use crate::memory::Table;
use crate::parts::{self, PieceStore, SliceStore};

/// Frames of one reservation.
const MAX_FRAMES: usize = 64;

/// Receive buffers that one frame may take: twice what the largest frame needs in the smallest ones that drivers offer.
const MAX_BUFFERS: usize = 96;

/// Pieces of guest memory that one frame may lie in: a buffer may have several, but what is handed to one system call
/// has to be bounded.
const MAX_PIECES: usize = 256;

/// Bytes of a frame that count as its headers: Ethernet to TCP, with all options, are 114.
const MAX_HEAD: usize = 128;

/// Bytes of the longest `virtio_net_hdr`.
const MAX_HEADER: usize = vnet::LEN;

/// The sending half.
#[derive(Debug)]
pub struct Transmitter {
    half: Half,
    limits: Limits,
    full: bool,
    /// Chains that waited when a frame was refused for want of more: the fewest, where there were several.
    short: Option<u16>,
    /// Chains were returned that the driver has not been shown.
    unpublished: bool,
    store: Store,
}

/// What reservations are made in, so that they allocate nothing.
#[derive(Debug)]
struct Store {
    chains: Vec<Chain>,
    pieces: PieceStore,
    payloads: SliceStore,
    /// A frame's payload, where its checksum is completed here.
    bounce: Vec<u8>,
}

impl Transmitter {
    pub(crate) fn new(mailbox: Arc<Mailbox>, mtu: usize) -> rustix::io::Result<Self> {
        Ok(Self {
            half: Half::new(mailbox)?,
            limits: Features::default().limits(mtu, 0),
            full: false,
            short: None,
            unpublished: false,
            store: Store {
                chains: vec![Chain::default(); MAX_FRAMES * MAX_BUFFERS],
                pieces: Vec::new(),
                payloads: Vec::new(),
                bounce: Vec::new(),
            },
        })
    }

    /// Whether a frame was refused for want of room since this was last asked. The descriptor tells when there is room,
    /// if [`rearm`](Self::rearm) is called before it is waited for: no need to try meanwhile.
    pub fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }

    /// Asks the driver to kick for more room than there was when a frame was refused: one that was sent after it may have
    /// taken that wish back. Room that is there already is told of, too.
    pub fn rearm(&mut self) {
        let Some(short) = self.short.take() else {
            return;
        };
        let Some((mut queue, door)) = self
            .half
            .live()
            .filter(|ring| ring.is_enabled())
            .and_then(|ring| ring.open().ok())
        else {
            return;
        };
        // An error: the queue is broken, and will be given up when it is next looked at.
        let Ok(before) = queue.poll() else { return };
        // The driver is asked for chains after the ones that were seen before: those that came meanwhile are told of
        // here. No others are, or too few would be tried again and again.
        if door.rearm(&mut queue).is_ok_and(|now| now > before.min(short)) {
            self.half.ring_bell();
        }
    }

    /// Whether there is a guest that takes frames.
    pub fn is_serving(&mut self) -> bool {
        let ring = self.half.live().filter(|ring| ring.is_enabled());
        ring.and_then(|ring| ring.open().ok())
            .is_some_and(|(mut queue, _)| queue.poll().is_ok_and(|waiting| waiting > 0))
    }

    /// Queues that had to be given up, for what the driver did.
    pub fn faults(&self) -> u64 {
        self.half.faults()
    }

    fn obey(&mut self) {
        if !self.half.obey() {
            return;
        }
        match self.half.ring() {
            Some(Ring { setup, .. }) => self.limits = setup.features.limits(setup.mtu, setup.layout.size),
            // It was shown everything when it stopped.
            None => self.unpublished = false,
        }
    }

    fn take(&mut self, frames: usize, head: usize, payload: usize) -> Result<Reservation<'_>, Refused> {
        self.obey();
        let Self {
            half,
            limits,
            full,
            short,
            unpublished,
            store,
        } = self;
        let Some((mut queue, door)) = half
            .live()
            .filter(|ring| ring.is_enabled())
            .and_then(|ring| ring.open().ok())
        else {
            *full = true;
            *short = Some(0);
            return Err(Refused::Full);
        };
        let bytes = door.features.header_len() + head + payload;
        let mut room = Taken {
            pieces: parts::recycle(std::mem::take(&mut store.pieces)),
            frames: ArrayVec::new(),
            chains: 0,
        };
        queue.suppress();
        let mut outcome = room.take(&mut queue, &door, &mut store.chains, frames, bytes);
        if let Ok(waiting) = outcome
            && room.frames.is_empty()
        {
            // Whoever has no buffers left is shown those that came back, and wakes us when there are new ones.
            door.publish(&mut queue);
            *unpublished = false;
            outcome = door.rearm(&mut queue);
            if outcome.is_ok_and(|now| now > waiting) {
                outcome = room.take(&mut queue, &door, &mut store.chains, frames, bytes);
                if !room.frames.is_empty() {
                    queue.suppress();
                }
            }
        }
        let refused = match outcome {
            Ok(_) if !room.frames.is_empty() => None,
            // It is not for want of buffers, but for the size of them.
            Ok(waiting) if usize::from(waiting) >= most_buffers(&door) => Some(Refused::Rejected),
            // An error: the queue is broken, and will be given up when it is next looked at.
            Ok(_) | Err(_) => Some(Refused::Full),
        };
        if let Some(refused) = refused {
            if refused == Refused::Full {
                *full = true;
                let waiting = outcome.unwrap_or(0);
                *short = Some(short.map_or(waiting, |short| short.min(waiting)));
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
            door,
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

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), Refused> {
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

    /// One look at whether the guest wants to be told, and at most one call.
    fn flush(&mut self) {
        self.obey();
        if self.unpublished
            && let Some(ring) = self.half.live()
            && let Ok((mut queue, door)) = ring.open()
        {
            door.publish(&mut queue);
            self.unpublished = false;
        }
    }
}

impl AsFd for Transmitter {
    /// Readable when there is room again after a refusal, or something to obey, edge-triggered: [`flush`](Self::flush).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.half.as_fd()
    }
}

/// Chains taken for frames.
#[derive(Debug)]
struct Taken<'a> {
    /// Of all chains, in order.
    pieces: Vec<Piece<VolatileSlice<'a>>>,
    frames: ArrayVec<FrameRoom, MAX_FRAMES>,
    chains: usize,
}

/// Room for one frame: places in the lists of chains, pieces and payload slices.
#[derive(Clone, Debug)]
struct FrameRoom {
    chains: Range<usize>,
    pieces: Range<usize>,
    payloads: Range<usize>,
}

impl<'a> Taken<'a> {
    /// Takes room for up to `frames` frames of `bytes` bytes, and says how many chains waited.
    fn take(
        &mut self,
        queue: &mut Queue<'a, &'a Table>,
        door: &Door<'_>,
        chains: &mut [Chain],
        frames: usize,
        bytes: usize,
    ) -> Result<u16, device::Error> {
        let waiting = queue.poll()?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        for _ in 0..frames.min(MAX_FRAMES) {
            let (first, pieces) = (self.chains, self.pieces.len());
            let places = &mut chains[first..first + most_buffers(door)];
            let taken = queue.take(bytes, places, |piece| {
                // One too many is as good as any more of them.
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
                // Fewer than the queue has, whose size is a u16.
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

/// Without mergeable buffers a frame has to fit into one (5.1.6.3.1).
fn most_buffers(door: &Door<'_>) -> usize {
    if door.features.has(Features::MRG_RXBUF) {
        MAX_BUFFERS
    } else {
        1
    }
}

/// The `len` bytes from `skip` on in `pieces`.
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
    queue: Queue<'a, &'a Table>,
    door: Door<'a>,
    limits: Limits,
    unpublished: &'a mut bool,
    store: &'a mut Store,
    /// Bytes of each frame's headers, and of its payload.
    head: usize,
    payload: usize,
    room: Taken<'a>,
    payloads: Vec<VolatileSlice<'a>>,
    /// The frame to be committed next.
    next: usize,
    /// Chains that have been returned: the first of those taken.
    returned: usize,
}

impl Room for Reservation<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        match self.room.frames.get(self.next) {
            Some(frame) => &self.payloads[frame.payloads.start..],
            None => &[],
        }
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), Refused> {
        let committed = self
            .room
            .frames
            .get(self.next)
            .cloned()
            .ok_or(Refused::Rejected)
            .and_then(|frame| self.put(&frame, offload, head, len));
        self.next += 1;
        if committed != Ok(true) {
            // What was not returned of this frame can be given back only if nothing is returned after it.
            self.room.frames.truncate(self.next);
        }
        committed.map(|_| ())
    }
}

impl Reservation<'_> {
    /// Writes what is in front of the payload, and returns the frame's chains. Says whether those were all.
    fn put(&mut self, frame: &FrameRoom, offload: Offload, head: &[u8], len: usize) -> Result<bool, Refused> {
        if head.len() != self.head || head.len() > MAX_HEAD || len > self.payload || !self.takes(offload) {
            return Err(Refused::Rejected);
        }
        let header_len = self.door.features.header_len();
        let total = header_len + head.len() + len;
        // It is at most what was asked for when it was taken, which was a u32.
        let bytes = u32::try_from(total).map_err(|_| Refused::Rejected)?;
        let chains = &self.store.chains[frame.chains.clone()];
        let buffers = device::spread(chains, bytes);

        let mut front = [0; MAX_HEADER + MAX_HEAD];
        let front = &mut front[..header_len + head.len()];
        front[header_len..].copy_from_slice(head);
        let offload = self.complete(frame, offload, &mut front[header_len..], len)?;
        let mut header = vnet::emit(offload, head.len());
        header[vnet::SHORT_LEN..].copy_from_slice(&buffers.to_le_bytes());
        front[..header_len].copy_from_slice(&header[..header_len]);
        let pieces = &self.room.pieces[frame.pieces.clone()];
        parts::copy_in(pieces.iter().map(|piece| &piece.area), front);

        if let Some(log) = self.door.log {
            let mut left = total;
            for piece in pieces {
                let written = left.min(piece.area.len());
                log.wrote(piece.addr, written);
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

    /// Completes the checksum in `head` for a guest that does not.
    fn complete(
        &mut self,
        frame: &FrameRoom,
        offload: Offload,
        head: &mut [u8],
        len: usize,
    ) -> Result<Offload, Refused> {
        if self.door.features.has(Features::GUEST_CSUM) || offload.checksum == Checksum::Complete {
            return Ok(offload);
        }
        let bounce = &mut self.store.bounce;
        bounce.resize(bounce.len().max(len), 0);
        parts::copy_out(&self.payloads[frame.payloads.clone()], &mut bounce[..len]);
        checksum::complete(head, offload.checksum, [&bounce[..len]]).map_err(|_| Refused::Rejected)?;
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
        // No more than the queue's size, which is a u16.
        self.queue.rewind(left as u16);
        self.store.pieces = parts::recycle(std::mem::take(&mut self.room.pieces));
        self.store.payloads = parts::recycle(std::mem::take(&mut self.payloads));
    }
}
