//! Implementation of [`Area`] for memory behind a pointer, for guests and for targets without std.
//!
//! All unsafe code of this crate is here.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Area;

/// Memory behind a pointer, shared with a peer that may write it at any time.
///
/// Words are accessed atomically, and bytes are copied with volatile accesses: each byte is read once, and the private
/// copy cannot change.
#[derive(Clone, Copy, Debug)]
pub struct Raw<'m> {
    base: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'m [AtomicU64]>,
}

// SAFETY: the memory is not bound to a thread. Words are accessed with atomics, and the caller of `new` promised that
// no two threads conflict in copies.
unsafe impl Send for Raw<'_> {}
// SAFETY: as above. A `Raw` is a pointer and a length that never change, so sharing one is the same as copying it.
unsafe impl Sync for Raw<'_> {}

impl<'m> Raw<'m> {
    /// Creates the description of the `len` bytes at `base`.
    ///
    /// # Safety
    /// For all of `'m`:
    /// - the `len` bytes at `base` are one mapping or allocation, readable and writable;
    /// - this process accesses them through `Raw`s only, or in system calls;
    /// - bytes that one thread copies are not written by another thread meanwhile. The ring protocol ensures this,
    ///   since a buffer belongs to one side at a time;
    /// - no `&[u8]` or `&mut [u8]` to them is in use.
    ///
    /// Another process, a kernel or a VM may write them at any time.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self {
            base,
            len,
            memory: PhantomData,
        }
    }

    /// Returns the pointer to offset `at`, after checking that `len` bytes exist there.
    fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(
            at <= self.len && len <= self.len - at,
            "{len} bytes at {at} of {}",
            self.len
        );
        // SAFETY: `at` is at most `len`, so the result is in the allocation of `base` or one past it (contract of
        // `new`).
        unsafe { self.base.add(at) }
    }

    /// Returns the pointer to a word at offset `at`, after checking bounds and alignment.
    fn word<T>(&self, at: usize) -> *mut T {
        let pointer = self.at(at, size_of::<T>()).cast::<T>();
        assert!(pointer.is_aligned(), "a word at {pointer:p}");
        pointer.as_ptr()
    }

    fn u16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `word` has checked bounds and alignment. The caller of `new` promised that the memory exists for 'm,
        // and that nothing in this process accesses it except through this type.
        unsafe { AtomicU16::from_ptr(self.word(at)) }
    }

    fn u32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `word` has checked bounds and alignment; the rest as for `u16`.
        unsafe { AtomicU32::from_ptr(self.word(at)) }
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `word` has checked bounds and alignment; the rest as for `u16`.
        unsafe { AtomicU64::from_ptr(self.word(at)) }
    }
}

impl Area for Raw<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn is_aligned(&self, align: usize) -> bool {
        self.base.addr().get().is_multiple_of(align)
    }

    fn slice(&self, at: usize, len: usize) -> Self {
        let base = self.at(at, len);
        Self {
            base,
            len,
            memory: PhantomData,
        }
    }

    fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        self.u16(at).load(order)
    }

    fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        self.u16(at).store(value, order);
    }

    fn load_u32(&self, at: usize) -> u32 {
        self.u32(at).load(Ordering::Relaxed)
    }

    fn store_u32(&self, at: usize, value: u32) {
        self.u32(at).store(value, Ordering::Relaxed);
    }

    fn load_u64(&self, at: usize) -> u64 {
        self.u64(at).load(Ordering::Relaxed)
    }

    fn store_u64(&self, at: usize, value: u64) {
        self.u64(at).store(value, Ordering::Relaxed);
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        let from = self.at(at, into.len()).as_ptr();
        // SAFETY: `at` has checked that `into.len()` bytes exist. The caller of `new` promised that they exist for 'm,
        // and that no other thread of this process writes them meanwhile.
        unsafe { read_words(from, into) }
    }

    fn copy_in(&self, at: usize, from: &[u8]) {
        let to = self.at(at, from.len()).as_ptr();
        // SAFETY: as for `copy_out`, and no other thread of this process reads them meanwhile either.
        unsafe { write_words(from, to) }
    }
}

/// Copies bytes out of shared memory, by whole words except at unaligned ends.
///
/// # Safety
/// `into.len()` bytes at `from` can be read, and no other thread of this process writes them meanwhile.
unsafe fn read_words(from: *const u8, into: &mut [u8]) {
    let (head, rest) = into.split_at_mut(from.align_offset(WORD).min(into.len()));
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    let middle = from.wrapping_add(head.len());
    let last = middle.wrapping_add(WORD * words.len());
    for (at, byte) in head.iter_mut().enumerate() {
        // SAFETY: in bounds, as `head` is the first part of `into`.
        *byte = unsafe { from.add(at).read_volatile() };
    }
    for (at, word) in words.iter_mut().enumerate() {
        // SAFETY: in bounds, as `words` is the second part of `into`; aligned, as `head` ends where a word begins, or
        // there are no words.
        *word = unsafe { middle.cast::<u64>().add(at).read_volatile() }.to_ne_bytes();
    }
    for (at, byte) in tail.iter_mut().enumerate() {
        // SAFETY: in bounds, as `tail` is the last part of `into`.
        *byte = unsafe { last.add(at).read_volatile() };
    }
}

/// Copies bytes into shared memory, by whole words except at unaligned ends.
///
/// # Safety
/// `from.len()` bytes at `to` can be written, and no other thread of this process accesses them meanwhile.
unsafe fn write_words(from: &[u8], to: *mut u8) {
    let (head, rest) = from.split_at(to.align_offset(WORD).min(from.len()));
    let (words, tail) = rest.as_chunks::<WORD>();
    let middle = to.wrapping_add(head.len());
    let last = middle.wrapping_add(WORD * words.len());
    for (at, byte) in head.iter().enumerate() {
        // SAFETY: in bounds, as `head` is the first part of `from`.
        unsafe { to.add(at).write_volatile(*byte) }
    }
    for (at, word) in words.iter().enumerate() {
        // SAFETY: in bounds, as `words` is the second part of `from`; aligned, as `head` ends where a word begins, or
        // there are no words.
        unsafe {
            middle
                .cast::<u64>()
                .add(at)
                .write_volatile(u64::from_ne_bytes(*word))
        }
    }
    for (at, byte) in tail.iter().enumerate() {
        // SAFETY: in bounds, as `tail` is the last part of `from`.
        unsafe { last.add(at).write_volatile(*byte) }
    }
}

/// Size in bytes of the words by which memory is copied.
const WORD: usize = size_of::<u64>();
