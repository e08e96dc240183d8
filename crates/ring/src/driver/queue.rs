//! A driver at work on its queue.

use super::{Driver, Error, Slot};
use crate::half::Half;
use crate::memory::Memory;

/// A driver's queue, found in memory.
///
/// A burst is [`add`](Self::add) for each chain and one [`publish`](Self::publish); and in the other direction
/// [`poll`](Self::poll), then [`reap`](Self::reap) for each chain that came back.
///
/// When the device breaks the protocol, the call that sees it says how, and every later call that would take chains back
/// says it again.
#[derive(Debug)]
pub struct Queue<'d, M: Memory, S> {
    pub(super) driver: &'d mut Driver<S>,
    pub(super) memory: M,
    pub(super) table: M::Area,
    pub(super) available: Half<M::Area>,
    pub(super) used: Half<M::Area>,
}

/// A chain that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// What it was added by.
    pub tag: u32,
    /// Bytes written, from the first writable one on. It is no more than there was room for.
    pub len: u32,
}

impl<M: Memory, S: AsRef<[Slot]> + AsMut<[Slot]>> Queue<'_, M, S> {
    /// Shows the device what was added, and says whether it wants to be notified of it.
    #[must_use = "the device sleeps until it is notified"]
    pub fn publish(&mut self) -> bool {
        self.driver.cursor.publish(&self.available, &self.used)
    }

    /// Looks how many chains wait to be taken back.
    ///
    /// # Errors
    /// The used index is where it cannot be.
    pub fn poll(&mut self) -> Result<u16, Error> {
        self.sound()?;
        let cursor = &mut self.driver.cursor;
        let seen = cursor.seen().get();
        // The device can return what it has been shown.
        let base = cursor.consumed();
        let outstanding = base.until(cursor.published());
        cursor.look(&self.used, base, outstanding).map_err(|index| {
            self.break_by(Error::UsedIndex {
                seen,
                index: index.0,
                outstanding,
            })
        })
    }

    /// Takes back the next of the chains that the last [`poll`](Self::poll) saw. They come in whatever order the device
    /// is done with them.
    ///
    /// # Errors
    /// The device did not have this chain, or could not write so much to it.
    pub fn reap(&mut self) -> Result<Option<Used>, Error> {
        self.sound()?;
        let Some(entry) = self.driver.cursor.waiting() else {
            return Ok(None);
        };
        let (id, len) = self.used.element(entry);
        let Some(chain) = self.driver.slots.outstanding(id) else {
            return Err(self.break_by(Error::NotOutstanding { id }));
        };
        if len > chain.writable {
            return Err(self.break_by(Error::Length {
                id,
                len,
                room: chain.writable,
            }));
        }
        // A slot has the number `id`, so that it is a u16.
        self.driver.slots.release(id as u16);
        self.driver.cursor.consume();
        Ok(Some(Used { tag: chain.tag, len }))
    }

    /// Asks to be notified of the next chain that comes back after those that the last [`poll`](Self::poll) saw, and then
    /// looks once more how many wait. Sleep only if none does.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn rearm(&mut self) -> Result<u16, Error> {
        self.driver.cursor.rearm(&self.available);
        self.poll()
    }

    /// Asks not to be notified. A hint: notifications may come all the same.
    pub fn suppress(&mut self) {
        self.driver.cursor.suppress(&self.available);
    }

    /// Descriptors that are free.
    pub fn free(&self) -> u16 {
        self.driver.free()
    }

    /// Chains added and not taken back.
    pub fn outstanding(&self) -> u16 {
        self.driver.outstanding()
    }

    fn sound(&self) -> Result<(), Error> {
        self.driver.broken.map_or(Ok(()), Err)
    }

    fn break_by(&mut self, error: Error) -> Error {
        *self.driver.broken.insert(error)
    }
}
