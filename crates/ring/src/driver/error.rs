//! What a device can do wrong.

/// A device broke the protocol. Sections are of virtio 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The used index went back, or past what the device was given (2.7.8).
    #[error("the used index went from {seen} to {index} with {outstanding} chains outstanding")]
    UsedIndex {
        /// Where it was.
        seen: u16,
        /// Where it is.
        index: u16,
        /// Chains that the device had.
        outstanding: u16,
    },
    /// A chain was returned that the device did not have: never, or not any more (2.7.8).
    #[error("chain {id} was returned, which was not outstanding")]
    NotOutstanding {
        /// The name it was returned by.
        id: u32,
    },
    /// More bytes are said to be written than the chain has for writing (2.7.8.2).
    #[error("{len} bytes are said to be written to chain {id}, which has room for {room}")]
    Length {
        /// Head of the chain.
        id: u32,
        /// Bytes said to be written.
        len: u32,
        /// Bytes for the device to write.
        room: u32,
    },
}
