//! Builds frames as the guest sends them, for transcripts.

use core::net::SocketAddr;

use pontoon_wire::checksum::Sum;
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::{Offload, Segmentation};
use pontoon_wire::{checksum, emit, frame, protocol};
use vm_memory::VolatileSlice;

use super::addr;
use super::net::{GUEST_MAC, OUR_MAC};
use crate::Frame;

/// A packet from the guest, as a builder.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dont_fragment: bool,
    pub(crate) payload: Vec<u8>,
    pub(crate) segmentation: Segmentation,
}

impl Sent {
    pub(crate) fn new(from: &str, to: &str, payload: &[u8]) -> Self {
        Self {
            from: addr(from),
            to: addr(to),
            hop_limit: 64,
            traffic_class: 0,
            dont_fragment: true,
            payload: payload.to_vec(),
            segmentation: Segmentation::Whole,
        }
    }

    pub(crate) fn ip(&self) -> emit::Ip {
        emit::Ip {
            source: self.from.ip(),
            destination: self.to.ip(),
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            dont_fragment: self.dont_fragment,
            ident: 1,
        }
    }

    /// Returns a frame with a TCP segment that has only the SYN flag.
    pub(crate) fn syn(&self) -> Vec<u8> {
        let tcp = emit::TcpFields {
            source_port: self.from.port(),
            destination_port: self.to.port(),
            seq: 1_000,
            ack: 0,
            flags: Flags::SYN,
            window: 64_000,
            syn: None,
            sack: &[],
        };
        let head = emit::tcp(ether(), self.ip(), tcp, 0);
        let mut bytes = head.bytes().to_vec();
        checksum::complete(&mut bytes, head.checksum, []).unwrap();
        bytes
    }

    /// Returns a frame with an ICMP or ICMPv6 message of this type, with the id and sequence number of an echo message.
    pub(crate) fn icmp(&self, kind: u8, ident: u16, seq: u16) -> Vec<u8> {
        let number = match self.from.is_ipv4() {
            true => protocol::ICMP,
            false => protocol::ICMPV6,
        };
        let ([a, b], [c, d]) = (ident.to_be_bytes(), seq.to_be_bytes());
        let mut message = vec![kind, 0, 0, 0, a, b, c, d];
        message.extend(&self.payload);
        let sum = match self.from.is_ipv4() {
            true => Sum::new(),
            false => Sum::pseudo(self.from.ip(), self.to.ip(), number, message.len()),
        };
        let sum = sum.add(&message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut bytes = emit::ip(ether(), self.ip(), number, message.len())
            .bytes()
            .to_vec();
        bytes.extend(message);
        bytes
    }

    pub(crate) fn udp(&self) -> Vec<u8> {
        let head = emit::udp(
            ether(),
            self.ip(),
            self.from.port(),
            self.to.port(),
            self.payload.len(),
        );
        let mut bytes = head.bytes().to_vec();
        checksum::complete(&mut bytes, head.checksum, [&self.payload[..]]).unwrap();
        bytes.extend(&self.payload);
        bytes
    }
}

pub(crate) fn ether() -> emit::Ether {
    emit::Ether {
        source: GUEST_MAC,
        destination: OUR_MAC,
    }
}

/// Calls `with` with a frame from the guest, in one slice of link memory, and its parsed headers.
pub(crate) fn with_frame<R>(
    bytes: &[u8],
    segmentation: Segmentation,
    with: impl FnOnce(&Frame<'_>, &frame::ParsedFrame) -> R,
) -> R {
    with_frames(&[(bytes.to_vec(), segmentation)], usize::MAX, |frames| {
        let (frame, parsed) = &frames[0];
        with(frame, parsed)
    })
}

/// Calls `with` with frames from the guest, in slices of link memory of `piece` bytes, and their parsed headers.
pub(crate) fn with_frames<R>(
    packets: &[(Vec<u8>, Segmentation)],
    piece: usize,
    with: impl FnOnce(&[(Frame<'_>, frame::ParsedFrame)]) -> R,
) -> R {
    let mut memory: Vec<Vec<u8>> = packets.iter().map(|(bytes, _)| bytes.clone()).collect();
    let parts: Vec<Vec<VolatileSlice<'_>>> = memory
        .iter_mut()
        .map(|bytes| bytes.chunks_mut(piece).map(VolatileSlice::from).collect())
        .collect();
    let frames: Vec<_> = packets
        .iter()
        .zip(&parts)
        .map(|((bytes, segmentation), parts)| {
            let head = &bytes[..bytes.len().min(frame::HEAD)];
            let offload = Offload {
                segmentation: *segmentation,
                ..Offload::NONE
            };
            let parsed = frame::parse(head, bytes.len()).unwrap();
            let frame = Frame {
                offload,
                head,
                parts,
                len: bytes.len(),
            };
            (frame, parsed)
        })
        .collect();
    with(&frames)
}
