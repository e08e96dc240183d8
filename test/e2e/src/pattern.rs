//! Contents of streams as a function of the position, which both ends can compute and check at any offset.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};

/// Length of the pattern, a prime, so that no block size divides it and a lost, duplicated or swapped block is
/// detected.
const PERIOD: usize = 1_048_573;

/// The contents of the stream with one seed.
pub(crate) struct Pattern(Vec<u8>);

/// Patterns that were computed before, by seed, as thousands of flows share one.
static MADE: Mutex<BTreeMap<u64, Arc<Pattern>>> = Mutex::new(BTreeMap::new());

impl Pattern {
    pub(crate) fn of(seed: u64) -> Arc<Self> {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(made.entry(seed).or_insert_with(|| Arc::new(Self::new(seed))))
    }

    fn new(seed: u64) -> Self {
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
        let mut state = seed;
        let next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)).to_le_bytes()
        };
        let mut bytes: Vec<u8> = std::iter::repeat_with(next)
            .take(PERIOD.div_ceil(8))
            .flatten()
            .collect();
        bytes.truncate(PERIOD);
        Self(bytes)
    }

    /// Returns the bytes from `offset` on, at least one and at most `most`.
    pub(crate) fn at(&self, offset: u64, most: u64) -> &[u8] {
        let start = usize::try_from(offset % PERIOD as u64).unwrap_or(0);
        let end = usize::try_from(most).map_or(PERIOD, |most| PERIOD.min(start + most));
        &self.0[start..end]
    }

    /// Returns the first `len` bytes of the stream.
    pub(crate) fn prefix(&self, len: usize) -> &[u8] {
        &self.0[..len]
    }

    /// Fails if `bytes` are not those of the stream at `offset`.
    pub(crate) fn check(&self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let expected = self.at(offset, bytes.len() as u64);
            let (now, rest) = bytes.split_at(expected.len());
            if now != expected {
                let wrong = now.iter().zip(expected).take_while(|(a, b)| a == b).count() as u64;
                bail!("content differs at offset {}", offset + wrong);
            }
            offset += expected.len() as u64;
            bytes = rest;
        }
        Ok(())
    }
}
