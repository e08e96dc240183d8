//! The driver's own record of its descriptors: which are free, and what each chain that is out is.

use crate::index::Size;
use crate::layout::LayoutError;

/// What a driver notes about one descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// The next descriptor of its chain, or of the free list.
    next: u16,
    /// Descriptors in the chain that begins here; 0 if none does.
    chained: u16,
    /// The caller's name for the chain.
    tag: u32,
    /// Bytes of the chain for the device to write.
    writable: u32,
}

/// A chain that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Returned {
    pub(super) tag: u32,
    pub(super) writable: u32,
}

/// The slots, with the free ones in a list: last in, first out, while it is in the cache.
#[derive(Clone, Debug)]
pub(super) struct Slots<S> {
    slots: S,
    first: u16,
    free: u16,
}

impl<S: AsRef<[Slot]> + AsMut<[Slot]>> Slots<S> {
    pub(super) fn new(size: Size, mut slots: S) -> Result<Self, LayoutError> {
        let size = size.get();
        let count = slots.as_ref().len();
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
            first: 0,
            free: size,
        })
    }

    pub(super) fn free(&self) -> u16 {
        self.free
    }

    /// The descriptor that [`Self::push`] will take next. It is free if any is.
    pub(super) fn first(&self) -> u16 {
        self.first
    }

    /// Takes one free descriptor, which there is, for a chain under way.
    pub(super) fn push(&mut self) -> u16 {
        let index = self.first;
        self.first = self.slots.as_ref()[usize::from(index)].next;
        self.free -= 1;
        index
    }

    /// The chain that begins at `head`, of the last `chained` descriptors pushed, is out.
    pub(super) fn close(&mut self, head: u16, chained: u16, tag: u32, writable: u32) {
        let slot = &mut self.slots.as_mut()[usize::from(head)];
        *slot = Slot {
            chained,
            tag,
            writable,
            ..*slot
        };
    }

    /// Whether a chain that is out begins at `id`, and what it is.
    pub(super) fn outstanding(&self, id: u32) -> Option<Returned> {
        let slot = self.slots.as_ref().get(usize::try_from(id).ok()?)?;
        (slot.chained > 0).then_some(Returned {
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
        slots[usize::from(last)].next = self.first;
        self.first = head;
        self.free += chained;
    }
}
