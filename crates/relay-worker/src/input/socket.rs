//! A UDP socket, where there is no ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_relay::Datagram;
use pontoon_relay::datagram::DatagramError;
use pontoon_sys::message::{self, Take};
use pontoon_sys::udp::{self, Beside};
use vm_memory::VolatileSlice;

use super::{DropReason, Place, RxPacket};

/// A socket that is bound to a port. One receive can yield several datagrams of one flow (`UDP_GRO`).
#[derive(Debug)]
pub(crate) struct SocketInput {
    socket: OwnedFd,
    port: u16,
    buffers: Vec<Vec<u8>>,
    /// Bytes in each buffer of this batch.
    lengths: Vec<usize>,
}

/// Receives of one batch.
const MAX_BATCH: usize = 64;

/// All that one batch takes.
pub(super) const FULL_BATCH: u64 = MAX_BATCH as u64;

/// The longest that a receive yields.
const BYTES: usize = 64 << 10;

impl SocketInput {
    pub(crate) fn new(socket: OwnedFd, port: u16) -> Self {
        Self {
            socket,
            port,
            buffers: Vec::new(),
            lengths: Vec::with_capacity(MAX_BATCH),
        }
    }

    pub(super) fn take(&mut self) -> Option<RxPacket> {
        let number = self.lengths.len();
        if number == MAX_BATCH {
            return None;
        }
        if self.buffers.len() == number {
            self.buffers.push(vec![0; BYTES]);
        }
        let into = [VolatileSlice::from(&mut self.buffers[number][..])];
        let mut control = [0; udp::CONTROL];
        let received = message::receive(&self.socket, &into, &mut control, Take::Next).ok()?;
        self.lengths.push(received.len);
        let beside = Beside::decode(&control[..received.control_len]);
        let content = match (received.address, beside.destination) {
            _ if received.truncated => Err(DropReason::Cut(1)),
            (Some(from), Some(to)) => Ok((
                Datagram {
                    from: from.ip(),
                    from_port: from.port(),
                    to,
                    to_port: self.port,
                    hops: beside.hop_limit.unwrap_or_default(),
                    class: beside.traffic_class.unwrap_or_default(),
                    payload: 0..received.len,
                },
                beside
                    .stride
                    .filter(|stride| *stride > 0 && received.len > *stride),
            )),
            (None, _) | (_, None) => Err(DropReason::Refused(DatagramError::Malformed)),
        };
        Some(RxPacket {
            place: Place::Buffer(number),
            content,
        })
    }

    pub(super) fn packet(&self, place: Place) -> &[u8] {
        let Place::Buffer(number) = place else {
            return &[];
        };
        let (buffer, length) = (self.buffers.get(number), self.lengths.get(number));
        buffer
            .zip(length)
            .and_then(|(buffer, length)| buffer.get(..*length))
            .unwrap_or_default()
    }

    pub(super) fn release(&mut self) {
        self.lengths.clear();
    }
}

impl AsFd for SocketInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
