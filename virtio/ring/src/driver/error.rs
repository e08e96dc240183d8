//! Errors that the driver side of a virtqueue reports when the device violates the protocol.

/// A violation of the virtqueue protocol by the device. Section numbers are those of virtio 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VirtqueueError {
    /// The used index moved backwards, or past the chains that the device has (virtio 1.2, section 2.7.8).
    #[error("the used index went from {seen} to {index} with {outstanding} chains in flight")]
    UsedIndex {
        /// The ring index at the previous poll.
        seen: u16,
        /// The ring index that was read now.
        index: u16,
        /// Number of chains that the driver has published and not reaped.
        outstanding: u16,
    },
    /// The device returned a chain that was not in flight (virtio 1.2, section 2.7.8).
    #[error("the device returned chain {id}, which was not in flight")]
    NotOutstanding {
        /// Id of the chain in the element of the used ring.
        id: u32,
    },
    /// The device claims to have written more bytes than the chain has writable bytes (virtio 1.2, section 2.7.8.2).
    #[error("the device claims to have written {len} bytes to chain {id}, which has {room}")]
    Length {
        /// Index of the first descriptor of the chain.
        id: u32,
        /// Number of bytes that the device claims to have written.
        len: u32,
        /// Number of writable bytes of the chain.
        room: u32,
    },
}
