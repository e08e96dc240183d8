//! Addresses and sizes of a queue's parts.

use crate::index::Size;

/// The addresses of a queue's three parts, as the driver passes them to the device (2.7).
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
    /// Places the three parts one after another from `base` on, which must be a multiple of 16.
    ///
    /// The used ring begins on a cache line of its own, because the other side writes it.
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

    /// Returns the bytes from the base of [`Self::contiguous`] to the end of the last part.
    pub const fn contiguous_bytes(size: u16) -> usize {
        Self::contiguous(size, 0).used as usize + Part::Used.bytes(size)
    }

    /// Returns the size if it is valid.
    pub(crate) fn checked_size(&self) -> Result<Size, LayoutError> {
        Size::new(self.size).ok_or(LayoutError::Size(self.size))
    }
}

/// The negotiated features that concern the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// VIRTIO_F_EVENT_IDX: each side names the entry for which it requests a notification.
    pub event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC: a descriptor may refer to a table of descriptors.
    pub indirect: bool,
}

/// The reason why a queue cannot be at the given addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The size is not a power of two between 1 and 32,768.
    #[error("invalid queue size {0}: not a power of two between 1 and 32768")]
    Size(u16),
    /// A part is not in contiguous mapped memory.
    #[error("the {part}, {len} bytes at {addr:#x}, is not in contiguous memory")]
    Unmapped {
        /// The part.
        part: Part,
        /// Its address.
        addr: u64,
        /// Its length in bytes.
        len: usize,
    },
    /// A part is misaligned.
    #[error("the {part} at {addr:#x} is not aligned to {} bytes", part.align())]
    Misaligned {
        /// The part.
        part: Part,
        /// Its address.
        addr: u64,
    },
    /// More chains would be in flight than the queue has descriptors.
    #[error("available index {available} and used index {used} are further apart than the queue size {size}")]
    State {
        /// The device's next available entry.
        available: u16,
        /// The device's next used entry.
        used: u16,
        /// The queue's size.
        size: u16,
    },
    /// There are fewer slots than descriptors.
    #[error("{slots} slots are fewer than the {size} descriptors of the queue")]
    Slots {
        /// Slots given.
        slots: usize,
        /// The queue's size.
        size: u16,
    },
}

/// A part of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The descriptor table, read by the device.
    Descriptors,
    /// The available ring, written by the driver.
    Available,
    /// The used ring, written by the device.
    Used,
}

impl Part {
    /// Returns the size in bytes of this part of a queue of `size` (the table in 2.7).
    pub(crate) const fn bytes(self, size: u16) -> usize {
        let size = size as usize;
        match self {
            Self::Descriptors => 16 * size,
            Self::Available => 6 + 2 * size,
            Self::Used => 6 + 8 * size,
        }
    }

    /// Returns the required alignment (the table in 2.7).
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
