//! Data that arrived ahead of its turn: at most four runs within 64 KiB of the next byte expected.
//!
//! The bytes lie in one pool block, each at its sequence number modulo the block's size, so nothing ever moves.

use arrayvec::ArrayVec;
use vm_memory::VolatileSlice;

use super::seq::{Seq, absorb};
use crate::pool::{BLOCK, BlockId, Pool};

/// Runs kept, and SACK blocks reported.
const RUNS: usize = 4;
const SPAN: u32 = BLOCK as u32;

/// Out-of-order data of one flow.
#[derive(Debug, Default)]
pub(super) struct Reorder {
    block: Option<BlockId>,
    /// Disjoint, never touching; the run that grew last comes first (RFC 2018 section 4).
    runs: ArrayVec<(Seq, Seq), RUNS>,
}

/// What became of a segment that is ahead of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// All of it, or what of it lies within reach, is kept.
    Yes,
    /// The pool is empty.
    PoolEmpty,
    /// Out of reach, or one run too many.
    No,
}

impl Reorder {
    /// Blocks for a SACK option.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        self.runs.iter().map(|&(begin, end)| (begin.0, end.0))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Keeps the bytes `parts`, the first of which is `seq`. `next` is the byte expected next, before `seq`.
    pub(super) fn keep<'a>(
        &mut self,
        next: Seq,
        seq: Seq,
        parts: impl Iterator<Item = VolatileSlice<'a>>,
        pool: &mut Pool,
    ) -> Kept {
        let reach = next + SPAN;
        if !seq.before(reach) {
            return Kept::No;
        }
        if self.runs.is_full()
            && !self
                .runs
                .iter()
                .any(|&(begin, end)| !seq.before(begin) && !seq.after(end))
        {
            return Kept::No;
        }
        if self.block.is_none() {
            self.block = pool.take();
        }
        let Some(block) = &self.block else {
            return Kept::PoolEmpty;
        };
        let bytes = pool.bytes(block);
        let mut at = seq;
        for part in parts {
            let take = part.len().min(reach.past(at) as usize);
            let place = at.0 as usize % BLOCK;
            let first = take.min(BLOCK - place);
            part.copy_to(&mut bytes[place..place + first]);
            if first < take {
                part.offset(first)
                    .expect("first < part.len()")
                    .copy_to(&mut bytes[..take - first]);
            }
            at += u32::try_from(take).expect("at most SPAN");
        }
        self.insert(seq, at);
        Kept::Yes
    }

    fn insert(&mut self, begin: Seq, end: Seq) {
        let run = absorb(&mut self.runs, (begin, end));
        // Room is certain: `keep` refuses a run that neither fits nor touches another.
        if !self.runs.is_full() {
            self.runs.insert(0, run);
        }
    }

    /// The run of kept bytes that begins at `next`, as much of it as is contiguous in memory.
    pub(super) fn front<'p>(&self, next: Seq, pool: &'p mut Pool) -> Option<VolatileSlice<'p>> {
        let &(_, end) = self
            .runs
            .iter()
            .find(|(begin, end)| !begin.after(next) && end.after(next))?;
        let place = next.0 as usize % BLOCK;
        let len = (end.past(next) as usize).min(BLOCK - place);
        Some(VolatileSlice::from(
            &mut pool.bytes(self.block.as_ref()?)[place..place + len],
        ))
    }

    /// Everything before `next` has been delivered.
    pub(super) fn advance(&mut self, next: Seq, pool: &mut Pool) {
        self.runs.retain(|&mut (_, end)| end.after(next));
        for run in &mut self.runs {
            run.0 = run.0.latest(next);
        }
        if self.runs.is_empty() {
            self.clear(pool);
        }
    }

    /// Gives the block back.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.runs.clear();
        if let Some(block) = self.block.take() {
            pool.give(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stream's byte at a sequence number.
    fn byte(at: u32) -> u8 {
        (at.wrapping_mul(2_654_435_761) >> 24) as u8
    }

    fn keep(reorder: &mut Reorder, next: u32, begin: u32, len: usize, pool: &mut Pool) -> Kept {
        let mut data: Vec<u8> = (0..len).map(|i| byte(begin.wrapping_add(i as u32))).collect();
        let parts = [VolatileSlice::from(&mut data[..])];
        reorder.keep(Seq(next), Seq(begin), parts.into_iter(), pool)
    }

    fn deliver(reorder: &mut Reorder, next: u32, pool: &mut Pool) -> u32 {
        let mut next = Seq(next);
        while let Some(front) = reorder.front(next, pool) {
            let mut bytes = vec![0; front.len()];
            front.copy_to(&mut bytes);
            for (i, got) in bytes.iter().enumerate() {
                assert_eq!(*got, byte(next.0.wrapping_add(i as u32)));
            }
            next += bytes.len() as u32;
            reorder.advance(next, pool);
        }
        next.0
    }

    #[test]
    fn runs_merge_and_come_out_across_the_wrap() {
        let mut pool = Pool::default();
        let mut reorder = Reorder::default();
        let next = u32::MAX - 1000;
        assert_eq!(
            keep(&mut reorder, next, next.wrapping_add(500), 1000, &mut pool),
            Kept::Yes
        );
        assert_eq!(
            keep(&mut reorder, next, next.wrapping_add(2000), 10, &mut pool),
            Kept::Yes
        );
        assert_eq!(
            keep(&mut reorder, next, next.wrapping_add(1500), 500, &mut pool),
            Kept::Yes
        );
        let runs: Vec<_> = reorder.runs().collect();
        assert_eq!(runs, [(next.wrapping_add(500), next.wrapping_add(2010))]);
        reorder.advance(Seq(next.wrapping_add(600)), &mut pool);
        assert_eq!(
            deliver(&mut reorder, next.wrapping_add(600), &mut pool),
            next.wrapping_add(2010)
        );
        assert!(reorder.is_empty());
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn reach_and_number_of_runs_are_bounded() {
        let mut pool = Pool::default();
        let mut reorder = Reorder::default();
        for run in 1..=4 {
            assert_eq!(keep(&mut reorder, 0, run * 100, 10, &mut pool), Kept::Yes);
        }
        assert_eq!(reorder.runs().next(), Some((400, 410)));
        assert_eq!(keep(&mut reorder, 0, 500, 10, &mut pool), Kept::No);
        assert_eq!(keep(&mut reorder, 0, 110, 10, &mut pool), Kept::Yes);
        assert_eq!(reorder.runs().next(), Some((100, 120)));
        assert_eq!(keep(&mut reorder, 0, SPAN, 10, &mut pool), Kept::No);
        assert_eq!(keep(&mut reorder, 0, 400, BLOCK, &mut pool), Kept::Yes);
        assert_eq!(reorder.runs().next(), Some((400, SPAN)));
        reorder.clear(&mut pool);
        assert_eq!(pool.in_use(), 0);
    }
}
