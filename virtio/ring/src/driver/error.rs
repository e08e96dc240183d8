//! Protocol errors of a device, which the driver side detects.

/// A protocol error of the device. Sections are those of virtio 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VirtqueueError {
    /// The used index moved backwards, or past the chains that the device had (2.7.8).
    #[error("the used index went from {seen} to {index} with {outstanding} chains in flight")]
    UsedIndex {
        /// The index at the previous poll.
        seen: u16,
        /// The index read.
        index: u16,
        /// Chains in flight.
        outstanding: u16,
    },
    /// The device returned a chain that was not in flight (2.7.8).
    #[error("the device returned chain {id}, which was not in flight")]
    NotOutstanding {
        /// The id in the used ring.
        id: u32,
    },
    /// The device claims to have written more bytes than the chain has writable bytes (2.7.8.2).
    #[error("the device claims {len} bytes written to chain {id}, which has {room}")]
    Length {
        /// Head of the chain.
        id: u32,
        /// Bytes claimed.
        len: u32,
        /// Writable bytes of the chain.
        room: u32,
    },
}
