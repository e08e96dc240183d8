//! The driver's private state per descriptor: the free list and the chains in flight.

use crate::index::Size;
use crate::layout::LayoutError;

/// State of one descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// The next descriptor of its chain, or of the free list.
    next: u16,
    /// Descriptors in the chain that begins here; 0 if none begins here.
    chained: u16,
    /// The caller's tag of the chain.
    tag: u32,
    /// Writable bytes of the chain.
    writable: u32,
}

/// A chain in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outstanding {
    pub(super) tag: u32,
    pub(super) writable: u32,
}

/// The slots, with a free list that is last in, first out, to reuse cached descriptors.
#[derive(Clone, Debug)]
pub(super) struct Slots<S> {
    slots: S,
    first_free: u16,
    free: u16,
}

impl<S: AsRef<[Slot]> + AsMut<[Slot]>> Slots<S> {
    pub(super) fn new(size: Size, mut slots: S) -> Result<Self, LayoutError> {
        let size = size.get();
        let count = slots.as_ref().len();
        // Those beyond the size may be left from a larger queue: the device could return their chains.
        slots.as_mut().fill(Slot::default());
        let used = slots
            .as_mut()
            .get_mut(..size.into())
            .ok_or(LayoutError::Slots { slots: count, size })?;
        for (slot, next) in used.iter_mut().zip(1..=size) {
            *slot = Slot {
                next,
                ..Slot::default()
            };
        }
        Ok(Self {
            slots,
            first_free: 0,
            free: size,
        })
    }

    pub(super) fn free(&self) -> u16 {
        self.free
    }

    /// Returns the descriptor that [`Self::allocate`] takes next. It is free only if any is.
    pub(super) fn first_free(&self) -> u16 {
        self.first_free
    }

    /// Takes a descriptor off the free list, which must not be empty.
    pub(super) fn allocate(&mut self) -> u16 {
        let index = self.first_free;
        self.first_free = self.slots.as_ref()[usize::from(index)].next;
        self.free -= 1;
        index
    }

    /// Records the chain that begins at `head` and consists of the last `chained` descriptors allocated.
    pub(super) fn record(&mut self, head: u16, chained: u16, tag: u32, writable: u32) {
        let slot = &mut self.slots.as_mut()[usize::from(head)];
        *slot = Slot {
            chained,
            tag,
            writable,
            ..*slot
        };
    }

    /// Returns the chain in flight that begins at `id`, if there is one.
    pub(super) fn outstanding(&self, id: u32) -> Option<Outstanding> {
        let slot = self.slots.as_ref().get(usize::try_from(id).ok()?)?;
        (slot.chained > 0).then_some(Outstanding {
            tag: slot.tag,
            writable: slot.writable,
        })
    }

    /// Frees the descriptors of the chain that begins at `head`.
    pub(super) fn release(&mut self, head: u16) {
        let slots = self.slots.as_mut();
        let chained = core::mem::take(&mut slots[usize::from(head)].chained);
        let mut last = head;
        for _ in 1..chained {
            last = slots[usize::from(last)].next;
        }
        slots[usize::from(last)].next = self.first_free;
        self.first_free = head;
        self.free += chained;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_larger_queue_name_no_chain_of_a_smaller_one() {
        let mut slots = [Slot::default(); 8];
        let mut large = Slots::new(Size::new(8).unwrap(), &mut slots[..]).unwrap();
        while large.free > 0 {
            let head = large.allocate();
            large.record(head, 1, 0, 0);
        }
        assert!(large.outstanding(6).is_some());
        let small = Slots::new(Size::new(4).unwrap(), &mut slots[..]).unwrap();
        assert!((0..8).all(|id| small.outstanding(id).is_none()));
    }
}
