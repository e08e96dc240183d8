//! Addresses and sizes of the parts of a virtqueue.

use crate::index::Size;

/// Addresses of a virtqueue's three parts, as the driver passes them to the device (virtio 1.2, section 2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of descriptors: a power of two, at most 32,768.
    pub size: u16,
    /// Address of the descriptor table, a multiple of 16.
    pub descriptors: u64,
    /// Address of the available ring (the driver area), a multiple of 2.
    pub available: u64,
    /// Address of the used ring (the device area), a multiple of 4.
    pub used: u64,
}

impl Layout {
    /// Places the three parts one behind the other from `base` on, which must be a multiple of 16.
    ///
    /// The used ring begins on its own cache line, because the other side writes it.
    pub const fn contiguous(size: u16, base: u64) -> Self {
        let available = base + Part::Descriptors.bytes(size) as u64;
        let used = (available + Part::Available.bytes(size) as u64).next_multiple_of(CACHE_LINE);
        Self {
            size,
            descriptors: base,
            available,
            used,
        }
    }

    /// Returns the number of bytes from `base` to the end of the last part in [`Self::contiguous`].
    pub const fn contiguous_bytes(size: u16) -> usize {
        Self::contiguous(size, 0).used as usize + Part::Used.bytes(size)
    }

    /// Returns the queue size, or an error if it is invalid.
    pub(crate) fn checked_size(&self) -> Result<Size, LayoutError> {
        Size::new(self.size).ok_or(LayoutError::Size(self.size))
    }
}

/// Negotiated virtio features that concern the virtqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// VIRTIO_F_EVENT_IDX: each side requests notifications by the index of an entry.
    pub event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC: a descriptor may refer to a table of descriptors.
    pub indirect: bool,
}

/// Reason why a virtqueue cannot have the given addresses, size or state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The size is not a power of two between 1 and 32,768.
    #[error("invalid queue size {0}: not a power of two between 1 and 32768")]
    Size(u16),
    /// A part of the ring (descriptor table, available or used ring) is not in contiguous mapped memory.
    #[error("the {part}, {len} bytes at {addr:#x}, is not in contiguous memory")]
    Unmapped {
        /// The part of the virtqueue.
        part: Part,
        /// Address of the part.
        addr: u64,
        /// Length of the part in bytes.
        len: usize,
    },
    /// A part does not have the required alignment.
    #[error("the {part} at {addr:#x} is not aligned to {} bytes", part.align())]
    Misaligned {
        /// The part of the virtqueue.
        part: Part,
        /// Address of the part.
        addr: u64,
    },
    /// The indices of a device's state are further apart than the queue has descriptors.
    #[error("available index {available} and used index {used} are further apart than the queue size {size}")]
    State {
        /// Index of the next available entry that the device takes.
        available: u16,
        /// Index of the next used entry that the device writes.
        used: u16,
        /// Number of descriptors of the queue.
        size: u16,
    },
    /// The driver has provided fewer slots than the queue has descriptors.
    #[error("{slots} slots are fewer than the {size} descriptors of the queue")]
    Slots {
        /// Number of slots.
        slots: usize,
        /// Number of descriptors of the queue.
        size: u16,
    },
}

/// One of the three parts of a virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The descriptor table, which the driver writes.
    Descriptors,
    /// The available ring, which the driver writes.
    Available,
    /// The used ring, which the device writes.
    Used,
}

impl Part {
    /// Returns the size in bytes of the part in a queue of `size` descriptors (virtio 1.2, the table in section 2.7).
    pub(crate) const fn bytes(self, size: u16) -> usize {
        let size = size as usize;
        match self {
            Self::Descriptors => 16 * size,
            Self::Available => 6 + 2 * size,
            Self::Used => 6 + 8 * size,
        }
    }

    /// Returns the required alignment of the part in bytes (virtio 1.2, the table in section 2.7).
    pub(crate) const fn align(self) -> usize {
        match self {
            Self::Descriptors => 16,
            Self::Available => 2,
            Self::Used => 4,
        }
    }
}

impl core::fmt::Display for Part {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "descriptor table",
            Self::Available => "available ring",
            Self::Used => "used ring",
        })
    }
}

const CACHE_LINE: u64 = 64;
