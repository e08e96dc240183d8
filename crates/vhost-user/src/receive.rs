//! Frames from the guest: its transmit queue.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::Frame;
use pontoon_ring::Access;
use pontoon_ring::device::Chain;
use pontoon_wire::frame::HEAD;
use pontoon_wire::vnet::{self, Offload};
use vm_memory::VolatileSlice;

use crate::half::{Fault, Half, Ring};
use crate::mailbox::Mailbox;
use crate::parts::{self, SliceStore};

/// Frames of one burst.
pub const BURST: usize = 32;

/// Pieces of guest memory that one frame may lie in. Linux sends from 1 + 45 at most (`MAX_SKB_FRAGS`, as far as it can
/// be configured), and the header may be one more.
pub const MAX_PARTS: usize = 64;

/// Bytes of the largest frame: the largest IP packet, segmented or not, behind an Ethernet header with a tag.
const MAX_FRAME: usize = 65_535 + 18;

/// Bytes of the longest `virtio_net_hdr`.
const MAX_HEADER: usize = 12;

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    half: Half,
    heads: Box<[[u8; MAX_HEADER + HEAD]; BURST]>,
    parts: SliceStore,
}

/// What a burst came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Frames that were handed on.
    pub frames: usize,
    /// Frames that were dropped here: offload metadata that means nothing, no frame behind it, too large, or in more
    /// than [`MAX_PARTS`] pieces.
    pub malformed: u64,
    /// There are more frames.
    pub more: bool,
}

impl Receiver {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> rustix::io::Result<Self> {
        Ok(Self {
            half: Half::new(mailbox)?,
            heads: Box::new([[0; MAX_HEADER + HEAD]; BURST]),
            parts: Vec::new(),
        })
    }

    /// Takes up to `max` frames (at most [`BURST`]) and hands them to `sink` together, unless there is none. Their
    /// buffers go back to the guest when that returns.
    pub fn receive(&mut self, max: usize, sink: impl FnOnce(&[Frame<'_>])) -> Burst {
        self.half.obey();
        let Self { half, heads, parts } = self;
        let Some(ring) = half.live() else {
            return Burst::NONE;
        };
        let mut burst = Burst::NONE;
        if let Err(fault) = serve(ring, max.min(BURST), heads, parts, &mut burst, sink) {
            half.fail(fault);
            burst.more = false;
        }
        burst
    }

    /// Whether there are frames. The driver does not kick while it is served, so that nothing else tells of them until
    /// [`rearm`](Self::rearm). Orders are obeyed, as those do not wait until frames may be taken.
    pub fn has_frames(&mut self) -> bool {
        self.half.obey();
        self.look(|ring| Ok(ring.open()?.0.poll()?)) > 0
    }

    /// Asks the driver to kick for what comes from now on. What is there already is told of, too.
    pub fn rearm(&mut self) {
        let waiting = self.look(|ring| {
            let (mut queue, door) = ring.open()?;
            Ok(door.rearm(&mut queue)?)
        });
        if waiting > 0 {
            self.half.ring_bell();
        }
    }

    /// How many chains wait, as the ring says when it is looked at like this.
    fn look(&mut self, how: impl FnOnce(&mut Ring) -> Result<u16, Fault>) -> u16 {
        match self.half.live().map(how) {
            Some(Ok(waiting)) => waiting,
            Some(Err(fault)) => {
                self.half.fail(fault);
                0
            }
            None => 0,
        }
    }

    /// Queues that had to be given up, for what the driver did.
    pub fn faults(&self) -> u64 {
        self.half.faults()
    }
}

impl AsFd for Receiver {
    /// Readable when there is something to [`receive`](Receiver::receive) since [`rearm`](Self::rearm), or to obey,
    /// edge-triggered.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.half.as_fd()
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
    ring: &mut Ring,
    max: usize,
    heads: &mut [[u8; MAX_HEADER + HEAD]; BURST],
    store: &mut SliceStore,
    burst: &mut Burst,
    sink: impl FnOnce(&[Frame<'_>]),
) -> Result<(), Fault> {
    let enabled = ring.is_enabled();
    let (mut queue, door) = ring.open()?;
    queue.suppress();
    let waiting = usize::from(queue.poll()?);
    let header_len = door.features.header_len();
    let mut parts: Vec<VolatileSlice<'_>> = parts::recycle(std::mem::take(store));
    let mut chains = ArrayVec::<Chain, BURST>::new();
    let mut taken = ArrayVec::<Taken<'_>, BURST>::new();
    let mut broken = None;
    for head in heads.iter_mut().take(max.min(waiting)) {
        let first = parts.len();
        let popped = queue.pop(|piece| {
            // One too many is as good as any more of them.
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
        match Taken::new(&mut parts, first, head, header_len) {
            Some(frame) => taken.push(frame),
            None => {
                burst.malformed += 1;
                parts.truncate(first);
            }
        }
    }
    // What a ring that is not enabled transmits is to be discarded.
    if enabled && !taken.is_empty() {
        let frames: ArrayVec<Frame<'_>, BURST> = taken.iter().map(|taken| taken.frame(&parts)).collect();
        sink(&frames);
        burst.frames = frames.len();
    }
    *store = parts::recycle(parts);
    for chain in &chains {
        queue.put(*chain, 0);
    }
    door.publish(&mut queue);
    match broken {
        Some(error) => Err(error.into()),
        None => {
            burst.more = queue.poll()? > 0;
            Ok(())
        }
    }
}

/// A frame that was taken.
struct Taken<'h> {
    offload: Offload,
    head: &'h [u8],
    /// Its place among the burst's parts.
    parts: std::ops::Range<usize>,
    len: usize,
}

impl<'h> Taken<'h> {
    /// Takes the offload metadata off the pieces from `first` on, and copies the frame's head.
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
