//! Input from a packet ring (packet(7)), which receives multicast datagrams.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_relay::Datagram;
use pontoon_relay::datagram::ChecksumState;
use pontoon_sys::packet::{self, Ring, Size, VNET_HDR_LEN};
use pontoon_wire::vnet::{self, Segmentation};

use super::{DropReason, Location, RxPacket};

/// Packet ring, and buffers for packets that are longer than its slots.
#[derive(Debug)]
pub(crate) struct RingInput {
    socket: OwnedFd,
    ring: Ring,
    /// True if the worker's position in the ring is known to be the kernel's. It is not if a predecessor of this process
    /// may have exited before it stored its position.
    position_known: bool,
    /// Number of slots in the current batch.
    taken: u32,
    long: LongPackets,
}

/// Packets longer than a slot, in buffers that are allocated when the first one arrives.
#[derive(Debug, Default)]
struct LongPackets {
    buffers: Vec<Vec<u8>>,
    /// Range of each packet of the current batch in its buffer.
    ranges: Vec<Range<usize>>,
    /// Length of a packet in the next buffer that belongs to a later slot, if there is one.
    held: Option<usize>,
}

/// Limit on the packets longer than a slot in one batch.
const MAX_LONG: usize = 64;

/// Size of a buffer in bytes: more than the longest packet with all headers.
const LONG_BYTES: usize = (64 << 10) + 512;

/// Limit on the slots of a batch: a burst of each of 16 flows.
const MAX_BATCH: u32 = 1024;

/// Number of packets in a batch from which on waiting for more does not lengthen bursts.
pub(super) const FULL_BATCH: u64 = 512;

impl RingInput {
    /// Maps the ring of `socket`. `position` is the approximate position of a predecessor, if there was one.
    pub(crate) fn new(socket: OwnedFd, size: Size, position: Option<u32>) -> io::Result<Self> {
        let ring = Ring::map(&socket, size, position.unwrap_or_default())?;
        Ok(Self {
            socket,
            ring,
            position_known: position.is_none(),
            taken: 0,
            long: LongPackets::default(),
        })
    }

    pub(super) fn take(&mut self) -> Option<RxPacket> {
        if self.taken == MAX_BATCH {
            return None;
        }
        if !self.position_known {
            self.ring.find();
        }
        let packet = self.ring.packet(self.taken)?;
        self.position_known = true;
        let whole = packet.bytes.len() >= packet.len;
        if !whole && packet.kept && self.long.ranges.len() == MAX_LONG {
            return None;
        }
        let (location, bytes) = if whole {
            (Location::Slot(self.taken), Some(packet.bytes))
        } else if packet.kept {
            let location = Location::Buffer(self.long.ranges.len());
            (location, self.long.take(&self.socket, packet.bytes, packet.len))
        } else {
            (Location::Slot(self.taken), None)
        };
        let content = match bytes {
            Some(bytes) => read(packet.vnet, bytes),
            None => Err(DropReason::Cut(datagrams(packet.vnet, packet.bytes, packet.len))),
        };
        self.taken += 1;
        Some(RxPacket { location, content })
    }

    pub(super) fn packet(&self, location: Location) -> &[u8] {
        match location {
            Location::Slot(slot) => self.ring.packet(slot).map_or(&[], |packet| packet.bytes),
            Location::Buffer(number) => self.long.packet(number),
        }
    }

    pub(super) fn release(&mut self) {
        self.ring.release(self.taken);
        self.taken = 0;
        self.long.release();
    }

    pub(super) fn position(&self) -> u32 {
        self.ring.position()
    }
}

impl AsFd for RingInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Parses a packet. Returns the datagram, and the size in bytes of each datagram if the packet holds several.
fn read(header: &[u8], packet: &[u8]) -> Result<(Datagram, Option<usize>), DropReason> {
    let malformed = DropReason::Refused(pontoon_relay::datagram::DatagramError::Malformed);
    let offload = vnet::offload(header).map_err(|_| malformed)?;
    // If either flag is set, this host has sent the packet or a device has verified its checksum.
    let trust = match header.first() {
        Some(flags) if flags & (NEEDS_CSUM | DATA_VALID) != 0 => ChecksumState::Verified,
        _ => ChecksumState::Unverified,
    };
    let datagram = Datagram::parse(packet, trust).map_err(DropReason::Refused)?;
    let size = match offload.segmentation {
        Segmentation::Whole => None,
        Segmentation::Udp { len } => Some(usize::from(len)).filter(|size| datagram.payload.len() > *size),
        Segmentation::Tcp4 { .. } | Segmentation::Tcp6 { .. } => return Err(malformed),
    };
    Ok((datagram, size))
}

/// Returns the number of datagrams in a packet of `len` bytes that begins with `begin`.
fn datagrams(header: &[u8], begin: &[u8], len: usize) -> u64 {
    match vnet::offload(header).map(|offload| offload.segmentation) {
        Ok(Segmentation::Udp { len: size }) if size > 0 => {
            let payload = len.saturating_sub(Datagram::headers(begin));
            payload.div_ceil(size.into()).max(1) as u64
        }
        Ok(_) | Err(_) => 1,
    }
}

// Flags of `virtio_net_hdr` (virtio 1.2 section 5.1.6): VIRTIO_NET_HDR_F_NEEDS_CSUM and VIRTIO_NET_HDR_F_DATA_VALID.
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

impl LongPackets {
    /// Receives the packet of `len` bytes that begins with `head`.
    fn take(&mut self, socket: &OwnedFd, head: &[u8], len: usize) -> Option<&[u8]> {
        let number = self.ranges.len();
        if self.buffers.len() == number {
            self.buffers.push(vec![0; LONG_BYTES]);
        }
        let buffer = &mut self.buffers[number];
        let taken = match self.held.take() {
            Some(taken) => taken,
            None => packet::receive_long(socket, buffer).ok()?,
        };
        let begin = taken.checked_sub(len).filter(|begin| *begin >= VNET_HDR_LEN);
        let is_ours = begin.is_some_and(|begin| buffer.get(begin..begin + head.len()) == Some(head));
        let Some(begin) = begin.filter(|_| is_ours) else {
            // A predecessor has exited after it received a packet and before it released the slot; the received packet
            // belongs to a later slot.
            self.held = Some(taken);
            return None;
        };
        self.ranges.push(begin..taken);
        buffer.get(begin..taken)
    }

    fn packet(&self, number: usize) -> &[u8] {
        let (buffer, range) = (self.buffers.get(number), self.ranges.get(number));
        buffer
            .zip(range)
            .and_then(|(buffer, range)| buffer.get(range.clone()))
            .unwrap_or_default()
    }

    fn release(&mut self) {
        if self.held.is_some() {
            // The packet that is held is in the next buffer, which becomes the first.
            let last = self.ranges.len();
            self.buffers.swap(0, last);
        }
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a truncated packet of several coalesced datagrams, only the first bytes are in the ring.
    #[test]
    fn counts_datagrams_of_a_truncated_packet() {
        // The fields of struct virtio_net_hdr are: flags, type (5: UDP), length of the headers, size of each datagram,
        // offset of the checksum.
        let header = |size: u16| {
            let [low, high] = size.to_le_bytes();
            [NEEDS_CSUM, 5, 42, 0, low, high, 20, 0, 6, 0]
        };
        let begin = [&[0x45][..], &[0; 99]].concat();
        assert_eq!(datagrams(&header(1400), &begin, 28 + 3 * 1400), 3);
        assert_eq!(datagrams(&header(1400), &begin, 28 + 3 * 1400 + 1), 4);
        let begin = [&[0x60][..], &[0; 99]].concat();
        assert_eq!(datagrams(&header(1400), &begin, 48 + 3 * 1400), 3);
        assert_eq!(datagrams(&[0; VNET_HDR_LEN], &begin, 9000), 1);
    }
}
