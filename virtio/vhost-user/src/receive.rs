//! Receiving of frames from the guest: the device side of the guest's transmit queue.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::Frame;
use pontoon_ring::Access;
use pontoon_ring::device::Chain;
use pontoon_wire::frame::HEAD;
use pontoon_wire::vnet::{self, Offload};
use vm_memory::VolatileSlice;

use crate::data_plane::{ActiveRing, DataPlane, RingFault};
use crate::mailbox::Mailbox;
use crate::parts::{self, SliceStore};

/// Limit on the number of frames in a burst.
pub const BURST: usize = 32;

/// Limit on the number of slices of guest memory per frame. Linux sends at most 1 + 45 buffers (`MAX_SKB_FRAGS` in its
/// largest configuration), and the header may be one more.
pub const MAX_PARTS: usize = 64;

/// Size in bytes of the largest frame: the largest IP packet, also if it will be segmented, with Ethernet header and
/// VLAN tag.
const MAX_FRAME: usize = 65_535 + 18;

/// Size of the longest `virtio_net_hdr` in bytes.
const MAX_HEADER: usize = 12;

/// Receives frames from the guest on one queue pair.
#[derive(Debug)]
pub struct Receiver {
    data_plane: DataPlane,
    heads: Box<[[u8; MAX_HEADER + HEAD]; BURST]>,
    parts: SliceStore,
}

/// Result of one call of [`Receiver::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Number of frames that were passed to the sink.
    pub frames: usize,
    /// Number of frames that were dropped: invalid offload metadata, no bytes behind it, too long, or in more than
    /// [`MAX_PARTS`] slices.
    pub malformed: u64,
    /// True if the queue contains more frames.
    pub more: bool,
}

impl Receiver {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> rustix::io::Result<Self> {
        Ok(Self {
            data_plane: DataPlane::new(mailbox)?,
            heads: Box::new([[0; MAX_HEADER + HEAD]; BURST]),
            parts: Vec::new(),
        })
    }

    /// Receives up to `max` frames (at most [`BURST`]) and passes them to `sink` in one call, if there are any.
    /// Afterwards their buffers are returned to the guest.
    pub fn receive(&mut self, max: usize, sink: impl FnOnce(&[Frame<'_>])) -> Burst {
        self.data_plane.execute_command();
        let Self {
            data_plane,
            heads,
            parts,
        } = self;
        let Some(ring) = data_plane.live() else {
            return Burst::NONE;
        };
        let mut burst = Burst::NONE;
        if let Err(fault) = serve(ring, max.min(BURST), heads, parts, &mut burst, sink) {
            data_plane.fail(fault);
            burst.more = false;
        }
        burst
    }

    /// Executes a pending command, and returns true if the queue contains frames. The driver does not kick while the
    /// queue is polled, so no event reports frames until [`rearm`](Self::rearm) is called.
    pub fn poll(&mut self) -> bool {
        self.data_plane.execute_command();
        self.poll_with(|ring| Ok(ring.open()?.0.poll()?)) > 0
    }

    /// Requests a kick for new frames. If the queue contains frames already, the descriptor becomes readable.
    pub fn rearm(&mut self) {
        let waiting = self.poll_with(|ring| {
            let (mut queue, notifier) = ring.open()?;
            Ok(notifier.rearm(&mut queue)?)
        });
        if waiting > 0 {
            self.data_plane.wake();
        }
    }

    /// Calls `how` with the ring, and returns the number of chains that can be taken; 0 if the ring is not served or
    /// fails.
    fn poll_with(&mut self, how: impl FnOnce(&mut ActiveRing) -> Result<u16, RingFault>) -> u16 {
        match self.data_plane.live().map(how) {
            Some(Ok(waiting)) => waiting,
            Some(Err(fault)) => {
                self.data_plane.fail(fault);
                0
            }
            None => 0,
        }
    }

    /// Returns the number of times that the ring has failed because of the driver.
    pub fn faults(&self) -> u64 {
        self.data_plane.faults()
    }
}

impl AsFd for Receiver {
    /// Returns a descriptor that is readable, to be registered edge triggered, when there is a command or, after
    /// [`rearm`](Self::rearm), a frame to [`receive`](Receiver::receive).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.data_plane.as_fd()
    }
}

impl Burst {
    const NONE: Self = Self {
        frames: 0,
        malformed: 0,
        more: false,
    };
}

fn serve(
    ring: &mut ActiveRing,
    max: usize,
    heads: &mut [[u8; MAX_HEADER + HEAD]; BURST],
    store: &mut SliceStore,
    burst: &mut Burst,
    sink: impl FnOnce(&[Frame<'_>]),
) -> Result<(), RingFault> {
    let enabled = ring.is_enabled();
    let (mut queue, notifier) = ring.open()?;
    queue.suppress();
    let waiting = usize::from(queue.poll()?);
    let header_len = notifier.features.header_len();
    let mut parts: Vec<VolatileSlice<'_>> = parts::recycle(std::mem::take(store));
    let mut chains = ArrayVec::<Chain, BURST>::new();
    let mut taken = ArrayVec::<TakenFrame<'_>, BURST>::new();
    let mut broken = None;
    for head in heads.iter_mut().take(max.min(waiting)) {
        let first = parts.len();
        let popped = queue.pop(|piece| {
            // One slice too many is enough for the frame to be rejected below.
            if piece.access == Access::Readable && parts.len() - first <= MAX_PARTS {
                parts.push(piece.area);
            }
        });
        match popped {
            Ok(Some(chain)) => chains.push(chain),
            Ok(None) => break,
            Err(error) => {
                broken = Some(error);
                break;
            }
        }
        match TakenFrame::new(&mut parts, first, head, header_len) {
            Some(frame) => taken.push(frame),
            None => {
                burst.malformed += 1;
                parts.truncate(first);
            }
        }
    }
    // Frames on a disabled ring are dropped.
    if enabled && !taken.is_empty() {
        let frames: ArrayVec<Frame<'_>, BURST> = taken.iter().map(|taken| taken.frame(&parts)).collect();
        sink(&frames);
        burst.frames = frames.len();
    }
    *store = parts::recycle(parts);
    for chain in &chains {
        queue.put(*chain, 0);
    }
    notifier.publish(&mut queue);
    match broken {
        Some(error) => Err(error.into()),
        None => {
            burst.more = queue.poll()? > 0;
            Ok(())
        }
    }
}

/// A frame whose chain was taken from the ring.
struct TakenFrame<'h> {
    offload: Offload,
    head: &'h [u8],
    /// Range of the frame's slices in the list of the burst.
    parts: std::ops::Range<usize>,
    len: usize,
}

impl<'h> TakenFrame<'h> {
    /// Parses and removes the offload metadata from the slices from `first` on, and copies the frame's headers.
    fn new(
        parts: &mut [VolatileSlice<'_>],
        mut first: usize,
        head: &'h mut [u8; MAX_HEADER + HEAD],
        header_len: usize,
    ) -> Option<Self> {
        let end = parts.len();
        let pieces = &mut parts[first..];
        if pieces.len() > MAX_PARTS {
            return None;
        }
        let len: usize = pieces.iter().map(VolatileSlice::len).sum();
        let len = len
            .checked_sub(header_len)
            .filter(|len| (1..=MAX_FRAME).contains(len))?;
        let copied = parts::copy_out(&*pieces, &mut head[..header_len + HEAD]);
        let head = &head[..copied];
        let offload = vnet::offload(head).ok()?;
        let mut skip = header_len;
        for piece in pieces {
            if skip < piece.len() {
                *piece = piece.offset(skip).ok()?;
                break;
            }
            skip -= piece.len();
            first += 1;
        }
        Some(Self {
            offload,
            head: &head[header_len..],
            parts: first..end,
            len,
        })
    }

    fn frame<'a>(&'a self, parts: &'a [VolatileSlice<'a>]) -> Frame<'a> {
        Frame {
            offload: self.offload,
            head: self.head,
            parts: &parts[self.parts.clone()],
            len: self.len,
        }
    }
}
