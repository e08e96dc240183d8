//! The device side of a virtqueue: it takes descriptor chains from the driver and returns them as used.
//!
//! A [`Device`] is plain data: the addresses of the queue and the positions in its rings. [`Device::attach`] looks up
//! the queue in memory, once per burst, so that memory may be remapped between bursts, and returns a [`DeviceQueue`],
//! which has the operations.

use crate::cursor::Cursor;
use crate::index::{Index, Size};
use crate::layout::{Features, Layout, LayoutError};
use crate::memory::{Area, Memory};
use crate::rings::{QueueParts, RingPart};

mod chain;
mod error;
mod frame;
mod queue;

pub use chain::{Chain, Piece};
pub use error::{Indirect, VirtqueueError};
pub use frame::chains_needed;
pub use queue::DeviceQueue;

/// The device side of one virtqueue: addresses, and positions in the rings.
#[derive(Clone, Debug)]
pub struct Device {
    layout: Layout,
    size: Size,
    indirect: bool,
    cursor: Cursor,
    broken: Option<VirtqueueError>,
}

/// Positions of a device in the rings, with which another device can continue after it.
///
/// vhost-user transfers `available` by VHOST_USER_GET_VRING_BASE and VHOST_USER_SET_VRING_BASE; `used` is in the used
/// ring ([`used_index`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Index behind the last available entry that the device has consumed.
    pub available: u16,
    /// Index behind the last used entry that the device has published.
    pub used: u16,
}

impl Device {
    /// Creates the device side of the queue at `layout`, starting from `state`: the default state for a new queue.
    ///
    /// Chains between `state.used` and `state.available` were taken and not returned. A device that keeps a list of
    /// them, as vhost-user's inflight protocol does, reads them again with [`DeviceQueue::chain`].
    ///
    /// # Errors
    /// The queue size is invalid, or `state` means more chains in flight than the queue has descriptors.
    pub fn new(layout: Layout, features: Features, state: State) -> Result<Self, LayoutError> {
        let size = layout.checked_size()?;
        let State { available, used } = state;
        let (taken, returned) = (Index::new(available), Index::new(used));
        if returned.until(taken) > size.get() {
            return Err(LayoutError::State {
                available,
                used,
                size: size.get(),
            });
        }
        Ok(Self {
            layout,
            size,
            indirect: features.indirect,
            cursor: Cursor::new(features.event_idx, returned, taken),
            broken: None,
        })
    }

    /// Looks up the parts of the virtqueue in `memory`.
    ///
    /// # Errors
    /// A part of the queue is unmapped, not contiguous, or misaligned.
    pub fn attach<M: Memory>(&mut self, memory: M) -> Result<DeviceQueue<'_, M>, LayoutError> {
        let QueueParts {
            table,
            available,
            used,
        } = QueueParts::look_up(&memory, &self.layout)?;
        Ok(DeviceQueue {
            device: self,
            memory,
            table,
            available,
            used,
        })
    }

    /// Returns the positions with which another device can continue. [`DeviceQueue::publish`] must be called before,
    /// because chains that were returned but not published are not included.
    pub fn state(&self) -> State {
        State {
            available: self.cursor.consumed().get(),
            used: self.cursor.published().get(),
        }
    }

    /// Returns the number of chains that the device has taken and not returned.
    pub fn taken(&self) -> u16 {
        self.cursor.written().until(self.cursor.consumed())
    }

    /// Returns the protocol error that the driver has made, if any. No more chains are taken from such a queue.
    pub fn broken(&self) -> Option<VirtqueueError> {
        self.broken
    }
}

/// Returns the used index in the ring at `layout`, at which a previous device has stopped.
///
/// # Errors
/// The used ring is unmapped, not contiguous, or misaligned.
pub fn used_index<A: Area>(memory: &impl Memory<Area = A>, layout: &Layout) -> Result<u16, LayoutError> {
    Ok(RingPart::used(memory, layout)?.index().get())
}
