//! Shared memory in a plain array, for tests with one thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use pontoon_ring::memory::Area;

use crate::ring::range::Range;

/// Shared memory of a test. Clones and slices refer to the same bytes.
#[derive(Clone, Debug)]
pub struct ModelMemory {
    bytes: Rc<RefCell<Vec<u8>>>,
    range: Range,
}

impl ModelMemory {
    /// Creates `len` bytes of memory with no zero, so that a read of uninitialised memory is detected.
    pub fn new(len: usize) -> Self {
        Self {
            bytes: Rc::new(RefCell::new(vec![0x5a; len])),
            range: Range::whole(len),
        }
    }

    fn load<const N: usize>(&self, at: usize) -> [u8; N] {
        self.check_alignment::<N>(at);
        let mut word = [0; N];
        self.copy_out(at, &mut word);
        word
    }

    fn store<const N: usize>(&self, at: usize, word: [u8; N]) {
        self.check_alignment::<N>(at);
        self.copy_in(at, &word);
    }

    fn check_alignment<const N: usize>(&self, at: usize) {
        let at = self.range.position() + at;
        assert!(at.is_multiple_of(N), "{N} bytes at {at}");
    }
}

impl Area for ModelMemory {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn is_aligned(&self, align: usize) -> bool {
        self.range.is_aligned(align)
    }

    fn slice(&self, at: usize, len: usize) -> Self {
        Self {
            bytes: self.bytes.clone(),
            range: self.range.slice(at, len),
        }
    }

    fn load_u16(&self, at: usize, _: Ordering) -> u16 {
        u16::from_ne_bytes(self.load(at))
    }

    fn store_u16(&self, at: usize, value: u16, _: Ordering) {
        self.store(at, value.to_ne_bytes());
    }

    fn load_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.load(at))
    }

    fn store_u32(&self, at: usize, value: u32) {
        self.store(at, value.to_ne_bytes());
    }

    fn load_u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.load(at))
    }

    fn store_u64(&self, at: usize, value: u64) {
        self.store(at, value.to_ne_bytes());
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        let range = self.range.slice(at, into.len());
        into.copy_from_slice(&self.bytes.borrow()[range.position()..][..range.len()]);
    }

    fn copy_in(&self, at: usize, from: &[u8]) {
        let range = self.range.slice(at, from.len());
        self.bytes.borrow_mut()[range.position()..][..range.len()].copy_from_slice(from);
    }
}
