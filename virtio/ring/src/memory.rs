//! Memory that a peer may rewrite at any moment.
//!
//! The ring code accesses memory through two traits. A [`Memory`] looks up the [`Area`] at an address. An area is read
//! and written word by word, each word with one atomic access, so that the value that was checked is the value that is
//! used. No `&[u8]` to shared memory ever exists.

use core::sync::atomic::{Ordering, fence};

mod raw;
#[cfg(feature = "std")]
mod vm_memory;
mod window;

pub use raw::Raw;
#[cfg(feature = "std")]
pub use vm_memory::VmMemory;
pub use window::Window;

/// Lookup of memory by the addresses in descriptors.
pub trait Memory {
    /// Contiguous memory.
    type Area: Area;

    /// Returns the memory at `addr`: `len` bytes, or as many of them (at least one) as are contiguous. `None` if the
    /// address is unmapped.
    fn area(&self, addr: u64, len: usize) -> Option<Self::Area>;
}

impl<M: Memory> Memory for &M {
    type Area = M::Area;

    fn area(&self, addr: u64, len: usize) -> Option<Self::Area> {
        (**self).area(addr, len)
    }
}

/// Contiguous memory, accessed by offset.
///
/// Words are in the byte order of the memory: the ring code converts them.
///
/// # Panics
/// All methods panic, as slices do, on a range past the end or a word at an address that is not a multiple of its size.
/// A peer cannot cause this: the ring code checks every range first.
pub trait Area: Clone {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns true if the area has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the area's first byte is, in this process, at a multiple of `align`.
    fn is_aligned(&self, align: usize) -> bool;

    /// Returns the `len` bytes from `at` on.
    fn slice(&self, at: usize, len: usize) -> Self;

    /// Loads a word.
    fn load_u16(&self, at: usize, order: Ordering) -> u16;

    /// Stores a word.
    fn store_u16(&self, at: usize, value: u16, order: Ordering);

    /// Loads a word, with relaxed ordering.
    fn load_u32(&self, at: usize) -> u32;

    /// Stores a word, with relaxed ordering.
    fn store_u32(&self, at: usize, value: u32);

    /// Loads a word, with relaxed ordering.
    fn load_u64(&self, at: usize) -> u64;

    /// Stores a word, with relaxed ordering.
    fn store_u64(&self, at: usize, value: u64);

    /// Copies the bytes from `at` on out of shared memory.
    fn copy_out(&self, at: usize, into: &mut [u8]);

    /// Copies bytes to `at` in shared memory.
    fn copy_in(&self, at: usize, from: &[u8]);

    /// A sequentially consistent fence. The memory of a model checker overrides it.
    fn fence() {
        fence(Ordering::SeqCst);
    }
}
