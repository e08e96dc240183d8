//! What can go wrong.

use pontoon_ring::{LayoutError, driver};

use crate::Gone;

/// An interface cannot be made, or be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The map does not fit into the memory, in one piece.
    #[error("{len} bytes at {addr:#x} are not in one piece of memory")]
    Unmapped {
        /// Where the map begins.
        addr: u64,
        /// Its length in bytes.
        len: usize,
    },
    /// A ring cannot be where the map has it.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device broke the ring's protocol.
    #[error("the device: {0}")]
    Device(#[from] driver::Error),
    /// The device is gone.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// A frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// All places are taken: flush, and [`poll`](crate::Interface::poll) until there is room.
    #[error("no room for a frame now")]
    Full,
    /// It is longer than the interface's frames can be.
    #[error("{len} bytes are more than the {room} of a frame")]
    Long {
        /// Its length in bytes.
        len: usize,
        /// Bytes of the longest frame.
        room: usize,
    },
    /// Nor will any other be.
    #[error(transparent)]
    Broken(#[from] Error),
}
