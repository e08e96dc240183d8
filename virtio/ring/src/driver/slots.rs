//! Private state of the driver for each descriptor: the free list and the chains in flight.

use crate::index::Size;
use crate::layout::LayoutError;

/// Private state of the driver for one descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// Index of the next descriptor in the same chain or in the free list.
    next: u16,
    /// Number of descriptors in the chain that begins with this descriptor; 0 if none begins here.
    chained: u16,
    /// The caller's tag of the chain that begins with this descriptor.
    tag: u32,
    /// Number of bytes of that chain that the device may write.
    writable: u32,
}

/// Tag and writable bytes of a chain in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outstanding {
    pub(super) tag: u32,
    pub(super) writable: u32,
}

/// State of all descriptors. The free list is last in, first out, so that descriptors in the processor's cache are
/// reused.
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
        // Slots behind the new size may have been used by a larger queue; the device could return their chains.
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

    /// Returns the descriptor that [`Self::allocate`] returns next. It is free only if any descriptor is.
    pub(super) fn first_free(&self) -> u16 {
        self.first_free
    }

    /// Removes a descriptor from the free list, which must not be empty.
    pub(super) fn allocate(&mut self) -> u16 {
        let index = self.first_free;
        self.first_free = self.slots.as_ref()[usize::from(index)].next;
        self.free -= 1;
        index
    }

    /// Records the chain that begins with descriptor `head` and consists of the last `chained` allocated descriptors.
    pub(super) fn record(&mut self, head: u16, chained: u16, tag: u32, writable: u32) {
        let slot = &mut self.slots.as_mut()[usize::from(head)];
        *slot = Slot {
            chained,
            tag,
            writable,
            ..*slot
        };
    }

    /// Returns the chain in flight that begins with descriptor `id`, if there is one.
    pub(super) fn outstanding(&self, id: u32) -> Option<Outstanding> {
        let slot = self.slots.as_ref().get(usize::try_from(id).ok()?)?;
        (slot.chained > 0).then_some(Outstanding {
            tag: slot.tag,
            writable: slot.writable,
        })
    }

    /// Frees the descriptors of the chain that begins with descriptor `head`.
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
