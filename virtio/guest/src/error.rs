//! Errors of the creation and the operations of an interface.

use pontoon_ring::{LayoutError, driver};

use crate::Gone;

/// The reason why an interface cannot be created or used any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The map does not fit the memory, or the memory is not contiguous.
    #[error("{len} bytes at {addr:#x} are not in contiguous memory")]
    Unmapped {
        /// First address of the map.
        addr: u64,
        /// Its length in bytes.
        len: usize,
    },
    /// A ring's address in the map is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device violated the ring protocol.
    #[error("device protocol error: {0}")]
    Device(#[from] driver::VirtqueueError),
    /// The device is gone.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// The reason why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// All transmit buffers are in use: flush, and [`poll`](crate::Interface::poll) until there is room.
    #[error("no free transmit buffer")]
    Full,
    /// The frame is longer than the map allows.
    #[error("frame of {len} bytes exceeds the maximum of {room}")]
    Long {
        /// Its length in bytes.
        len: usize,
        /// Bytes of the longest frame.
        room: usize,
    },
    /// The interface cannot be used any longer.
    #[error(transparent)]
    Broken(#[from] Error),
}
