//! Operations of the device side on a virtqueue.

use super::chain::{Chain, Chains, Piece};
use super::{Device, VirtqueueError};
use crate::cursor::Notification;
use crate::memory::Memory;
use crate::rings::RingPart;

/// The device side of a virtqueue whose parts were looked up in memory, for one burst.
///
/// One burst is [`poll`](Self::poll), [`pop`](Self::pop) for each chain, [`put`](Self::put) for each finished chain, in
/// any order, and one [`publish`](Self::publish).
///
/// If the driver violates the protocol, the call that detects it returns the error, and so does every later call that
/// would take chains. Chains taken before may still be returned.
#[derive(Debug)]
pub struct DeviceQueue<'d, M: Memory> {
    pub(super) device: &'d mut Device,
    pub(super) memory: M,
    pub(super) table: M::Area,
    pub(super) available: RingPart<M::Area>,
    pub(super) used: RingPart<M::Area>,
}

impl<M: Memory> DeviceQueue<'_, M> {
    /// Reads the available index and returns the number of chains ready to be taken.
    ///
    /// # Errors
    /// The available index violates the protocol.
    pub fn poll(&mut self) -> Result<u16, VirtqueueError> {
        self.sound()?;
        let cursor = &mut self.device.cursor;
        let size = self.device.size.get();
        let seen = cursor.seen().get();
        // The driver may have as many chains in flight as there are descriptors, and may reuse the descriptors of
        // chains that were published as used.
        let base = cursor.published();
        cursor.poll(&self.available, base, size).map_err(|index| {
            self.break_by(VirtqueueError::AvailableIndex {
                seen,
                index: index.0,
                size,
            })
        })
    }

    /// Takes the next chain that the last [`poll`](Self::poll) has seen, and passes its pieces to `each` in order.
    ///
    /// # Errors
    /// The chain is malformed. Pieces passed to `each` before the error was detected must be ignored.
    pub fn pop(&mut self, each: impl FnMut(Piece<M::Area>)) -> Result<Option<Chain>, VirtqueueError> {
        self.sound()?;
        let Some(entry) = self.device.cursor.next_entry() else {
            return Ok(None);
        };
        let chain = self.chain(self.available.head(entry), each)?;
        self.device.cursor.consume();
        Ok(Some(chain))
    }

    /// Reads again a chain that was taken before, by this device or by the device from whose [`State`](super::State) it
    /// continues.
    ///
    /// # Errors
    /// The chain is malformed.
    pub fn chain(&mut self, head: u16, each: impl FnMut(Piece<M::Area>)) -> Result<Chain, VirtqueueError> {
        self.sound()?;
        let chains = Chains {
            memory: &self.memory,
            table: &self.table,
            size: self.device.size,
            indirect: self.device.indirect,
        };
        chains.read(head, each).map_err(|error| self.break_by(error))
    }

    /// Returns the last `chains` taken chains to the available ones, so that they will be popped again.
    ///
    /// None of these chains, and no chain taken after them, may have been returned to the driver already, because the
    /// driver's order could not be restored.
    pub fn rewind(&mut self, chains: u16) {
        debug_assert!(
            chains <= self.device.taken(),
            "{chains} of {}",
            self.device.taken()
        );
        self.device.cursor.rewind(chains);
    }

    /// Returns a chain as used, with the first `len` writable bytes written by the device. The driver sees it after the
    /// next [`publish`](Self::publish).
    pub fn put(&mut self, chain: Chain, len: u32) {
        debug_assert!(self.device.taken() > 0, "returned more than was taken");
        debug_assert!(len <= chain.writable, "{len} bytes in {chain:?}");
        let entry = self.device.cursor.write();
        self.used.set_element(entry, chain.head.into(), len);
    }

    /// Publishes the returned chains.
    pub fn publish(&mut self) -> Notification {
        self.device.cursor.publish(&self.used, &self.available)
    }

    /// Requests a notification for the next chain after those that the last [`poll`](Self::poll) has seen, then polls
    /// again. The caller may sleep only if the result is 0 or does not exceed the number of chains that it could not
    /// use.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    pub fn rearm(&mut self) -> Result<u16, VirtqueueError> {
        self.device.cursor.rearm(&self.used);
        self.poll()
    }

    /// Requests that the driver send no notifications. The request is a hint: notifications may still arrive.
    pub fn suppress(&mut self) {
        self.device.cursor.suppress(&self.used);
    }

    /// Returns the number of chains that the device has taken and not returned.
    pub fn taken(&self) -> u16 {
        self.device.taken()
    }

    fn sound(&self) -> Result<(), VirtqueueError> {
        self.device.broken.map_or(Ok(()), Err)
    }

    pub(super) fn break_by(&mut self, error: VirtqueueError) -> VirtqueueError {
        *self.device.broken.insert(error)
    }
}
