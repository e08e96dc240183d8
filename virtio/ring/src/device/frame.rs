//! Frames that span several receive buffers (VIRTIO_NET_F_MRG_RXBUF, 5.1.6.4).

use super::{Chain, DeviceQueue, Piece, VirtqueueError};
use crate::memory::Memory;

impl<M: Memory> DeviceQueue<'_, M> {
    /// Takes as many receive chains as are needed for a frame of `room` bytes, and stores them at the front of
    /// `chains`. Their pieces are passed to `each` in order. Returns the number of chains.
    ///
    /// Returns `None` and takes no chain if the chains that the last [`poll`](Self::poll) has seen, or the elements of
    /// `chains`, do not suffice. Then pieces that were passed to `each` must be ignored.
    ///
    /// # Errors
    /// Those of [`pop`](Self::pop); a chain has readable buffers.
    pub fn take(
        &mut self,
        room: u32,
        chains: &mut [Chain],
        mut each: impl FnMut(Piece<M::Area>),
    ) -> Result<Option<usize>, VirtqueueError> {
        let mut left = room;
        let mut taken = 0;
        for place in chains.iter_mut() {
            let Some(chain) = self.pop(&mut each)? else {
                break;
            };
            taken += 1;
            if chain.readable > 0 {
                return Err(self.break_by(VirtqueueError::NotWritable { head: chain.head }));
            }
            *place = chain;
            left = left.saturating_sub(chain.writable);
            if left == 0 {
                return Ok(Some(taken.into()));
            }
        }
        self.rewind(taken);
        Ok(None)
    }

    /// Returns the chains of one frame of `len` bytes to the driver. The result is the number of `chains` used, which
    /// the frame's header contains as `num_buffers`. The other chains remain taken; [`rewind`](Self::rewind) returns
    /// them to the available ones.
    pub fn put_frame(&mut self, chains: &[Chain], len: u32) -> u16 {
        let used = chains_needed(chains, len);
        let mut left = len;
        for chain in &chains[..used.into()] {
            let part = left.min(chain.writable);
            self.put(*chain, part);
            left -= part;
        }
        debug_assert_eq!(left, 0, "no room for {len} bytes in {chains:?}");
        used
    }
}

/// Returns how many of `chains` a frame of `len` bytes needs: at least one, if there is one.
///
/// All chains but the last are filled completely (virtio 1.2, section 5.1.6.4.1).
pub fn chains_needed(chains: &[Chain], len: u32) -> u16 {
    let mut left = len;
    let mut used = 0;
    for chain in chains {
        used += 1;
        left = left.saturating_sub(chain.writable);
        if left == 0 {
            break;
        }
    }
    used
}
