//! Offload metadata of frames: parses and encodes `virtio_net_hdr` (virtio 1.2, section 5.1.6).

use zerocopy::FromBytes;

use crate::layout::{VnetHeader, VnetHeader1};

#[cfg(test)]
mod tests;

/// Segmentation of a super-frame into packets (TSO, USO), which the device or the guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// The frame is one packet, and is not segmented.
    Whole,
    /// TCP over IPv4, segmented into segments with `mss` bytes of payload.
    Tcp4 {
        /// Payload bytes of each segment except the last.
        mss: u16,
    },
    /// TCP over IPv6, segmented into segments with `mss` bytes of payload.
    Tcp6 {
        /// Payload bytes of each segment except the last.
        mss: u16,
    },
    /// UDP over IPv4 or IPv6, segmented into datagrams with `len` bytes of payload.
    Udp {
        /// Payload bytes of each datagram except the last.
        len: u16,
    },
}

/// State of the TCP or UDP checksum of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum field contains the final checksum.
    Complete,
    /// The checksum field contains the sum of the pseudo-header. The final checksum, over the bytes from `start` to the
    /// frame's end, belongs into the field at `start + offset`.
    Partial {
        /// Offset of the first byte that the checksum covers, from the frame's first byte.
        start: u16,
        /// Offset of the checksum field, from `start`.
        offset: u16,
    },
}

/// The offload metadata of a frame on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// State of the TCP or UDP checksum.
    pub checksum: Checksum,
    /// Segmentation of the frame into packets.
    pub segmentation: Segmentation,
}

impl Offload {
    /// Metadata of a complete packet: no checksum to compute, no segmentation.
    pub const NONE: Self = Self {
        checksum: Checksum::Complete,
        segmentation: Segmentation::Whole,
    };
}

/// Length in bytes of a `virtio_net_hdr` with `num_buffers`, as virtio 1 and all links of the engine use it.
pub const LEN: usize = 12;

/// Length in bytes of a `virtio_net_hdr` without `num_buffers`, as a packet socket uses it (`PACKET_VNET_HDR`), and a
/// device with neither virtio 1 nor mergeable buffers (virtio 1.2 section 5.1.6.1).
pub const SHORT_LEN: usize = 10;

/// The reason why a `virtio_net_hdr` is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VnetHeaderError {
    /// The header is truncated: there are fewer bytes than a `virtio_net_hdr` has.
    #[error("{0} bytes are too few for a virtio_net_hdr")]
    NoHeader(usize),
    /// The segmentation type is not supported: UDP fragmentation, or the ECN bit.
    #[error("unknown segmentation type {0:#04x}")]
    UnknownGso(u8),
    /// The segment size of a super-frame is 0.
    #[error("segmentation type {0:#04x} with size 0")]
    ZeroSegment(u8),
}

/// Parses the `virtio_net_hdr` at the beginning of `bytes`, and returns it with the frame that follows it.
///
/// # Errors
/// The header is truncated or has an unsupported segmentation type.
pub fn parse(bytes: &[u8]) -> Result<(Offload, &[u8]), VnetHeaderError> {
    let frame = bytes.get(LEN..).ok_or(VnetHeaderError::NoHeader(bytes.len()))?;
    Ok((offload(bytes)?, frame))
}

/// Parses a `virtio_net_hdr`, with or without `num_buffers`.
///
/// `hdr_len` is a hint and is ignored, since the frame's own headers are parsed. The position of the checksum field is
/// checked when the checksum is completed ([`crate::checksum::complete`]).
///
/// # Errors
/// The header is truncated or has an unsupported segmentation type.
pub fn offload(header: &[u8]) -> Result<Offload, VnetHeaderError> {
    let (header, _) =
        VnetHeader::ref_from_prefix(header).map_err(|_| VnetHeaderError::NoHeader(header.len()))?;
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

/// Returns `num_buffers` of a `virtio_net_hdr`: the number of buffers that a device with VIRTIO_NET_F_MRG_RXBUF used
/// for the frame (virtio 1.2 section 5.1.6.4); `None` if the header is truncated.
#[must_use]
pub fn buffers(header: &[u8]) -> Option<u16> {
    let (header, _) = VnetHeader1::ref_from_prefix(header).ok()?;
    Some(header.num_buffers.get())
}

/// Encodes the `virtio_net_hdr` of a frame whose own headers, Ethernet to TCP or UDP, have `header_len` bytes.
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
    let vnet = VnetHeader {
        flags,
        gso_type,
        hdr_len: hdr_len.into(),
        gso_size: gso_size.into(),
        csum_start: csum_start.into(),
        csum_offset: csum_offset.into(),
    };
    zerocopy::transmute!(VnetHeader1 {
        vnet,
        // The driver sets `num_buffers` to 0 in frames to a device.
        num_buffers: 0.into(),
    })
}

/// Flag `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum is partial.
const NEEDS_CSUM: u8 = 1;
/// Segmentation type `VIRTIO_NET_HDR_GSO_NONE`: the frame is one packet.
const GSO_NONE: u8 = 0;
/// Segmentation type `VIRTIO_NET_HDR_GSO_TCPV4`: TCP over IPv4.
const GSO_TCPV4: u8 = 1;
/// Segmentation type `VIRTIO_NET_HDR_GSO_TCPV6`: TCP over IPv6.
const GSO_TCPV6: u8 = 4;
/// Segmentation type `VIRTIO_NET_HDR_GSO_UDP_L4`: UDP datagrams.
const GSO_UDP_L4: u8 = 5;
