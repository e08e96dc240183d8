//! The operations of a driver on its queue.

use super::{Driver, Slot, VirtqueueError};
use crate::cursor::Notification;
use crate::memory::Memory;
use crate::rings::RingPart;

/// A driver's queue, with its parts looked up in memory.
///
/// One burst is [`add`](Self::add) for each chain and one [`publish`](Self::publish). In the other direction it is
/// [`poll`](Self::poll), then [`reap`](Self::reap) for each chain that came back.
///
/// If the device violates the protocol, the call that detects it returns the error, and so does every later call that
/// would take chains back.
#[derive(Debug)]
pub struct DriverQueue<'d, M: Memory, S> {
    pub(super) driver: &'d mut Driver<S>,
    pub(super) memory: M,
    pub(super) table: M::Area,
    pub(super) available: RingPart<M::Area>,
    pub(super) used: RingPart<M::Area>,
}

/// A chain that the device returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The tag that it was added with.
    pub tag: u32,
    /// Bytes written by the device, from the first writable byte on; at most the writable bytes of the chain.
    pub len: u32,
}

impl<M: Memory, S: AsRef<[Slot]> + AsMut<[Slot]>> DriverQueue<'_, M, S> {
    /// Publishes the added chains.
    pub fn publish(&mut self) -> Notification {
        self.driver.cursor.publish(&self.available, &self.used)
    }

    /// Reads the used index and returns the number of chains ready to be taken back.
    ///
    /// # Errors
    /// The used index is invalid.
    pub fn poll(&mut self) -> Result<u16, VirtqueueError> {
        self.sound()?;
        let cursor = &mut self.driver.cursor;
        let seen = cursor.seen().get();
        // The device can return only chains that were published.
        let base = cursor.consumed();
        let outstanding = base.until(cursor.published());
        cursor.poll(&self.used, base, outstanding).map_err(|index| {
            self.break_by(VirtqueueError::UsedIndex {
                seen,
                index: index.0,
                outstanding,
            })
        })
    }

    /// Takes back the next of the chains seen by the last [`poll`](Self::poll). The device returns chains in any order.
    ///
    /// # Errors
    /// The chain was not in flight, or has less room than the device claims to have written.
    pub fn reap(&mut self) -> Result<Option<Used>, VirtqueueError> {
        self.sound()?;
        let Some(entry) = self.driver.cursor.next_entry() else {
            return Ok(None);
        };
        let (id, len) = self.used.element(entry);
        let Some(chain) = self.driver.slots.outstanding(id) else {
            return Err(self.break_by(VirtqueueError::NotOutstanding { id }));
        };
        if len > chain.writable {
            return Err(self.break_by(VirtqueueError::Length {
                id,
                len,
                room: chain.writable,
            }));
        }
        // A slot exists for `id`, so it fits a u16.
        self.driver.slots.release(id as u16);
        self.driver.cursor.consume();
        Ok(Some(Used { tag: chain.tag, len }))
    }

    /// Requests a notification for the next returned chain after those seen by the last [`poll`](Self::poll), then
    /// polls again. The caller may sleep only if the result is 0.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    pub fn rearm(&mut self) -> Result<u16, VirtqueueError> {
        self.driver.cursor.rearm(&self.available);
        self.poll()
    }

    /// Requests that the device send no notifications. This is a hint: notifications may still arrive.
    pub fn suppress(&mut self) {
        self.driver.cursor.suppress(&self.available);
    }

    /// Returns the number of free descriptors.
    pub fn free(&self) -> u16 {
        self.driver.free()
    }

    /// Returns the number of chains added and not taken back.
    pub fn outstanding(&self) -> u16 {
        self.driver.outstanding()
    }

    fn sound(&self) -> Result<(), VirtqueueError> {
        self.driver.broken.map_or(Ok(()), Err)
    }

    fn break_by(&mut self, error: VirtqueueError) -> VirtqueueError {
        *self.driver.broken.insert(error)
    }
}
