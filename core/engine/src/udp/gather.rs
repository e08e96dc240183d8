//! Gathers consecutive datagrams from the guest that are sent by one call.

use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use pontoon_wire::vnet::Offload;
use vm_memory::VolatileSlice;

use crate::Frame;
use crate::host::DatagramMeta;

/// Maximum number of datagrams in one send: `UDP_MAX_SEGMENTS` of Linux before 6.9.
pub(super) const MAX_SEGMENTS: usize = 64;

/// Maximum number of payload bytes in one send: an IP packet without the headers of IPv6 and UDP.
pub(super) const MAX_BYTES: usize = 65_535 - 48;

/// Maximum number of slices of link memory in one send.
const MAX_PARTS: usize = 2 * MAX_SEGMENTS;

/// The datagrams that a burst has gathered for one send: from one endpoint to one peer, with equal sizes and header
/// fields; only the last may be shorter.
///
/// Each burst has one `DatagramGather`, which is passed to [`Udp::flush`](super::Udp::flush) while the burst's link
/// memory is valid.
#[derive(Debug, Default)]
pub struct DatagramGather<'a> {
    pub(super) run: Option<DatagramRun>,
    pub(super) parts: ArrayVec<VolatileSlice<'a>, MAX_PARTS>,
}

/// The properties that all gathered datagrams have in common, and their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramRun {
    pub(super) heading: RunHeaders,
    /// Host socket, destination and source of the datagrams.
    pub(super) route: UdpRoute,
    /// Bytes of payload in each datagram except the last.
    pub(super) segment: usize,
    /// Total number of payload bytes.
    pub(super) len: usize,
    /// Number of gathered datagrams.
    pub(super) count: usize,
}

/// The header fields that all datagrams of one send have in common, as the guest has sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunHeaders {
    pub(super) guest: SocketAddr,
    pub(super) written: SocketAddr,
    pub(super) meta: DatagramMeta,
}

/// The way of a datagram on the host's side: host socket, destination and source.
#[derive(Clone, Copy, Debug)]
pub(super) struct UdpRoute {
    /// Slot of the endpoint whose host socket sends the datagram, and the slot's generation.
    pub(super) index: u32,
    pub(super) generation: u16,
    /// Destination address and port; `None` if the socket is connected.
    pub(super) to: Option<SocketAddr>,
    /// Source address, if the socket is bound to a wildcard address and the peer expects a certain one.
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

impl<'a> DatagramGather<'a> {
    /// Adds datagrams of `segment` bytes, `len` bytes in total at `offset` of the frame.
    pub(super) fn append(
        &mut self,
        heading: &RunHeaders,
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
        heading: RunHeaders,
        route: UdpRoute,
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
        self.run = Some(DatagramRun {
            heading,
            route,
            segment,
            len,
            count: datagrams(len, segment),
        });
        Gathering::Added
    }
}

/// Returns the number of datagrams in `len` bytes; an empty datagram counts as one.
pub(super) fn datagrams(len: usize, segment: usize) -> usize {
    match segment {
        0 => 1,
        _ => len.div_ceil(segment).max(1),
    }
}

/// Returns the slices that contain `len` bytes from `offset` on.
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
