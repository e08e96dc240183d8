//! The interface between the engine and a link: received frames, and the trait [`Transmit`] for frames to the guest.
//!
//! Receiving: the link passes a burst of [`Frame`]s to the engine, which are valid until the call returns. Headers are
//! copied to private memory. Payload is in [`VolatileSlice`]s of link memory, which a hostile guest may modify at any
//! time, and is passed from there to `sendmsg`.
//!
//! Sending: small frames are sent by [`Transmit::send`]. For data, [`Transmit::reserve`] returns slices that are passed
//! to `recvmsg`, and whose frames are then committed in order. Dropping a reservation frees it.

use pontoon_wire::vnet::{Offload, Segmentation};
use vm_memory::VolatileSlice;

/// A frame received from the guest.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Offload metadata of the frame.
    pub offload: Offload,
    /// First bytes of the frame, at most [`pontoon_wire::frame::HEAD`], copied to private memory.
    pub head: &'a [u8],
    /// The whole frame in link memory, including the bytes of `head`.
    pub parts: &'a [VolatileSlice<'a>],
    /// Length of the whole frame in bytes.
    pub len: usize,
}

impl<'a> Frame<'a> {
    /// Returns the slices of link memory that contain `len` bytes of the frame from `offset` on; none of them is empty.
    ///
    /// A range that exceeds the frame is truncated at the frame's end.
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
        let headers = match self.head.get(12..14) {
            Some([0x86, 0xdd]) => ETHERNET_IPV6_UDP,
            Some(_) | None => ETHERNET_IPV4_UDP,
        };
        let more = self
            .udp_segments(self.len.saturating_sub(headers))
            .saturating_sub(1);
        self.len + more * headers
    }

    /// Copies bytes of the frame from `offset` on into `into`, and returns the number of bytes copied.
    pub fn copy(&self, offset: usize, into: &mut [u8]) -> usize {
        let mut at = 0;
        for part in self.range(offset, into.len()) {
            at += part.copy_to(&mut into[at..]);
        }
        at
    }
}

/// Bytes of the headers of a datagram: Ethernet, IP and UDP.
const ETHERNET_IPV4_UDP: usize = 14 + 20 + 8;
const ETHERNET_IPV6_UDP: usize = 14 + 40 + 8;

/// Limits of a link for frames to the guest. They may change when a VM negotiates features again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// MTU of the guest's interface: maximum length of an IP packet in bytes.
    pub mtu: usize,
    /// Maximum length of the IP packet in a TCP or UDP super-frame in bytes, at most 65,535.
    pub max_gso: usize,
    /// True if the link accepts TCP super-frames over IPv4 (TSO).
    pub tso4: bool,
    /// True if the link accepts TCP super-frames over IPv6 (TSO).
    pub tso6: bool,
    /// True if the link accepts UDP super-frames (USO).
    pub uso: bool,
}

/// The reason why the link did not accept a frame to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitError {
    /// The link has no room now.
    Full,
    /// The guest's interface is down, or the frame is too large for the link.
    Rejected,
}

/// The transmitting half of a link, by which the engine sends frames to the guest.
///
/// Every link accepts frames with a partial checksum; a link without that offload completes the checksum itself.
pub trait Transmit {
    /// A reservation of room for frames, which [`Self::reserve`] returns.
    type Room<'a>: Room
    where
        Self: 'a;

    /// Returns the current limits of the link.
    fn limits(&self) -> Limits;

    /// Sends one frame, which is copied from private memory.
    ///
    /// # Errors
    /// The link did not accept the frame.
    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError>;

    /// Reserves room for up to `frames` frames, each with `head` bytes of headers and up to `payload` bytes of data.
    /// There may be room for fewer frames; `None` means that the link is full until its descriptor is writable.
    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<Self::Room<'_>>;

    /// Ends a burst: passes all frames that were sent or committed to the guest.
    fn flush(&mut self);
}

/// Room for frames that a link has reserved. Frames that were not committed are freed when the reservation is dropped.
pub trait Room {
    /// Returns the memory for the payload of the frames that are not committed yet, in order; the reserved number of
    /// bytes of each frame is one slice or several.
    fn payloads(&self) -> &[VolatileSlice<'_>];

    /// Sends the next frame of the reservation: `head`, which has the reserved length, and the first `len` bytes of its
    /// payload memory. A link may end the reservation after a frame that does not fill its payload memory.
    ///
    /// # Errors
    /// The frame was not sent, and its room is used up.
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

#[cfg(test)]
mod tests {
    use pontoon_wire::vnet::Segmentation;

    use crate::test_world::{GUEST, GUEST_V6, Sent, with_frame};

    #[test]
    fn each_datagram_of_a_super_frame_counts_with_the_headers_of_its_family() {
        for (from, to, headers) in [(GUEST, "192.0.2.1:7", 42), (GUEST_V6, "[2001:db8::1]:7", 62)] {
            let bytes = Sent::new(from, to, &[1; 250]).udp();
            with_frame(&bytes, Segmentation::Udp { len: 100 }, |frame, _| {
                assert_eq!(frame.wire_len(), 250 + 3 * headers, "{from}");
            });
        }
    }
}
