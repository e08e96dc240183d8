//! The driver side of a virtqueue: it makes buffers available to a device and reaps used buffers.
//!
//! A [`Driver`] keeps its state in private memory, with which it validates what the device writes to shared memory.
//! [`Driver::attach`] looks up the queue in shared memory, once per burst.

use crate::cursor::Cursor;
use crate::index::Index;
use crate::layout::{Features, Layout, LayoutError};
use crate::memory::Memory;
use crate::rings::{QueueParts, RingPart};

mod add;
mod error;
mod queue;
mod slots;

pub use add::{AddError, Buffer};
pub use error::VirtqueueError;
pub use queue::{DriverQueue, Used};
pub use slots::Slot;
use slots::Slots;

/// The driver side of one virtqueue, with its state in private memory.
///
/// `S` holds one [`Slot`] per descriptor: an array, a boxed slice, or a `&'static mut [Slot]`.
#[derive(Clone, Debug)]
pub struct Driver<S> {
    layout: Layout,
    indirect: bool,
    cursor: Cursor,
    slots: Slots<S>,
    broken: Option<VirtqueueError>,
}

impl<S: AsRef<[Slot]> + AsMut<[Slot]>> Driver<S> {
    /// Creates a virtqueue at `layout` and sets its indices, flags and event indices to zero. The addresses must be
    /// passed to the device after this call.
    ///
    /// # Errors
    /// The queue size is invalid, there are fewer slots than descriptors, or a part of the queue is unmapped, not
    /// contiguous, or misaligned.
    pub fn new(
        memory: impl Memory,
        layout: Layout,
        features: Features,
        slots: S,
    ) -> Result<Self, LayoutError> {
        let size = layout.checked_size()?;
        let slots = Slots::new(size, slots)?;
        for ring in [
            RingPart::available(&memory, &layout)?,
            RingPart::used(&memory, &layout)?,
        ] {
            ring.set_flags(0);
            ring.set_event(Index::default());
            ring.set_index(Index::default());
        }
        Ok(Self {
            layout,
            indirect: features.indirect,
            cursor: Cursor::new(features.event_idx, Index::default(), Index::default()),
            slots,
            broken: None,
        })
    }

    /// Looks up the parts of the virtqueue in `memory`.
    ///
    /// # Errors
    /// A part of the queue is unmapped, not contiguous, or misaligned.
    pub fn attach<M: Memory>(&mut self, memory: M) -> Result<DriverQueue<'_, M, S>, LayoutError> {
        let QueueParts {
            table,
            available,
            used,
        } = QueueParts::look_up(&memory, &self.layout)?;
        Ok(DriverQueue {
            driver: self,
            memory,
            table,
            available,
            used,
        })
    }

    /// Returns the number of descriptors that are in no chain.
    pub fn free(&self) -> u16 {
        self.slots.free()
    }

    /// Returns the number of chains that the driver has added and not reaped.
    pub fn outstanding(&self) -> u16 {
        self.cursor.consumed().until(self.cursor.written())
    }

    /// Returns the protocol error that the device has made, if any. No more chains are reaped from such a queue.
    pub fn broken(&self) -> Option<VirtqueueError> {
        self.broken
    }
}
