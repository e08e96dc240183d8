//! Shared memory whose words change between two loads, as a hostile peer can change them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use pontoon_ring::memory::Area;

use crate::ring::model::ModelMemory;

/// A [`ModelMemory`] in which random words are overwritten after loads.
#[derive(Clone, Debug)]
pub struct RacyMemory {
    area: ModelMemory,
    all: ModelMemory,
    state: Rc<Cell<u64>>,
}

impl RacyMemory {
    /// Wraps `memory`; a `seed` of 0 disables the random writes.
    pub fn new(memory: &ModelMemory, seed: u64) -> Self {
        Self {
            area: memory.clone(),
            all: memory.clone(),
            state: Rc::new(Cell::new(seed)),
        }
    }

    /// Writes a small number to a random place in one of four calls, as rings and descriptor tables contain small
    /// numbers.
    fn write_randomly(&self) {
        let random = xorshift(self.state.get());
        self.state.set(random);
        if random != 0 && random.is_multiple_of(4) {
            let at = (random >> 8) as usize % (self.all.len() / 2) * 2;
            let word = (random >> 40) as u16 & (0xffff >> (random >> 56 & 0xf));
            self.all.store_u16(at, word, Ordering::Relaxed);
        }
    }
}

impl Area for RacyMemory {
    fn len(&self) -> usize {
        self.area.len()
    }

    fn is_aligned(&self, align: usize) -> bool {
        self.area.is_aligned(align)
    }

    fn slice(&self, at: usize, len: usize) -> Self {
        Self {
            area: self.area.slice(at, len),
            ..self.clone()
        }
    }

    fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        let word = self.area.load_u16(at, order);
        self.write_randomly();
        word
    }

    fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        self.area.store_u16(at, value, order);
    }

    fn load_u32(&self, at: usize) -> u32 {
        let word = self.area.load_u32(at);
        self.write_randomly();
        word
    }

    fn store_u32(&self, at: usize, value: u32) {
        self.area.store_u32(at, value);
    }

    fn load_u64(&self, at: usize) -> u64 {
        let word = self.area.load_u64(at);
        self.write_randomly();
        word
    }

    fn store_u64(&self, at: usize, value: u64) {
        self.area.store_u64(at, value);
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        self.area.copy_out(at, into);
        self.write_randomly();
    }

    fn copy_in(&self, at: usize, from: &[u8]) {
        self.area.copy_in(at, from);
    }
}

fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ state << 17
}
