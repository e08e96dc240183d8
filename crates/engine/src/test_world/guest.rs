//! Frames as the guest sends them.

use core::net::SocketAddr;

use pontoon_wire::vnet::{Offload, Segmentation};
use pontoon_wire::{checksum, emit, frame};
use vm_memory::VolatileSlice;

use super::addr;
use super::net::{GUEST_MAC, OUR_MAC};
use crate::Frame;

/// A packet as the guest sends it.
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

/// Calls `with` with a frame of the guest's, in one slice of link memory, and what its headers say.
pub(crate) fn with_frame<R>(
    bytes: &[u8],
    segmentation: Segmentation,
    with: impl FnOnce(&Frame<'_>, &frame::Frame) -> R,
) -> R {
    with_frames(&[(bytes.to_vec(), segmentation)], usize::MAX, |frames| {
        let (frame, parsed) = &frames[0];
        with(frame, parsed)
    })
}

/// Calls `with` with frames of the guest's, in link memory cut into slices of `piece` bytes, and what their headers say.
pub(crate) fn with_frames<R>(
    packets: &[(Vec<u8>, Segmentation)],
    piece: usize,
    with: impl FnOnce(&[(Frame<'_>, frame::Frame)]) -> R,
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
