//! Errors that the device side of a virtqueue reports when the driver violates the protocol.

/// A violation of the virtqueue protocol by the driver. Section numbers are those of virtio 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VirtqueueError {
    /// The available index moved backwards, or so far that more chains would be in flight than the queue has
    /// descriptors (virtio 1.2, section 2.7.6.1, 2.7.13).
    #[error("the available index went from {seen} to {index} in a queue of {size} descriptors")]
    AvailableIndex {
        /// The ring index at the previous poll.
        seen: u16,
        /// The ring index that was read now.
        index: u16,
        /// Number of descriptors of the queue.
        size: u16,
    },
    /// A descriptor index is outside its table (virtio 1.2, section 2.7.5).
    #[error("chain {head} has descriptor index {index} in a table of {table} descriptors")]
    Index {
        /// Index of the first descriptor of the chain.
        head: u16,
        /// The invalid descriptor index.
        index: u16,
        /// Number of descriptors in the table.
        table: u32,
    },
    /// A chain has more buffers than the queue has descriptors, usually because it is a loop (virtio 1.2, section
    /// 2.7.5.2, 2.7.5.3.1).
    #[error("chain {head} has more buffers than the queue size, or a loop")]
    TooManyBuffers {
        /// Index of the first descriptor of the chain.
        head: u16,
    },
    /// A chain has 2^32 bytes or more (virtio 1.2, section 2.7.5.2).
    #[error("chain {head} has 2^32 bytes or more")]
    TooManyBytes {
        /// Index of the first descriptor of the chain.
        head: u16,
    },
    /// A descriptor has undefined flags (virtio 1.2, section 2.7.5).
    #[error("chain {head} has a descriptor with undefined flags {flags:#x}")]
    Flags {
        /// Index of the first descriptor of the chain.
        head: u16,
        /// Flags of the descriptor (VIRTQ_DESC_F_*).
        flags: u16,
    },
    /// An invalid indirect descriptor: not negotiated, nested, or with the NEXT flag (virtio 1.2, section 2.7.5.3.1).
    #[error("chain {head} has an indirect descriptor that {reason}")]
    Indirect {
        /// Index of the first descriptor of the chain.
        head: u16,
        /// Reason why the descriptor is invalid.
        reason: Indirect,
    },
    /// A readable buffer follows a writable one (virtio 1.2, section 2.7.4.2).
    #[error("chain {head} has a readable buffer after a writable one")]
    Order {
        /// Index of the first descriptor of the chain.
        head: u16,
    },
    /// A buffer has length 0 (virtio 1.2, section 2.7.5: a descriptor "describes a buffer").
    #[error("chain {head} has an empty buffer")]
    Empty {
        /// Index of the first descriptor of the chain.
        head: u16,
    },
    /// A buffer or an indirect table is not in mapped memory.
    #[error("chain {head} refers to {len} unmapped bytes at {addr:#x}")]
    Unmapped {
        /// Index of the first descriptor of the chain.
        head: u16,
        /// The first unmapped guest address in the buffer or table.
        addr: u64,
        /// Number of bytes from that address to the end of the buffer or table.
        len: usize,
    },
    /// A receive buffer is readable by the device (virtio 1.2, section 5.1.6.3 requires receive buffers to be
    /// writable).
    #[error("receive buffer {head} is not writable")]
    NotWritable {
        /// Index of the first descriptor of the chain.
        head: u16,
    },
}

/// Reason why an indirect descriptor is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indirect {
    /// The feature VIRTIO_F_INDIRECT_DESC was not negotiated.
    NotNegotiated,
    /// The indirect descriptor is in an indirect table itself.
    Nested,
    /// The indirect descriptor has the NEXT flag.
    Chained,
    /// The length of the indirect table, in bytes, is 0 or not a multiple of the descriptor size.
    Length(u32),
}

impl core::fmt::Display for Indirect {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotNegotiated => f.write_str("was not negotiated"),
            Self::Nested => f.write_str("is in an indirect table"),
            Self::Chained => f.write_str("has the NEXT flag"),
            Self::Length(len) => write!(f, "refers to a table of {len} bytes"),
        }
    }
}
