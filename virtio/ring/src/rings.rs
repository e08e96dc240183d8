//! The available ring and the used ring: one structure, each instance of which only one side writes.
//!
//! A ring has flags, an index, a slot for each entry and, behind the slots, the event index: the peer's entry for which
//! the writing side requests a notification (virtio 1.2, section 2.7.6, 2.7.8).

use core::sync::atomic::Ordering;

use crate::index::{Index, Size};
use crate::layout::{Layout, LayoutError, Part};
use crate::memory::{Area, Memory};

/// The available ring or the used ring of a virtqueue, looked up in memory.
#[derive(Clone, Debug)]
pub(crate) struct RingPart<A> {
    area: A,
    size: Size,
    event_at: usize,
}

impl<A: Area> RingPart<A> {
    pub(crate) fn available(memory: &impl Memory<Area = A>, layout: &Layout) -> Result<Self, LayoutError> {
        Self::new(memory, layout, Part::Available, layout.available)
    }

    pub(crate) fn used(memory: &impl Memory<Area = A>, layout: &Layout) -> Result<Self, LayoutError> {
        Self::new(memory, layout, Part::Used, layout.used)
    }

    fn new(
        memory: &impl Memory<Area = A>,
        layout: &Layout,
        part: Part,
        addr: u64,
    ) -> Result<Self, LayoutError> {
        Ok(Self {
            area: map(memory, part, addr, layout.size)?,
            size: layout.checked_size()?,
            event_at: part.bytes(layout.size) - 2,
        })
    }

    /// Returns the flags of the ring; bit 0 suppresses notifications.
    pub(crate) fn flags(&self) -> u16 {
        u16::from_le(self.area.load_u16(FLAGS, Ordering::Relaxed))
    }

    pub(crate) fn set_flags(&self, flags: u16) {
        self.area.store_u16(FLAGS, flags.to_le(), Ordering::Relaxed);
    }

    /// Returns the index that the writing side has stored.
    ///
    /// Acquire ordering: the entries before the index, their descriptors and the bytes in their buffers are read after
    /// it (virtio 1.2, section 2.7.13.3: the writing side has made them visible first).
    pub(crate) fn index(&self) -> Index {
        Index::new(u16::from_le(self.area.load_u16(INDEX, Ordering::Acquire)))
    }

    /// Stores the index, which makes all entries before it visible to the other side.
    ///
    /// Release ordering: entries, descriptors and buffers are written before it (virtio 1.2, section 2.7.13.3.1 for the
    /// driver; 2.7.8.2 for the device, whose `len` and data come first).
    pub(crate) fn set_index(&self, index: Index) {
        self.area.store_u16(INDEX, index.get().to_le(), Ordering::Release);
    }

    /// Returns the event index: the peer's entry for which the writing side requests a notification.
    pub(crate) fn event(&self) -> Index {
        Index::new(u16::from_le(self.area.load_u16(self.event_at, Ordering::Relaxed)))
    }

    pub(crate) fn set_event(&self, event: Index) {
        self.area
            .store_u16(self.event_at, event.get().to_le(), Ordering::Relaxed);
    }

    /// Returns an entry of the available ring: the head of a chain. All entries are read with relaxed ordering, because
    /// the index orders them.
    pub(crate) fn head(&self, entry: Index) -> u16 {
        u16::from_le(self.area.load_u16(self.slot(entry, 2), Ordering::Relaxed))
    }

    pub(crate) fn set_head(&self, entry: Index, head: u16) {
        self.area
            .store_u16(self.slot(entry, 2), head.to_le(), Ordering::Relaxed);
    }

    /// Returns an entry of the used ring: the head of a chain, and the number of bytes written to it.
    pub(crate) fn element(&self, entry: Index) -> (u32, u32) {
        let at = self.slot(entry, 8);
        (
            u32::from_le(self.area.load_u32(at)),
            u32::from_le(self.area.load_u32(at + 4)),
        )
    }

    pub(crate) fn set_element(&self, entry: Index, id: u32, len: u32) {
        let at = self.slot(entry, 8);
        self.area.store_u32(at, id.to_le());
        self.area.store_u32(at + 4, len.to_le());
    }

    fn slot(&self, entry: Index, bytes: usize) -> usize {
        SLOTS + bytes * usize::from(entry.slot(self.size))
    }
}

/// The parts of a queue, looked up in memory.
pub(crate) struct QueueParts<A> {
    /// The descriptor table.
    pub(crate) table: A,
    pub(crate) available: RingPart<A>,
    pub(crate) used: RingPart<A>,
}

impl<A: Area> QueueParts<A> {
    pub(crate) fn look_up(memory: &impl Memory<Area = A>, layout: &Layout) -> Result<Self, LayoutError> {
        Ok(Self {
            table: map(memory, Part::Descriptors, layout.descriptors, layout.size)?,
            available: RingPart::available(memory, layout)?,
            used: RingPart::used(memory, layout)?,
        })
    }
}

/// Looks up a part of a virtqueue in memory. The part must be contiguous, and aligned both as a guest address and as an
/// address of this process.
pub(crate) fn map<M: Memory>(memory: &M, part: Part, addr: u64, size: u16) -> Result<M::Area, LayoutError> {
    let len = part.bytes(size);
    let area = memory
        .area(addr, len)
        .filter(|area| area.len() == len)
        .ok_or(LayoutError::Unmapped { part, addr, len })?;
    if !addr.is_multiple_of(part.align() as u64) || !area.is_aligned(part.align()) {
        return Err(LayoutError::Misaligned { part, addr });
    }
    Ok(area)
}

/// Offset of the flags in a ring, in bytes.
const FLAGS: usize = 0;
/// Offset of the index in a ring, in bytes.
const INDEX: usize = 2;
/// Offset of the first slot in a ring, in bytes.
const SLOTS: usize = 4;
