//! The engine's interface to a link.
//!
//! Receiving: the link calls its worker with a burst of [`Frame`]s, all valid until the call returns. Headers are
//! already in private memory; payload is named by [`VolatileSlice`]s of link memory that a hostile guest may be
//! rewriting, and goes from there straight into `sendmsg`.
//!
//! Sending: small frames by [`Transmit::send`]; data by [`Transmit::reserve`], whose slices go straight into
//! `recvmsg` and whose frames are then committed in order. A dropped reservation is undone.

use pontoon_wire::vnet::Offload;
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
    /// The slices of link memory that hold `len` bytes from `offset` on; empty ones are left out.
    ///
    /// A range that passes the frame's end is cut there.
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

    /// Copies bytes from `offset` on into `into`, and says how many there were.
    pub fn copy(&self, offset: usize, into: &mut [u8]) -> usize {
        let mut at = 0;
        for part in self.range(offset, into.len()) {
            at += part.copy_to(&mut into[at..]);
        }
        at
    }
}

/// The limits of a link towards the guest. Data, not behaviour: read it again after a renegotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The guest interface's MTU: bytes of an IP packet.
    pub mtu: usize,
    /// Largest IP packet of a segmented TCP or UDP frame (65,535 at most).
    pub max_gso: usize,
    /// TCP over IPv4 may be left uncut.
    pub tso4: bool,
    /// TCP over IPv6 may be left uncut.
    pub tso6: bool,
    /// UDP datagrams of one size may be left together.
    pub uso: bool,
}

/// The link did not take a frame; it was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitError {
    /// No room now.
    Full,
    /// Never: the interface is down or the frame is too large for it.
    Rejected,
}

/// The sending half of a link.
///
/// A frame with a partial checksum may be handed to any link: one that cannot leave it partial completes it.
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

    /// Room for up to `frames` frames of `head` bytes of headers and up to `payload` bytes of data each: fewer frames
    /// where there is less room. `None` means that there is none now: come back when the link is ready for writing.
    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<Self::Room<'_>>;

    /// Ends a burst: whatever was sent or committed is on its way when this returns.
    fn flush(&mut self);
}

/// Reserved frames. Dropping it gives back what was not committed.
pub trait Room {
    /// Payload room of the frames not yet committed, in order: as many bytes for each as were asked for, in one slice
    /// or in several.
    fn payloads(&self) -> &[VolatileSlice<'_>];

    /// Sends the next frame: `head`, of the length that was asked for, then the first `len` bytes of its payload room.
    /// With a frame that does not fill its room the link may end the reservation.
    ///
    /// # Errors
    /// The frame was not sent. Its place is used up.
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
