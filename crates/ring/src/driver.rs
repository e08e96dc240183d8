//! The driver side: offers buffers to a device, takes them back used.
//!
//! A [`Driver`] keeps what it knows of its queue in memory of its own: the device may write the shared part, and what it
//! writes there is checked against that. [`Driver::attach`] finds the shared part, once for each burst.

use crate::cursor::Cursor;
use crate::half::{self, Half};
use crate::index::Index;
use crate::layout::{Features, Layout, LayoutError, Part};
use crate::memory::Memory;

mod add;
mod error;
mod queue;
mod slots;

pub use add::{AddError, Buffer};
pub use error::Error;
pub use queue::{Queue, Used};
pub use slots::Slot;
use slots::Slots;

/// The driver's side of one queue.
///
/// `S` holds one [`Slot`] for each descriptor: an array, a boxed slice, a `&'static mut [Slot]`.
#[derive(Clone, Debug)]
pub struct Driver<S> {
    layout: Layout,
    indirect: bool,
    cursor: Cursor,
    slots: Slots<S>,
    broken: Option<Error>,
}

impl<S: AsRef<[Slot]> + AsMut<[Slot]>> Driver<S> {
    /// Makes a new queue at `layout`, whose indices, flags and events it sets to zero there. Tell the device of it after
    /// this.
    ///
    /// # Errors
    /// The size is none, there are fewer slots than descriptors, or a part of the queue is not in memory, not in one
    /// piece, or not aligned.
    pub fn new(
        memory: impl Memory,
        layout: Layout,
        features: Features,
        slots: S,
    ) -> Result<Self, LayoutError> {
        let size = layout.checked_size()?;
        let slots = Slots::new(size, slots)?;
        for half in [Half::available(&memory, &layout)?, Half::used(&memory, &layout)?] {
            half.set_flags(0);
            half.set_event(Index::default());
            half.set_index(Index::default());
        }
        Ok(Self {
            layout,
            indirect: features.indirect,
            cursor: Cursor::new(features.event_idx, Index::default(), Index::default()),
            slots,
            broken: None,
        })
    }

    /// Finds the queue in `memory`.
    ///
    /// # Errors
    /// A part is not in memory, not in one piece, or not aligned.
    pub fn attach<M: Memory>(&mut self, memory: M) -> Result<Queue<'_, M, S>, LayoutError> {
        let table = half::map(
            &memory,
            Part::Descriptors,
            self.layout.descriptors,
            self.layout.size,
        )?;
        let available = Half::available(&memory, &self.layout)?;
        let used = Half::used(&memory, &self.layout)?;
        Ok(Queue {
            driver: self,
            memory,
            table,
            available,
            used,
        })
    }

    /// Descriptors that are free.
    pub fn free(&self) -> u16 {
        self.slots.free()
    }

    /// Chains added and not taken back.
    pub fn outstanding(&self) -> u16 {
        self.cursor.consumed().until(self.cursor.written())
    }

    /// What the device did wrong, if it did. Nothing more is taken back from such a queue.
    pub fn broken(&self) -> Option<Error> {
        self.broken
    }
}
