//! Input from a UDP socket, which does not need CAP_NET_RAW.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_relay::Datagram;
use pontoon_relay::datagram::DatagramError;
use pontoon_sys::message::{self, RecvMode};
use pontoon_sys::udp::{self, Ancillary};
use vm_memory::VolatileSlice;

use super::{DropReason, Location, RxPacket};

/// UDP socket that is bound to a port. One receive can return several datagrams of one flow (`UDP_GRO`).
#[derive(Debug)]
pub(crate) struct SocketInput {
    socket: OwnedFd,
    port: u16,
    buffers: Vec<Vec<u8>>,
    /// Number of received bytes in each buffer of the current batch.
    lengths: Vec<usize>,
}

/// Limit on the receives of a batch.
const MAX_BATCH: usize = 64;

/// Number of packets in a batch from which on waiting for more is of no use.
pub(super) const FULL_BATCH: u64 = MAX_BATCH as u64;

/// Limit on the bytes of one receive.
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
        let received = message::receive(&self.socket, &into, &mut control, RecvMode::Next).ok()?;
        self.lengths.push(received.len);
        let beside = Ancillary::decode(&control[..received.control_len]);
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
            location: Location::Buffer(number),
            content,
        })
    }

    pub(super) fn packet(&self, location: Location) -> &[u8] {
        let Location::Buffer(number) = location else {
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
