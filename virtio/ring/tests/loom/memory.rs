//! Memory that consists of loom's atomics, for the model checker.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
use pontoon_ring::Layout;
use pontoon_ring::memory::{Area, Window};
use pontoon_test_support::ring::range::Range;

/// Number of descriptors of the queue.
pub(crate) const SIZE: u16 = 2;
/// Address of the queue.
pub(crate) const ORIGIN: u64 = 0x1000;

pub(crate) const LAYOUT: Layout = Layout::contiguous(SIZE, ORIGIN);

/// Returns the address of one of the [`SIZE`] buffers of 8 bytes.
pub(crate) const fn buffer(index: u16) -> u64 {
    ORIGIN + (Layout::contiguous_bytes(SIZE) as u64).next_multiple_of(8) + 8 * index as u64
}

/// An atomic of the width with which the ring code accesses the word at this offset.
#[derive(Debug)]
enum Word {
    U16(AtomicU16),
    U32(AtomicU32),
    U64(AtomicU64),
    /// Not the first two bytes of a word, so that it is never accessed.
    None,
}

#[derive(Clone, Debug)]
pub(crate) struct Words {
    /// One element for each two bytes of memory.
    words: Arc<[Word]>,
    range: Range,
}

/// Returns zeroed memory with the queue and the buffers behind it.
pub(crate) fn memory() -> Window<Words> {
    let (available, used) = (LAYOUT.available, LAYOUT.used);
    let words = (ORIGIN..buffer(SIZE)).step_by(2).map(|addr| {
        let entries = addr.wrapping_sub(used + 4);
        if addr < available || addr >= buffer(0) {
            if addr % 8 == 0 {
                Word::U64(AtomicU64::new(0))
            } else {
                Word::None
            }
        } else if entries < 8 * u64::from(SIZE) {
            if entries % 4 == 0 {
                Word::U32(AtomicU32::new(0))
            } else {
                Word::None
            }
        } else {
            Word::U16(AtomicU16::new(0))
        }
    });
    let words: Arc<[Word]> = words.collect();
    let range = Range::whole(2 * words.len());
    Window::new(Words { words, range }, ORIGIN)
}

impl Words {
    fn word(&self, at: usize) -> &Word {
        let word = self.range.slice(at, 2);
        assert!(word.is_aligned(2));
        &self.words[word.position() / 2]
    }
}

impl Area for Words {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn is_aligned(&self, align: usize) -> bool {
        self.range.is_aligned(align)
    }

    fn slice(&self, at: usize, len: usize) -> Self {
        Self {
            words: self.words.clone(),
            range: self.range.slice(at, len),
        }
    }

    fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        let Word::U16(word) = self.word(at) else {
            panic!("no u16 at {at}")
        };
        word.load(order)
    }

    fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        let Word::U16(word) = self.word(at) else {
            panic!("no u16 at {at}")
        };
        word.store(value, order);
    }

    fn load_u32(&self, at: usize) -> u32 {
        let Word::U32(word) = self.word(at) else {
            panic!("no u32 at {at}")
        };
        word.load(Ordering::Relaxed)
    }

    fn store_u32(&self, at: usize, value: u32) {
        let Word::U32(word) = self.word(at) else {
            panic!("no u32 at {at}")
        };
        word.store(value, Ordering::Relaxed);
    }

    fn load_u64(&self, at: usize) -> u64 {
        let Word::U64(word) = self.word(at) else {
            panic!("no u64 at {at}")
        };
        word.load(Ordering::Relaxed)
    }

    fn store_u64(&self, at: usize, value: u64) {
        let Word::U64(word) = self.word(at) else {
            panic!("no u64 at {at}")
        };
        word.store(value, Ordering::Relaxed);
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.load_u64(at).to_le_bytes());
    }

    fn copy_in(&self, at: usize, from: &[u8]) {
        self.store_u64(at, u64::from_le_bytes(from.try_into().unwrap()));
    }

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}
