//! Operations of the driver side on a virtqueue.

use super::{Driver, Slot, VirtqueueError};
use crate::cursor::Notification;
use crate::memory::Memory;
use crate::rings::RingPart;

/// The driver side of a virtqueue whose parts were looked up in memory, for one burst.
///
/// To send a burst, a driver calls [`add`](Self::add) for each chain and then [`publish`](Self::publish). To receive
/// used chains, it calls [`poll`](Self::poll) and then [`reap`](Self::reap) for each chain.
///
/// If the device violates the protocol, the call that detects it returns the error, and so does every later call that
/// would reap chains.
#[derive(Debug)]
pub struct DriverQueue<'d, M: Memory, S> {
    pub(super) driver: &'d mut Driver<S>,
    pub(super) memory: M,
    pub(super) table: M::Area,
    pub(super) available: RingPart<M::Area>,
    pub(super) used: RingPart<M::Area>,
}

/// A chain that the device has returned as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Tag that the driver has passed to `add` with the chain.
    pub tag: u32,
    /// Number of bytes that the device has written, from the first writable byte on; at most the writable bytes of the
    /// chain.
    pub len: u32,
}

impl<M: Memory, S: AsRef<[Slot]> + AsMut<[Slot]>> DriverQueue<'_, M, S> {
    /// Publishes the added chains.
    pub fn publish(&mut self) -> Notification {
        self.driver.cursor.publish(&self.available, &self.used)
    }

    /// Reads the used index and returns the number of chains that can be reaped.
    ///
    /// # Errors
    /// The used index violates the protocol.
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

    /// Reaps the next chain that the last [`poll`](Self::poll) has seen. The device returns chains in any order.
    ///
    /// # Errors
    /// The chain was not in flight, or the device claims to have written more bytes than the chain has.
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
        // A slot exists for `id`, so the value fits a u16.
        self.driver.slots.release(id as u16);
        self.driver.cursor.consume();
        Ok(Some(Used { tag: chain.tag, len }))
    }

    /// Requests a notification for the next used chain after those that the last [`poll`](Self::poll) has seen, then
    /// polls again. The caller may sleep only if the result is 0.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    pub fn rearm(&mut self) -> Result<u16, VirtqueueError> {
        self.driver.cursor.rearm(&self.available);
        self.poll()
    }

    /// Requests that the device send no notifications. The request is a hint: notifications may still arrive.
    pub fn suppress(&mut self) {
        self.driver.cursor.suppress(&self.available);
    }

    /// Returns the number of descriptors that are in no chain.
    pub fn free(&self) -> u16 {
        self.driver.free()
    }

    /// Returns the number of chains that the driver has added and not reaped.
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
