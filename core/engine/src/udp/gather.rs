//! Consecutive datagrams that are sent by one call.

use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use pontoon_wire::vnet::Offload;
use vm_memory::VolatileSlice;

use crate::Frame;
use crate::host::DatagramMeta;

/// Datagrams of one send: `UDP_MAX_SEGMENTS` of Linux before 6.9.
pub(super) const MAX_SEGMENTS: usize = 64;

/// Bytes of one send: an IP packet less the headers of UDP over IPv6.
pub(super) const MAX_BYTES: usize = 65_535 - 48;

/// Slices of link memory in one send.
const MAX_PARTS: usize = 2 * MAX_SEGMENTS;

/// The datagrams gathered so far in a burst of frames: of one endpoint to one peer, of one size and with one set of
/// header fields; only the last may be shorter.
///
/// There is one for each burst, which is passed to [`Udp::flush`](super::Udp::flush) while the burst's memory is valid.
#[derive(Debug, Default)]
pub struct Gather<'a> {
    pub(super) run: Option<Run>,
    pub(super) parts: ArrayVec<VolatileSlice<'a>, MAX_PARTS>,
}

/// The fields that all gathered datagrams share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) heading: Heading,
    /// The route.
    pub(super) route: Route,
    /// Bytes of each datagram but the last.
    pub(super) segment: usize,
    /// Bytes in all.
    pub(super) len: usize,
    /// Datagrams.
    pub(super) count: usize,
}

/// The header fields that datagrams of one send share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heading {
    pub(super) guest: SocketAddr,
    pub(super) written: SocketAddr,
    pub(super) meta: DatagramMeta,
}

/// The route of a datagram on the host's side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    /// The slot of the socket, and its generation.
    pub(super) index: u32,
    pub(super) generation: u16,
    /// The destination, unless the socket is connected.
    pub(super) to: Option<SocketAddr>,
    /// The source address, if the socket has several.
    pub(super) from: Option<IpAddr>,
}

/// The result of adding a frame's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Gathering {
    /// They are part of the run.
    Added,
    /// They belong to another send, or there is no room for their slices.
    Rejected,
}

impl<'a> Gather<'a> {
    /// Adds `len` bytes at `offset` of the frame, datagrams of `segment` bytes.
    pub(super) fn append(
        &mut self,
        heading: &Heading,
        frame: &Frame<'a>,
        offset: usize,
        len: usize,
        segment: usize,
    ) -> Gathering {
        let Some(run) = &mut self.run else {
            return Gathering::Rejected;
        };
        let count = datagrams(len, segment);
        let same_size = segment == run.segment || (count == 1 && len < run.segment);
        let open = run.segment > 0 && run.len == run.count * run.segment;
        let room = run.count + count <= MAX_SEGMENTS && run.len + len <= MAX_BYTES;
        if !(run.heading == *heading && len > 0 && same_size && open && room) {
            return Gathering::Rejected;
        }
        let before = self.parts.len();
        for part in frame.range(offset, len) {
            if self.parts.try_push(part).is_err() {
                self.parts.truncate(before);
                return Gathering::Rejected;
            }
        }
        run.len += len;
        run.count += count;
        Gathering::Added
    }

    /// Begins a run, unless the datagrams are in more slices than there is room for.
    pub(super) fn begin(
        &mut self,
        heading: Heading,
        route: Route,
        frame: &Frame<'a>,
        offset: usize,
        len: usize,
        segment: usize,
    ) -> Gathering {
        self.parts.clear();
        for part in frame.range(offset, len) {
            if self.parts.try_push(part).is_err() {
                return Gathering::Rejected;
            }
        }
        self.run = Some(Run {
            heading,
            route,
            segment,
            len,
            count: datagrams(len, segment),
        });
        Gathering::Added
    }
}

/// Returns the number of datagrams in `len` bytes; an empty one counts.
pub(super) fn datagrams(len: usize, segment: usize) -> usize {
    match segment {
        0 => 1,
        _ => len.div_ceil(segment).max(1),
    }
}

/// The slices that hold `len` bytes from `offset` on.
pub(super) fn range<'a>(
    parts: &'a [VolatileSlice<'a>],
    offset: usize,
    len: usize,
) -> ArrayVec<VolatileSlice<'a>, MAX_PARTS> {
    let frame = Frame {
        offload: Offload::NONE,
        head: &[],
        parts,
        len: offset + len,
    };
    frame.range(offset, len).take(MAX_PARTS).collect()
}
