//! Copies to and from lists of slices of guest memory, and reuse of the allocations of such lists.

use std::borrow::Borrow;

use pontoon_ring::device::Piece;
use pontoon_ring::memory::Area;
use vm_memory::VolatileSlice;

/// An empty list of slices, which is kept for its allocation. It contains integers, because slices cannot be sent to
/// another thread.
pub(crate) type SliceStore = Vec<[usize; words::<VolatileSlice<'static>>()]>;

/// An empty list of pieces, which is kept for its allocation, as [`SliceStore`].
pub(crate) type PieceStore = Vec<[usize; words::<Piece<VolatileSlice<'static>>>()]>;

const fn words<T>() -> usize {
    size_of::<T>() / size_of::<usize>()
}

/// Empties a list and converts its allocation into a list of elements of another type with the same size.
pub(crate) fn recycle<T, U>(mut list: Vec<T>) -> Vec<U> {
    const {
        assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>());
    }
    list.clear();
    // Collecting from a vector into one of the same layout happens in place (Rust 1.95); otherwise this would allocate.
    list.into_iter()
        .map(|_| unreachable!("the list is empty"))
        .collect()
}

/// Copies the first bytes of `pieces` into a private buffer, and returns the number of bytes.
pub(crate) fn copy_out<'a>(
    pieces: impl IntoIterator<Item = &'a VolatileSlice<'a>>,
    into: &mut [u8],
) -> usize {
    let mut at = 0;
    for piece in pieces {
        let len = piece.len().min(into.len() - at);
        piece.copy_out(0, &mut into[at..at + len]);
        at += len;
    }
    at
}

/// Copies `bytes` to the beginning of `pieces`, as far as they have room.
pub(crate) fn copy_in<'a>(pieces: impl IntoIterator<Item: Borrow<VolatileSlice<'a>>>, mut bytes: &[u8]) {
    for piece in pieces {
        let piece = piece.borrow();
        let (here, later) = bytes.split_at(piece.len().min(bytes.len()));
        piece.copy_in(0, here);
        bytes = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycle_keeps_the_allocation() {
        let mut bytes = [0; 16];
        let list = vec![VolatileSlice::from(&mut bytes[..]); 100];
        let (place, capacity) = (list.as_ptr().addr(), list.capacity());
        let store: SliceStore = recycle(list);
        assert!(store.is_empty());
        let list: Vec<VolatileSlice<'_>> = recycle(store);
        assert_eq!((list.as_ptr().addr(), list.capacity()), (place, capacity));
    }

    #[test]
    fn copy_continues_in_the_next_piece() {
        let (mut a, mut b, mut into) = ([0; 3], [0; 4], [9; 9]);
        let pieces = [VolatileSlice::from(&mut a[..]), VolatileSlice::from(&mut b[..])];
        copy_in(&pieces, &[1, 2, 3, 4, 5]);
        assert_eq!(copy_out(&pieces, &mut into), 7);
        assert_eq!(into, [1, 2, 3, 4, 5, 0, 0, 9, 9]);
        assert_eq!(copy_out(&pieces, &mut into[..2]), 2);
    }
}
