//! Offload metadata: what a `virtio_net_hdr` says (virtio 1.2, section 5.1.6).

/// How a frame is to be cut into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// The frame is one packet.
    Whole,
    /// TCP over IPv4, `mss` payload bytes a segment.
    Tcp4 {
        /// Payload bytes of each segment but the last.
        mss: u16,
    },
    /// TCP over IPv6, `mss` payload bytes a segment.
    Tcp6 {
        /// Payload bytes of each segment but the last.
        mss: u16,
    },
    /// UDP (either family), `len` payload bytes a datagram.
    Udp {
        /// Payload bytes of each datagram but the last.
        len: u16,
    },
}

/// Whether the transport checksum is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum field holds the final checksum.
    Complete,
    /// The checksum field holds the pseudo-header's sum; the sum from `start` to the frame's end belongs at
    /// `start + offset`.
    Partial {
        /// Where summing begins, from the frame's first byte.
        start: u16,
        /// Where the result goes, from `start`.
        offset: u16,
    },
}

/// What travels with every frame on every link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// How the frame is to be cut.
    pub segmentation: Segmentation,
}

impl Offload {
    /// A finished packet: nothing left to compute, nothing to cut.
    pub const NONE: Self = Self {
        checksum: Checksum::Complete,
        segmentation: Segmentation::Whole,
    };
}
// VnetHeader (zerocopy, 10 bytes, little endian): parse -> Result<(Offload, &[u8]), Malformed>, emit(offload, header_len) -> [u8; 10]
