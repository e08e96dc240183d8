//! The device side: takes chains of buffers, returns them used.
//!
//! A [`Device`] is plain data: where the queue lies and how far it has got. [`Device::attach`] finds the queue's parts in
//! memory, once for each burst, so that memory may be remapped between bursts; what it gives is what works.

use crate::cursor::Cursor;
use crate::half::{self, Half};
use crate::index::{Index, Size};
use crate::layout::{Features, Layout, LayoutError, Part};
use crate::memory::{Area, Memory};

mod chain;
mod error;
mod frame;
mod queue;

pub use chain::{Chain, Piece};
pub use error::{Error, Indirect};
pub use frame::spread;
pub use queue::Queue;

/// The device's side of one queue.
#[derive(Clone, Debug)]
pub struct Device {
    layout: Layout,
    size: Size,
    indirect: bool,
    cursor: Cursor,
    broken: Option<Error>,
}

/// Where a device has got to: what outlives it.
///
/// vhost-user hands `available` over by VHOST_USER_GET_VRING_BASE and SET_VRING_BASE; `used` is in the ring itself
/// ([`used_index`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Available entries taken.
    pub available: u16,
    /// Used entries published.
    pub used: u16,
}

impl Device {
    /// Serves the queue at `layout`, from `state` on: the default one for a new queue.
    ///
    /// Chains between `state.used` and `state.available` were taken and not returned: a device that has kept a list of
    /// them, as vhost-user's inflight protocol does, reads them again by [`Queue::chain`].
    ///
    /// # Errors
    /// The size is none, or more chains than that would be with the device.
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

    /// Finds the queue in `memory`.
    ///
    /// # Errors
    /// A part is not in memory, not in one piece, or not aligned.
    pub fn attach<M: Memory>(&mut self, memory: M) -> Result<Queue<'_, M>, LayoutError> {
        let table = half::map(
            &memory,
            Part::Descriptors,
            self.layout.descriptors,
            self.layout.size,
        )?;
        let available = Half::available(&memory, &self.layout)?;
        let used = Half::used(&memory, &self.layout)?;
        Ok(Queue {
            device: self,
            memory,
            table,
            available,
            used,
        })
    }

    /// Where the device has got to. Publish first: what was returned and not published is not in it.
    pub fn state(&self) -> State {
        State {
            available: self.cursor.consumed().get(),
            used: self.cursor.published().get(),
        }
    }

    /// Chains that were taken and not returned.
    pub fn taken(&self) -> u16 {
        self.cursor.written().until(self.cursor.consumed())
    }

    /// What the driver did wrong, if it did. Nothing more is taken from such a queue until it is set up anew.
    pub fn broken(&self) -> Option<Error> {
        self.broken
    }
}

/// The used index in the ring at `layout`: where a device before us had got to.
///
/// # Errors
/// The used ring is not in memory, not in one piece, or not aligned.
pub fn used_index<A: Area>(memory: &impl Memory<Area = A>, layout: &Layout) -> Result<u16, LayoutError> {
    Ok(Half::used(memory, layout)?.index().get())
}
