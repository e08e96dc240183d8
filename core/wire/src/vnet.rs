//! Offload metadata: `virtio_net_hdr` (virtio 1.2, section 5.1.6).

use zerocopy::FromBytes;

use crate::layout::{Vnet, Vnet1};

#[cfg(test)]
mod tests;

/// Segmentation of a frame into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// The frame is one packet.
    Whole,
    /// TCP over IPv4, with `mss` payload bytes per segment.
    Tcp4 {
        /// Payload bytes of each segment but the last.
        mss: u16,
    },
    /// TCP over IPv6, with `mss` payload bytes per segment.
    Tcp6 {
        /// Payload bytes of each segment but the last.
        mss: u16,
    },
    /// UDP over either family, with `len` payload bytes per datagram.
    Udp {
        /// Payload bytes of each datagram but the last.
        len: u16,
    },
}

/// State of the transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum field holds the final checksum.
    Complete,
    /// The checksum field holds the pseudo-header's sum. The checksum of the bytes from `start` to the frame's end
    /// belongs at `start + offset`.
    Partial {
        /// Offset of the first byte of the sum, from the frame's first byte.
        start: u16,
        /// Offset of the checksum field, from `start`.
        offset: u16,
    },
}

/// The offload metadata of a frame on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Segmentation of the frame.
    pub segmentation: Segmentation,
}

impl Offload {
    /// A complete packet: no checksum to compute, no segmentation.
    pub const NONE: Self = Self {
        checksum: Checksum::Complete,
        segmentation: Segmentation::Whole,
    };
}

/// Bytes of the header on a link: the virtio 1 header, with `num_buffers`.
pub const LEN: usize = 12;

/// Bytes of the header without `num_buffers`: that of a packet socket (`PACKET_VNET_HDR`), and of a device with neither
/// virtio 1 nor mergeable buffers (virtio 1.2 section 5.1.6.1).
pub const SHORT_LEN: usize = 10;

/// The reason why a header is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VnetHeaderError {
    /// The header is truncated.
    #[error("{0} bytes are too few for the header")]
    NoHeader(usize),
    /// An unsupported segmentation type: UDP fragmentation, or the ECN bit.
    #[error("unknown segmentation type {0:#04x}")]
    UnknownGso(u8),
    /// A segment size of 0.
    #[error("segmentation type {0:#04x} with size 0")]
    ZeroSegment(u8),
}

/// Parses the header at the beginning of `bytes`, and returns it with the frame after it.
///
/// # Errors
/// The header is truncated or has an unsupported segmentation type.
pub fn parse(bytes: &[u8]) -> Result<(Offload, &[u8]), VnetHeaderError> {
    let frame = bytes.get(LEN..).ok_or(VnetHeaderError::NoHeader(bytes.len()))?;
    Ok((offload(bytes)?, frame))
}

/// Parses a header of either length.
///
/// `hdr_len` is a hint and is ignored, since the frame's own headers are parsed. The position of the checksum field is
/// checked when the checksum is completed ([`crate::checksum::complete`]).
///
/// # Errors
/// Those of [`parse`].
pub fn offload(header: &[u8]) -> Result<Offload, VnetHeaderError> {
    let (header, _) = Vnet::ref_from_prefix(header).map_err(|_| VnetHeaderError::NoHeader(header.len()))?;
    let size = header.gso_size.get();
    let segmentation = match header.gso_type {
        GSO_NONE => Segmentation::Whole,
        GSO_TCPV4 if size > 0 => Segmentation::Tcp4 { mss: size },
        GSO_TCPV6 if size > 0 => Segmentation::Tcp6 { mss: size },
        GSO_UDP_L4 if size > 0 => Segmentation::Udp { len: size },
        kind @ (GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4) => return Err(VnetHeaderError::ZeroSegment(kind)),
        kind => return Err(VnetHeaderError::UnknownGso(kind)),
    };
    let checksum = if header.flags & NEEDS_CSUM == 0 {
        Checksum::Complete
    } else {
        Checksum::Partial {
            start: header.csum_start.get(),
            offset: header.csum_offset.get(),
        }
    };
    Ok(Offload {
        checksum,
        segmentation,
    })
}

/// Returns the number of buffers that a device with VIRTIO_NET_F_MRG_RXBUF used for the frame after `header` (virtio
/// 1.2 section 5.1.6.4); `None` if the header is truncated.
#[must_use]
pub fn buffers(header: &[u8]) -> Option<u16> {
    let (header, _) = Vnet1::ref_from_prefix(header).ok()?;
    Some(header.num_buffers.get())
}

/// Encodes the header of a frame whose own headers, Ethernet to TCP or UDP, have `header_len` bytes.
///
/// A segmented frame must have a partial checksum, since each segment has its own (virtio 1.2 section 5.1.6.2).
#[must_use]
pub fn emit(offload: Offload, header_len: usize) -> [u8; LEN] {
    debug_assert!(
        offload.segmentation == Segmentation::Whole || offload.checksum != Checksum::Complete,
        "a segmented frame with a complete checksum"
    );
    let (gso_type, gso_size) = match offload.segmentation {
        Segmentation::Whole => (GSO_NONE, 0),
        Segmentation::Tcp4 { mss } => (GSO_TCPV4, mss),
        Segmentation::Tcp6 { mss } => (GSO_TCPV6, mss),
        Segmentation::Udp { len } => (GSO_UDP_L4, len),
    };
    let hdr_len = match offload.segmentation {
        Segmentation::Whole => 0,
        Segmentation::Tcp4 { .. } | Segmentation::Tcp6 { .. } | Segmentation::Udp { .. } => {
            u16::try_from(header_len).unwrap_or(u16::MAX)
        }
    };
    let (flags, csum_start, csum_offset) = match offload.checksum {
        Checksum::Complete => (0, 0, 0),
        Checksum::Partial { start, offset } => (NEEDS_CSUM, start, offset),
    };
    let vnet = Vnet {
        flags,
        gso_type,
        hdr_len: hdr_len.into(),
        gso_size: gso_size.into(),
        csum_start: csum_start.into(),
        csum_offset: csum_offset.into(),
    };
    zerocopy::transmute!(Vnet1 {
        vnet,
        // Not used in frames to a device.
        num_buffers: 0.into(),
    })
}

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_NONE`.
const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
const GSO_UDP_L4: u8 = 5;
