//! Memory that a peer may rewrite at any moment.
//!
//! The ring's code sees memory through two traits. A [`Memory`] finds the [`Area`] at an address; an area is read and
//! written word by word, each word by one atomic access, so that what was checked is what is used. No `&[u8]` to it
//! ever exists.

use core::sync::atomic::{Ordering, fence};

#[cfg(feature = "std")]
mod guest;
mod raw;
mod window;

#[cfg(feature = "std")]
pub use guest::Guest;
pub use raw::Raw;
pub use window::Window;

/// Finds memory by the addresses that are in descriptors.
pub trait Memory {
    /// Contiguous memory.
    type Area: Area;

    /// The memory at `addr`: `len` bytes, or as many of them (one at least) as are contiguous. `None` where there is no
    /// memory.
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
/// Words are in memory's byte order: the ring's code converts.
///
/// # Panics
/// All methods, as slices do, when they are asked for bytes past the end or for a word at an address that is no multiple
/// of its size. No peer can bring that about: the ring's code asks for nothing that it has not checked.
pub trait Area: Clone {
    /// Bytes.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the area's beginning lies, where this process has it, at a multiple of `align`.
    fn is_aligned(&self, align: usize) -> bool;

    /// The `len` bytes from `at` on.
    fn slice(&self, at: usize, len: usize) -> Self;

    /// Loads a word.
    fn load_u16(&self, at: usize, order: Ordering) -> u16;

    /// Stores a word.
    fn store_u16(&self, at: usize, value: u16, order: Ordering);

    /// Loads a word, relaxed.
    fn load_u32(&self, at: usize) -> u32;

    /// Stores a word, relaxed.
    fn store_u32(&self, at: usize, value: u32);

    /// Loads a word, relaxed.
    fn load_u64(&self, at: usize) -> u64;

    /// Stores a word, relaxed.
    fn store_u64(&self, at: usize, value: u64);

    /// Copies the bytes from `at` on out of shared memory.
    fn copy_out(&self, at: usize, into: &mut [u8]);

    /// Copies bytes to `at` in shared memory.
    fn copy_in(&self, at: usize, from: &[u8]);

    /// A sequentially consistent fence. Memory of a model checker has its own.
    fn fence() {
        fence(Ordering::SeqCst);
    }
}
