//! What a driver can do wrong.

/// A driver broke the protocol. Sections are of virtio 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The available index went back, or to where more chains would be with the device than the queue has descriptors
    /// (2.7.6.1, 2.7.13).
    #[error("the available index went from {seen} to {index} in a queue of {size}")]
    AvailableIndex {
        /// Where it was.
        seen: u16,
        /// Where it is.
        index: u16,
        /// The queue's size.
        size: u16,
    },
    /// A chain begins or goes on outside its table (2.7.5).
    #[error("chain {head} goes on at descriptor {index} of {table}")]
    Index {
        /// Head of the chain.
        head: u16,
        /// The descriptor named.
        index: u16,
        /// Descriptors in the table.
        table: u32,
    },
    /// A chain has more buffers than the queue has descriptors: a loop, as a rule (2.7.5.2, 2.7.5.3.1).
    #[error("chain {head} is longer than the queue size or a loop")]
    Endless {
        /// Head of the chain.
        head: u16,
    },
    /// A chain has 2^32 bytes or more (2.7.5.2).
    #[error("chain {head} has 2^32 bytes or more")]
    Long {
        /// Head of the chain.
        head: u16,
    },
    /// A descriptor has flags that are none (2.7.5).
    #[error("chain {head} has a descriptor with flags {flags:#x}")]
    Flags {
        /// Head of the chain.
        head: u16,
        /// Its flags.
        flags: u16,
    },
    /// An indirect descriptor where none may be: not negotiated, in an indirect table, or with a next one (2.7.5.3.1).
    #[error("chain {head} has an indirect descriptor that {reason}")]
    Indirect {
        /// Head of the chain.
        head: u16,
        /// Why it may not be there.
        reason: Indirect,
    },
    /// A buffer to be read comes after one to be written (2.7.4.2).
    #[error("chain {head} has a readable buffer behind a writable one")]
    Order {
        /// Head of the chain.
        head: u16,
    },
    /// A buffer has no bytes (2.7.5: it "describes a buffer").
    #[error("chain {head} has an empty buffer")]
    Empty {
        /// Head of the chain.
        head: u16,
    },
    /// A buffer, or an indirect table, is not in memory.
    #[error("chain {head} names {len} bytes at {addr:#x}, where no memory is")]
    Unmapped {
        /// Head of the chain.
        head: u16,
        /// The first address without memory behind it.
        addr: u64,
        /// Bytes left from there on.
        len: usize,
    },
    /// A receive buffer that the device shall read (5.1.6.3: receive buffers are for the device to write).
    #[error("receive buffer {head} is not for writing")]
    NotWritable {
        /// Head of the chain.
        head: u16,
    },
}

/// Why an indirect descriptor is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indirect {
    /// VIRTIO_F_INDIRECT_DESC was not negotiated.
    NotNegotiated,
    /// It is in an indirect table.
    Nested,
    /// A next descriptor is said to follow.
    Chained,
    /// Its table is no positive number of descriptors long.
    Length(u32),
}

impl core::fmt::Display for Indirect {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotNegotiated => f.write_str("was not negotiated"),
            Self::Nested => f.write_str("is in an indirect table"),
            Self::Chained => f.write_str("has a next one"),
            Self::Length(len) => write!(f, "names a table of {len} bytes"),
        }
    }
}
