//! A virtqueue whose driver side the test writes to memory directly, with invalid values too.

use std::sync::atomic::Ordering;

use pontoon_ring::device::{Device, State};
use pontoon_ring::memory::{Area, Window};
use pontoon_ring::{Features, Layout};

use pontoon_test_support::ring::model::ModelMemory;

pub(crate) const ORIGIN: u64 = 0x2_0000;
pub(crate) const SIZE: u16 = 8;
/// Address of indirect tables and buffers.
pub(crate) const HEAP: u64 = ORIGIN + 0x800;
/// The first unmapped address.
pub(crate) const END: u64 = ORIGIN + 0x1000;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A virtqueue that the test writes in place of a driver.
pub(crate) struct Forged {
    pub(crate) memory: ModelMemory,
    layout: Layout,
}

impl Forged {
    pub(crate) fn new() -> Self {
        let memory = ModelMemory::new((END - ORIGIN) as usize);
        memory.copy_in(0, &[0; (HEAP - ORIGIN) as usize]);
        Self {
            memory,
            layout: Layout::contiguous(SIZE, ORIGIN),
        }
    }

    pub(crate) fn window(&self) -> Window<ModelMemory> {
        Window::new(self.memory.clone(), ORIGIN)
    }

    pub(crate) fn device(&self, features: Features) -> Device {
        Device::new(self.layout, features, State::default()).unwrap()
    }

    /// Writes descriptor `index` of the descriptor table.
    pub(crate) fn write_descriptor(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        self.write_descriptor_at(
            self.layout.descriptors + 16 * u64::from(index),
            addr,
            len,
            flags,
            next,
        );
    }

    /// Writes a descriptor at address `at`.
    pub(crate) fn write_descriptor_at(&self, at: u64, addr: u64, len: u32, flags: u16, next: u16) {
        let at = (at - ORIGIN) as usize;
        self.memory.copy_in(at, &addr.to_le_bytes());
        self.memory.copy_in(at + 8, &len.to_le_bytes());
        self.memory.copy_in(at + 12, &flags.to_le_bytes());
        self.memory.copy_in(at + 14, &next.to_le_bytes());
    }

    /// Adds the chain with first descriptor `head` to the available ring.
    pub(crate) fn offer(&self, head: u16) {
        let ring = (self.layout.available - ORIGIN) as usize;
        let index = self.index();
        self.memory
            .copy_in(ring + 4 + 2 * usize::from(index % SIZE), &head.to_le_bytes());
        self.set_index(index.wrapping_add(1));
    }

    pub(crate) fn index(&self) -> u16 {
        let ring = (self.layout.available - ORIGIN) as usize;
        u16::from_le(self.memory.load_u16(ring + 2, Ordering::Relaxed))
    }

    pub(crate) fn set_index(&self, index: u16) {
        let ring = (self.layout.available - ORIGIN) as usize;
        self.memory.store_u16(ring + 2, index.to_le(), Ordering::Relaxed);
    }

    /// Returns the used index and all elements of the used ring.
    pub(crate) fn used(&self) -> (u16, Vec<(u32, u32)>) {
        let ring = (self.layout.used - ORIGIN) as usize;
        let index = u16::from_le(self.memory.load_u16(ring + 2, Ordering::Relaxed));
        let word = |at| u32::from_le(self.memory.load_u32(ring + at));
        let elements = (0..usize::from(SIZE)).map(|slot| (word(4 + 8 * slot), word(8 + 8 * slot)));
        (index, elements.collect())
    }
}
