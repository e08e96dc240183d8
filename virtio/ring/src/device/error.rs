//! Protocol errors of a driver, which the device side detects.

/// A protocol error of the driver. Sections are those of virtio 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VirtqueueError {
    /// The available index moved backwards, or so far that more chains would be in flight than the queue has
    /// descriptors (2.7.6.1, 2.7.13).
    #[error("the available index went from {seen} to {index} in a queue of {size}")]
    AvailableIndex {
        /// The index at the previous poll.
        seen: u16,
        /// The index read.
        index: u16,
        /// The queue's size.
        size: u16,
    },
    /// A descriptor index is outside its table (2.7.5).
    #[error("chain {head} has descriptor index {index} in a table of {table}")]
    Index {
        /// Head of the chain.
        head: u16,
        /// The index.
        index: u16,
        /// Descriptors in the table.
        table: u32,
    },
    /// A chain has more buffers than the queue has descriptors, usually because it is a loop (2.7.5.2, 2.7.5.3.1).
    #[error("chain {head} has more buffers than the queue size, or a loop")]
    TooManyBuffers {
        /// Head of the chain.
        head: u16,
    },
    /// A chain has 2^32 bytes or more (2.7.5.2).
    #[error("chain {head} has 2^32 bytes or more")]
    TooManyBytes {
        /// Head of the chain.
        head: u16,
    },
    /// A descriptor has undefined flags (2.7.5).
    #[error("chain {head} has a descriptor with flags {flags:#x}")]
    Flags {
        /// Head of the chain.
        head: u16,
        /// The flags.
        flags: u16,
    },
    /// An invalid indirect descriptor: not negotiated, nested, or with the NEXT flag (2.7.5.3.1).
    #[error("chain {head} has an indirect descriptor that {reason}")]
    Indirect {
        /// Head of the chain.
        head: u16,
        /// The reason.
        reason: Indirect,
    },
    /// A readable buffer follows a writable one (2.7.4.2).
    #[error("chain {head} has a readable buffer after a writable one")]
    Order {
        /// Head of the chain.
        head: u16,
    },
    /// A buffer has length 0 (2.7.5: a descriptor "describes a buffer").
    #[error("chain {head} has an empty buffer")]
    Empty {
        /// Head of the chain.
        head: u16,
    },
    /// A buffer or an indirect table is not in mapped memory.
    #[error("chain {head} refers to {len} unmapped bytes at {addr:#x}")]
    Unmapped {
        /// Head of the chain.
        head: u16,
        /// The first unmapped address.
        addr: u64,
        /// Remaining bytes from that address on.
        len: usize,
    },
    /// A receive buffer is readable by the device (5.1.6.3 requires receive buffers to be writable).
    #[error("receive buffer {head} is not writable")]
    NotWritable {
        /// Head of the chain.
        head: u16,
    },
}

/// The reason why an indirect descriptor is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indirect {
    /// VIRTIO_F_INDIRECT_DESC was not negotiated.
    NotNegotiated,
    /// It is in an indirect table itself.
    Nested,
    /// It has the NEXT flag.
    Chained,
    /// The length of its table is 0 or not a multiple of the descriptor size.
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
