//! Access to memory that the peer may rewrite at any time.
//!
//! The ring code accesses memory through two traits. A [`Memory`] looks up the [`Area`] at an address. An area is read
//! and written by words, each with one atomic access, so that the value that was validated is the value that is used.
//! There is never a `&[u8]` to shared memory.

use core::sync::atomic::{Ordering, fence};

mod raw;
#[cfg(feature = "std")]
mod vm_memory;
mod window;

pub use raw::Raw;
#[cfg(feature = "std")]
pub use vm_memory::VmMemory;
pub use window::Window;

/// Lookup of memory by the addresses in descriptors (guest-physical addresses in a VM).
pub trait Memory {
    /// Type of a contiguous range of memory.
    type Area: Area;

    /// Returns the memory at `addr`: `len` bytes, or fewer (at least one) if only those are contiguous. `None` if the
    /// address is not mapped.
    fn area(&self, addr: u64, len: usize) -> Option<Self::Area>;
}

impl<M: Memory> Memory for &M {
    type Area = M::Area;

    fn area(&self, addr: u64, len: usize) -> Option<Self::Area> {
        (**self).area(addr, len)
    }
}

/// A contiguous range of memory, accessed by offset.
///
/// Words have the byte order of the memory; the ring code converts them.
///
/// # Panics
/// All methods panic, as slices do, on a range past the end or a word at an address that is not a multiple of its size.
/// A peer cannot cause this: the ring code checks every range first.
pub trait Area: Clone {
    /// Returns the length of the area in bytes.
    fn len(&self) -> usize;

    /// Returns true if the area has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the address of the area's first byte in this process is a multiple of `align`.
    fn is_aligned(&self, align: usize) -> bool;

    /// Returns the part of the area with `len` bytes from offset `at` on.
    fn slice(&self, at: usize, len: usize) -> Self;

    /// Loads the 16-bit word at offset `at` atomically.
    fn load_u16(&self, at: usize, order: Ordering) -> u16;

    /// Stores the 16-bit word at offset `at` atomically.
    fn store_u16(&self, at: usize, value: u16, order: Ordering);

    /// Loads the 32-bit word at offset `at` atomically, with relaxed ordering.
    fn load_u32(&self, at: usize) -> u32;

    /// Stores the 32-bit word at offset `at` atomically, with relaxed ordering.
    fn store_u32(&self, at: usize, value: u32);

    /// Loads the 64-bit word at offset `at` atomically, with relaxed ordering.
    fn load_u64(&self, at: usize) -> u64;

    /// Stores the 64-bit word at offset `at` atomically, with relaxed ordering.
    fn store_u64(&self, at: usize, value: u64);

    /// Copies `into.len()` bytes from offset `at` of shared memory into private memory.
    fn copy_out(&self, at: usize, into: &mut [u8]);

    /// Copies `from` to offset `at` of shared memory.
    fn copy_in(&self, at: usize, from: &[u8]);

    /// Executes a sequentially consistent fence. The memory of a model checker overrides it.
    fn fence() {
        fence(Ordering::SeqCst);
    }
}
