//! What a worker takes datagrams from.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use pontoon_relay::Datagram;
use pontoon_relay::datagram::DatagramError;

mod ring;
mod socket;

pub(crate) use ring::RingInput;
pub(crate) use socket::SocketInput;

/// An input. What was taken of it stays where it is until it is released.
#[derive(Debug)]
pub(crate) enum Input {
    Ring(RingInput),
    Socket(SocketInput),
}

/// Something that was taken.
#[derive(Debug)]
pub(crate) struct RxPacket {
    pub(crate) place: Place,
    /// Bytes of each datagram but the last where there are several; what is refused counts as one.
    pub(crate) content: Result<(Datagram, Option<usize>), DropReason>,
}

/// Where a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// So many slots behind the first of this batch.
    Slot(u32),
    /// In a buffer.
    Buffer(usize),
}

/// Where a payload is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    place: Place,
    begin: usize,
    end: usize,
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// Not a datagram that can be relayed.
    Refused(DatagramError),
    /// Its end is missing; it was so many datagrams.
    Cut(u64),
}

impl Input {
    /// Takes the next packet, if there is one and this batch has room for it.
    pub(crate) fn take(&mut self) -> Option<RxPacket> {
        match self {
            Self::Ring(ring) => ring.take(),
            Self::Socket(socket) => socket.take(),
        }
    }

    /// Bytes of a payload that was taken in this batch.
    pub(crate) fn bytes(&self, piece: Piece) -> &[u8] {
        let packet = match self {
            Self::Ring(ring) => ring.packet(piece.place),
            Self::Socket(socket) => socket.packet(piece.place),
        };
        packet.get(piece.begin..piece.end).unwrap_or_default()
    }

    /// Ends the batch: what was taken in it is gone.
    pub(crate) fn release(&mut self) {
        match self {
            Self::Ring(ring) => ring.release(),
            Self::Socket(socket) => socket.release(),
        }
    }

    /// Packets of one batch from which on there is no waiting for more.
    pub(crate) fn full_batch(&self) -> u64 {
        match self {
            Self::Ring(_) => ring::FULL_BATCH,
            Self::Socket(_) => socket::FULL_BATCH,
        }
    }

    /// What a successor has to know.
    pub(crate) fn position(&self) -> u32 {
        match self {
            Self::Ring(ring) => ring.position(),
            Self::Socket(_) => 0,
        }
    }
}

impl AsFd for Input {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(ring) => ring.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }
}

impl Piece {
    pub(crate) fn new(place: Place, range: Range<usize>) -> Self {
        Self {
            place,
            begin: range.start,
            end: range.end,
        }
    }
}
