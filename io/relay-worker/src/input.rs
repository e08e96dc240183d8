//! Inputs of a relay worker: packet rings and UDP sockets.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use pontoon_relay::Datagram;
use pontoon_relay::datagram::DatagramError;

mod ring;
mod socket;

pub(crate) use ring::RingInput;
pub(crate) use socket::SocketInput;

/// Packet ring or UDP socket from which a worker receives. Received packets stay in its memory until
/// [`PacketInput::release`].
#[derive(Debug)]
pub(crate) enum PacketInput {
    Ring(RingInput),
    Socket(SocketInput),
}

/// Packet that was received from an input.
#[derive(Debug)]
pub(crate) struct RxPacket {
    pub(crate) location: Location,
    /// Parsed datagram, and the size in bytes of each datagram except the last if the packet holds several.
    pub(crate) content: Result<(Datagram, Option<usize>), DropReason>,
}

/// Location of a packet in the memory of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Number of the ring slot, counted from the first one of the current batch.
    Slot(u32),
    /// Index of a buffer of the input.
    Buffer(usize),
}

/// Location of a datagram's payload in the memory of its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadRef {
    location: Location,
    begin: usize,
    end: usize,
}

/// Reason why a received packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The packet is not a datagram that can be forwarded.
    Refused(DatagramError),
    /// The packet was truncated. It held this number of datagrams.
    Cut(u64),
}

impl PacketInput {
    /// Returns the next packet, if there is one and the current batch has room for it.
    pub(crate) fn take(&mut self) -> Option<RxPacket> {
        match self {
            Self::Ring(ring) => ring.take(),
            Self::Socket(socket) => socket.take(),
        }
    }

    /// Returns the bytes of a payload of the current batch.
    pub(crate) fn bytes(&self, piece: PayloadRef) -> &[u8] {
        let packet = match self {
            Self::Ring(ring) => ring.packet(piece.location),
            Self::Socket(socket) => socket.packet(piece.location),
        };
        packet.get(piece.begin..piece.end).unwrap_or_default()
    }

    /// Ends the current batch and frees the memory of its packets.
    pub(crate) fn release(&mut self) {
        match self {
            Self::Ring(ring) => ring.release(),
            Self::Socket(socket) => socket.release(),
        }
    }

    /// Returns the number of packets in a batch from which on waiting for more packets (`--max-delay`) is of no use.
    pub(crate) fn full_batch(&self) -> u64 {
        match self {
            Self::Ring(_) => ring::FULL_BATCH,
            Self::Socket(_) => socket::FULL_BATCH,
        }
    }

    /// Returns the ring position from which a successor of this process continues.
    pub(crate) fn position(&self) -> u32 {
        match self {
            Self::Ring(ring) => ring.position(),
            Self::Socket(_) => 0,
        }
    }
}

impl AsFd for PacketInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(ring) => ring.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }
}

impl PayloadRef {
    pub(crate) fn new(location: Location, range: Range<usize>) -> Self {
        Self {
            location,
            begin: range.start,
            end: range.end,
        }
    }
}
