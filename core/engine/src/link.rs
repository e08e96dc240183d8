//! The interface between the engine and a link: received frames, and the trait [`Transmit`].
//!
//! Receiving: the link passes a burst of [`Frame`]s to its worker, all valid until the call returns. Headers are in private
//! memory; payload is in [`VolatileSlice`]s of link memory, which a hostile guest may modify at any time, and is passed from
//! there to `sendmsg`.
//!
//! Sending: small frames by [`Transmit::send`]; data by [`Transmit::reserve`], whose slices are passed to `recvmsg` and whose
//! frames are then committed in order. Dropping a reservation frees it.

use pontoon_wire::vnet::{Offload, Segmentation};
use vm_memory::VolatileSlice;

/// A frame from the guest.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Offload metadata that came with it.
    pub offload: Offload,
    /// The first bytes, at most [`pontoon_wire::frame::HEAD`], copied to private memory.
    pub head: &'a [u8],
    /// The whole frame, first byte to last, in link memory.
    pub parts: &'a [VolatileSlice<'a>],
    /// Bytes in the whole frame.
    pub len: usize,
}

impl<'a> Frame<'a> {
    /// Returns the slices of link memory that hold `len` bytes from `offset` on, without empty ones.
    ///
    /// A range beyond the frame's end is cut there.
    pub fn range(&self, offset: usize, len: usize) -> impl Iterator<Item = VolatileSlice<'a>> + use<'a> {
        let mut skip = offset;
        let mut left = len;
        self.parts.iter().filter_map(move |part| {
            let begin = skip.min(part.len());
            skip -= begin;
            let take = (part.len() - begin).min(left);
            left -= take;
            (take > 0).then(|| part.subslice(begin, take).ok()).flatten()
        })
    }

    /// Returns the number of datagrams that the UDP payload of this frame is segmented into.
    pub(crate) fn udp_segments(&self, payload_len: usize) -> usize {
        match self.offload.segmentation {
            Segmentation::Udp { len } => payload_len.div_ceil(usize::from(len).max(1)),
            Segmentation::Whole | Segmentation::Tcp4 { .. } | Segmentation::Tcp6 { .. } => 1,
        }
    }

    /// Returns the bytes of the Ethernet frames that this frame stands for. Segmentation of TCP is not counted: the host's
    /// kernel segments the stream anew, while each datagram gets a header.
    pub(crate) fn wire_len(&self) -> usize {
        let headers = ETHERNET_IPV4_UDP;
        let more = self
            .udp_segments(self.len.saturating_sub(headers))
            .saturating_sub(1);
        self.len + more * headers
    }

    /// Copies bytes from `offset` on into `into`, and returns their number.
    pub fn copy(&self, offset: usize, into: &mut [u8]) -> usize {
        let mut at = 0;
        for part in self.range(offset, into.len()) {
            at += part.copy_to(&mut into[at..]);
        }
        at
    }
}

/// Bytes of the headers of a datagram: Ethernet, IPv4 and UDP.
const ETHERNET_IPV4_UDP: usize = 14 + 20 + 8;

/// The limits of a link towards the guest, which may change when the guest renegotiates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The guest interface's MTU: bytes of an IP packet.
    pub mtu: usize,
    /// Largest IP packet of a segmented TCP or UDP frame (65,535 at most).
    pub max_gso: usize,
    /// The link segments TCP over IPv4.
    pub tso4: bool,
    /// The link segments TCP over IPv6.
    pub tso6: bool,
    /// The link splits UDP super-frames.
    pub uso: bool,
}

/// The reason why the link did not accept a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitError {
    /// There is no room now.
    Full,
    /// The interface is down, or the frame is too large for it.
    Rejected,
}

/// The sending half of a link.
///
/// Every link accepts frames with a partial checksum: a link without that offload completes the checksum.
pub trait Transmit {
    /// Room for frames, see [`Self::reserve`].
    type Room<'a>: Room
    where
        Self: 'a;

    /// Returns the current limits of the link.
    fn limits(&self) -> Limits;

    /// Sends one frame, copied from private memory.
    ///
    /// # Errors
    /// The frame was not sent.
    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError>;

    /// Reserves room for up to `frames` frames of `head` bytes of headers and up to `payload` bytes of data each: fewer frames
    /// if there is less room. `None` if there is none until the link is ready for writing.
    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<Self::Room<'_>>;

    /// Ends a burst: all frames that were sent or committed are passed to the guest.
    fn flush(&mut self);
}

/// Reserved frames. Those that were not committed are freed when it is dropped.
pub trait Room {
    /// Returns the payload room of the frames not yet committed, in order: the reserved number of bytes for each, in one slice
    /// or in several.
    fn payloads(&self) -> &[VolatileSlice<'_>];

    /// Sends the next frame: `head`, of the reserved length, then the first `len` bytes of its payload room. A link may end the
    /// reservation with a frame that does not fill its room.
    ///
    /// # Errors
    /// The frame was not sent. Its room is used up.
    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError>;
}

impl<T: Transmit> Transmit for &mut T {
    type Room<'a>
        = T::Room<'a>
    where
        Self: 'a;

    fn limits(&self) -> Limits {
        (**self).limits()
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        (**self).send(offload, head, payload)
    }

    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<Self::Room<'_>> {
        (**self).reserve(frames, head, payload)
    }

    fn flush(&mut self) {
        (**self).flush();
    }
}
