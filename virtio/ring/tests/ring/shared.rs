//! Memory that two threads of a test share.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use pontoon_ring::memory::{Raw, Window};

/// Zeroed memory, aligned to 16 bytes: to 8 bytes by its type, and to 16 by the choice of its first word.
pub(crate) struct SharedMemory(Box<[AtomicU64]>);

/// Address of the first byte in descriptors.
pub(crate) const ORIGIN: u64 = 0x4_0000;

impl SharedMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self((0..bytes / 8 + 2).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn window(&self) -> Window<Raw<'_>> {
        let words = &self.0[usize::from(self.0.as_ptr().addr() % 16 == 8)..];
        let base = NonNull::from(words).cast();
        // SAFETY: the words are a live, shared slice of atomics for as long as `self` is borrowed, and nothing but the
        // `Raw` accesses them: the slice is private.
        let raw = unsafe { Raw::new(base, size_of_val(words)) };
        Window::new(raw, ORIGIN)
    }
}
