//! Frames in several receive buffers (VIRTIO_NET_F_MRG_RXBUF, 5.1.6.4).

use super::{Chain, Error, Piece, Queue};
use crate::memory::Memory;

impl<M: Memory> Queue<'_, M> {
    /// Takes as many chains as have room for `room` bytes together, and says how many: they are the first of `chains`.
    /// The pieces of them are handed over in order.
    ///
    /// `None`: the chains that the last [`poll`](Self::poll) saw, or the places in `chains`, do not suffice. None is
    /// taken then, and the pieces handed over are void.
    ///
    /// # Errors
    /// As [`pop`](Self::pop); and a chain may not have anything for the device to read.
    pub fn take(
        &mut self,
        room: u32,
        chains: &mut [Chain],
        mut each: impl FnMut(Piece<M::Area>),
    ) -> Result<Option<usize>, Error> {
        let mut left = room;
        let mut taken = 0;
        for place in chains.iter_mut() {
            let Some(chain) = self.pop(&mut each)? else {
                break;
            };
            taken += 1;
            if chain.readable > 0 {
                return Err(self.break_by(Error::NotWritable { head: chain.head }));
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

    /// Returns the chains of one frame of `len` bytes, and says how many of `chains` it needed: what `num_buffers` in
    /// its header says. The others are still taken; [`rewind`](Self::rewind) gives them back.
    pub fn put_frame(&mut self, chains: &[Chain], len: u32) -> u16 {
        let used = spread(chains, len);
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

/// How many of `chains` a frame of `len` bytes needs: one at least, if there is one.
///
/// All but the last are filled (5.1.6.4.1).
pub fn spread(chains: &[Chain], len: u32) -> u16 {
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
