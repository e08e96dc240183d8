//! A device at work on its queue.

use super::chain::{Chain, Chains, Piece};
use super::{Device, Error};
use crate::half::Half;
use crate::memory::Memory;

/// A device's queue, found in memory.
///
/// A burst is [`poll`](Self::poll), then [`pop`](Self::pop) for each chain, [`put`](Self::put) for each that is done
/// with, in any order, and one [`publish`](Self::publish).
///
/// When the driver breaks the protocol, the call that sees it says how, and every later call that would take chains says
/// it again. What was taken before may still be returned.
#[derive(Debug)]
pub struct Queue<'d, M: Memory> {
    pub(super) device: &'d mut Device,
    pub(super) memory: M,
    pub(super) table: M::Area,
    pub(super) available: Half<M::Area>,
    pub(super) used: Half<M::Area>,
}

impl<M: Memory> Queue<'_, M> {
    /// Looks how many chains wait to be taken.
    ///
    /// # Errors
    /// The available index is where it cannot be.
    pub fn poll(&mut self) -> Result<u16, Error> {
        self.sound()?;
        let cursor = &mut self.device.cursor;
        let size = self.device.size.get();
        let seen = cursor.seen().get();
        // The driver may have as many chains outstanding as there are descriptors, and has those back that it was shown.
        let base = cursor.published();
        cursor.look(&self.available, base, size).map_err(|index| {
            self.break_by(Error::AvailableIndex {
                seen,
                index: index.0,
                size,
            })
        })
    }

    /// Takes the next of the chains that the last [`poll`](Self::poll) saw, and hands over the pieces of it in order.
    ///
    /// # Errors
    /// The chain is not one. Pieces handed over before that was seen are void.
    pub fn pop(&mut self, each: impl FnMut(Piece<M::Area>)) -> Result<Option<Chain>, Error> {
        self.sound()?;
        let Some(entry) = self.device.cursor.waiting() else {
            return Ok(None);
        };
        let chain = self.chain(self.available.head(entry), each)?;
        self.device.cursor.consume();
        Ok(Some(chain))
    }

    /// Reads a chain that was taken before, by itself or by the device whose [`State`](super::State) this one goes on
    /// from.
    ///
    /// # Errors
    /// The chain is not one.
    pub fn chain(&mut self, head: u16, each: impl FnMut(Piece<M::Area>)) -> Result<Chain, Error> {
        self.sound()?;
        let chains = Chains {
            memory: &self.memory,
            table: &self.table,
            size: self.device.size,
            indirect: self.device.indirect,
        };
        chains.read(head, each).map_err(|error| self.break_by(error))
    }

    /// Gives back the last `chains` chains that were taken and not returned: they will be popped again.
    ///
    /// Only the driver's order can be restored: none of them, nor a chain taken after them, may have been returned.
    pub fn rewind(&mut self, chains: u16) {
        debug_assert!(
            chains <= self.device.taken(),
            "{chains} of {}",
            self.device.taken()
        );
        self.device.cursor.unconsume(chains);
    }

    /// Returns a chain of which the device has written the first `len` bytes (of the writable ones), to be seen by the
    /// driver at the next [`publish`](Self::publish).
    pub fn put(&mut self, chain: Chain, len: u32) {
        debug_assert!(self.device.taken() > 0, "returned more than was taken");
        debug_assert!(len <= chain.writable, "{len} bytes in {chain:?}");
        let entry = self.device.cursor.write();
        self.used.set_element(entry, chain.head.into(), len);
    }

    /// Shows the driver what was returned, and says whether it wants to be notified of it.
    #[must_use = "the driver sleeps until it is notified"]
    pub fn publish(&mut self) -> bool {
        self.device.cursor.publish(&self.used, &self.available)
    }

    /// Asks to be notified of the next chain after those that the last [`poll`](Self::poll) saw, and then looks once more
    /// how many wait. Sleep only if none does, or if no more do than are too few.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn rearm(&mut self) -> Result<u16, Error> {
        self.device.cursor.rearm(&self.used);
        self.poll()
    }

    /// Asks not to be notified. A hint: notifications may come all the same.
    pub fn suppress(&mut self) {
        self.device.cursor.suppress(&self.used);
    }

    /// Chains that were taken and not returned.
    pub fn taken(&self) -> u16 {
        self.device.taken()
    }

    fn sound(&self) -> Result<(), Error> {
        self.device.broken.map_or(Ok(()), Err)
    }

    pub(super) fn break_by(&mut self, error: Error) -> Error {
        *self.device.broken.insert(error)
    }
}
