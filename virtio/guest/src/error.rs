//! Errors of the creation and of the operations of an interface.

use pontoon_ring::{LayoutError, driver};

use crate::DeviceGone;

/// Reason why an interface cannot be created or used any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The map of rings and buffers exceeds the memory, or the memory is not contiguous.
    #[error("{len} bytes at {addr:#x} are not in contiguous memory")]
    Unmapped {
        /// First address of the map of rings and buffers.
        addr: u64,
        /// Length of the map of rings and buffers in bytes.
        len: usize,
    },
    /// The address of a ring in the map is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device has violated the virtqueue protocol.
    #[error("the device has violated the virtqueue protocol: {0}")]
    Device(#[from] driver::VirtqueueError),
    /// The device has disconnected or ended.
    #[error(transparent)]
    Gone(#[from] DeviceGone),
}

/// Reason why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// All transmit buffers are in use. The caller must flush, and [`poll`](crate::Interface::poll) until there is
    /// room.
    #[error("no free transmit buffer")]
    Full,
    /// The frame is longer than the map allows.
    #[error("the frame of {len} bytes exceeds the maximum of {room} bytes")]
    Long {
        /// Length in bytes of the frame that was not queued.
        len: usize,
        /// Length of the longest frame in bytes.
        room: usize,
    },
    /// The interface cannot be used any longer.
    #[error(transparent)]
    Broken(#[from] Error),
}
