//! A seeded pseudo-random number generator: one seed reproduces a whole run.

use core::ops::RangeInclusive;
use core::time::Duration;

/// The generator SplitMix64 (Steele, Lea and Flood, 2014): small, fast, and good enough to choose test cases.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns the random number generator for `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns an independent generator for another part of the world, so that its draws do not change those of this
    /// part.
    pub fn fork(&mut self) -> Self {
        Self(self.number())
    }

    /// Returns a number of 64 random bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number less than `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// Returns a number in the range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Returns a length in the range.
    pub fn size(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + (self.number() % (range.end() - range.start() + 1) as u64) as usize
    }

    /// Returns a duration of a number of microseconds in the range.
    pub fn micros(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_micros(self.within(range))
    }

    /// Returns true with a probability of `per_mille` in 1,000.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    /// Returns one of `options`, which must not be empty.
    pub fn pick<T: Clone>(&mut self, options: &[T]) -> T {
        options[self.size(0..=options.len() - 1)].clone()
    }

    /// Returns 32 random bytes, for use as a key.
    pub fn key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        for word in key.chunks_mut(8) {
            word.copy_from_slice(&self.number().to_le_bytes());
        }
        key
    }
}

/// Applies the finalizer of SplitMix64: a bijection in which every input bit affects every output bit.
#[must_use]
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
