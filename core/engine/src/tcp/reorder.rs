//! Reorder buffer: data from the guest received out of order, anywhere in the advertised window. With a loss of one
//! segment in a hundred, there are dozens of holes in flight.
//!
//! The bytes are in blocks of the buffer pool, at their distance from a fixed sequence number, and are never moved.

use core::ops::Range;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use vm_memory::VolatileSlice;

use super::seq::{Seq, absorb};
use crate::pool::{BLOCK, BlockId, Pool};
use crate::state::{Reader, Record, StateError, Writer, check};

/// Maximum number of contiguous ranges. In a window of 4 MiB with segments of 1,500 bytes, that many holes are a loss
/// of one in a hundred.
const RUNS: usize = 32;
/// Maximum number of blocks: those of the widest window, and the part of a block that was delivered.
const BLOCKS: usize = 65;

/// Reorder buffer of one connection, which uses no memory while it is empty.
#[derive(Debug, Default)]
pub(super) struct Reorder(Option<Box<ReorderBlocks>>);

/// The blocks and ranges of a reorder buffer that is not empty.
#[derive(Debug)]
struct ReorderBlocks {
    /// Sequence number of the first byte of the first block.
    base: Seq,
    blocks: VecDeque<Option<BlockId>>,
    /// Stored ranges, which neither overlap nor touch each other; the range that has grown last is the first (RFC 2018
    /// section 4).
    runs: ArrayVec<(Seq, Seq), RUNS>,
}

/// The result of storing a segment that was received out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The whole segment is stored.
    Yes,
    /// The pool has no block for a part of the segment.
    PoolEmpty,
    /// The segment is beyond the last block, or would be one range too many.
    No,
}

impl Reorder {
    /// Returns the stored ranges for a SACK option, the most recent one first.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        let runs = self.0.iter().flat_map(|ahead| &ahead.runs);
        runs.map(|&(begin, end)| (begin.0, end.0))
    }

    /// Returns true if all stored ranges are behind `next`, the next expected sequence number, and none contains it.
    pub(super) fn is_sound(&self, next: Seq) -> bool {
        self.0.as_ref().is_none_or(|ahead| {
            !next.before(ahead.base) && ahead.runs.iter().all(|(begin, _)| begin.after(next))
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Stores `parts`, whose first byte has the sequence number `seq`. `next` is the next expected sequence number,
    /// before `seq`.
    pub(super) fn keep<'a>(
        &mut self,
        next: Seq,
        seq: Seq,
        parts: impl Iterator<Item = VolatileSlice<'a>>,
        pool: &mut Pool,
    ) -> Kept {
        let ahead = self.0.get_or_insert_with(|| Box::new(ReorderBlocks::new(next)));
        let kept = ahead.keep(seq, parts, pool);
        if ahead.runs.is_empty() {
            self.0 = None;
        }
        kept
    }

    /// Returns the first stored bytes from `next` on that are contiguous in memory; `None` if the byte at `next` is not
    /// stored.
    pub(super) fn front<'p>(&self, next: Seq, pool: &'p mut Pool) -> Option<VolatileSlice<'p>> {
        let ahead = self.0.as_ref()?;
        let &(_, end) = ahead
            .runs
            .iter()
            .find(|(begin, end)| !begin.after(next) && end.after(next))?;
        let (index, place) = ahead.place(next);
        let len = (end.past(next) as usize).min(BLOCK - place);
        let block = ahead.blocks.get(index)?.as_ref()?;
        Some(VolatileSlice::from(&mut pool.bytes(block)[place..place + len]))
    }

    /// Frees the blocks whose bytes are all before `next`, because they have been delivered.
    pub(super) fn advance(&mut self, next: Seq, pool: &mut Pool) {
        let Some(ahead) = &mut self.0 else { return };
        ahead.advance(next, pool);
        if ahead.runs.is_empty() {
            self.clear(pool);
        }
    }

    /// Returns all blocks of the reorder buffer to the pool.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        let blocks = self.0.take().into_iter().flat_map(|ahead| ahead.blocks);
        blocks.flatten().for_each(|block| pool.give(block));
    }
}

impl ReorderBlocks {
    fn new(base: Seq) -> Self {
        Self {
            base,
            blocks: VecDeque::new(),
            runs: ArrayVec::new(),
        }
    }

    /// Returns the index of the block that contains the byte at `at`, and the byte's offset in it.
    fn place(&self, at: Seq) -> (usize, usize) {
        let distance = at.past(self.base) as usize;
        (distance / BLOCK, distance % BLOCK)
    }

    fn keep<'a>(
        &mut self,
        seq: Seq,
        parts: impl Iterator<Item = VolatileSlice<'a>>,
        pool: &mut Pool,
    ) -> Kept {
        let touches = |&(begin, end): &(Seq, Seq)| !seq.before(begin) && !seq.after(end);
        if self.runs.is_full() && !self.runs.iter().any(touches) {
            return Kept::No;
        }
        let mut at = seq;
        let mut kept = Kept::Yes;
        'parts: for part in parts {
            let mut done = 0;
            while done < part.len() {
                let (index, place) = self.place(at);
                let block = match self.block(index, pool) {
                    Ok(block) => block,
                    Err(why) => {
                        kept = why;
                        break 'parts;
                    }
                };
                let rest = part.offset(done).expect("done < part.len()");
                let copied = rest.copy_to(&mut pool.bytes(block)[place..]);
                done += copied;
                at += u32::try_from(copied).expect("at most a block");
            }
        }
        if at != seq {
            let run = absorb(&mut self.runs, (seq, at));
            // There is room, because a range that neither fits nor touches another was refused above.
            if !self.runs.is_full() {
                self.runs.insert(0, run);
            }
        }
        kept
    }

    /// Returns the block `index`, and allocates it if necessary: the connection's first block in any case, more of them
    /// while [`Pool::is_roomy`].
    fn block(&mut self, index: usize, pool: &mut Pool) -> Result<&BlockId, Kept> {
        if index >= BLOCKS {
            return Err(Kept::No);
        }
        if self.blocks.len() <= index {
            self.blocks.resize_with(index + 1, || None);
        }
        let is_first = self.blocks.iter().all(Option::is_none);
        let block = &mut self.blocks[index];
        if block.is_none() && (is_first || pool.is_roomy()) {
            *block = pool.take();
        }
        block.as_ref().ok_or(Kept::PoolEmpty)
    }

    fn advance(&mut self, next: Seq, pool: &mut Pool) {
        self.runs.retain(|&mut (_, end)| end.after(next));
        for run in &mut self.runs {
            run.0 = run.0.latest(next);
        }
        let (delivered, _) = self.place(next);
        for _ in 0..delivered.min(self.blocks.len()) {
            if let Some(block) = self.blocks.pop_front().flatten() {
                pool.give(block);
            }
            self.base += BLOCK as u32;
        }
    }
}

/// Of the blocks, the record contains those parts that are stored ranges.
impl Record for ReorderBlocks {
    fn save(&self, to: &mut Writer<'_>) {
        let Self { base, blocks, runs } = self;
        to.put(base);
        to.count(blocks.len());
        blocks.iter().for_each(|block| to.put(&block.is_some()));
        to.put(runs);
        for &(begin, end) in runs {
            for (block, range) in self.pieces(begin, end) {
                let block = blocks.get(block).and_then(Option::as_ref);
                to.octets(block.map_or(&[], |block| &to.pool().content(block)[range]));
            }
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let mut ahead = Self::new(from.get()?);
        for _ in 0..from.count(BLOCKS)? {
            let block = match from.get()? {
                true => Some(from.pool().take().ok_or(StateError::Limit)?),
                false => None,
            };
            ahead.blocks.push_back(block);
        }
        ahead.runs = from.get()?;
        check(ahead.is_sound())?;
        for (begin, end) in ahead.runs.clone() {
            for (block, range) in ahead.pieces(begin, end).collect::<Vec<_>>() {
                let octets = from.octets(range.len())?;
                let block = ahead.blocks.get(block).and_then(Option::as_ref);
                let block = block.ok_or(StateError::Inconsistent)?;
                from.pool().bytes(block)[range].copy_from_slice(octets);
            }
        }
        Ok(ahead)
    }
}

impl ReorderBlocks {
    /// Returns the parts of a range by blocks, each with its block's index.
    fn pieces(&self, begin: Seq, end: Seq) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (mut at, end) = (begin.past(self.base) as usize, end.past(self.base) as usize);
        core::iter::from_fn(move || {
            let (block, offset) = (at / BLOCK, at % BLOCK);
            let len = end.checked_sub(at).filter(|len| *len > 0)?.min(BLOCK - offset);
            at += len;
            Some((block, offset..offset + len))
        })
    }

    /// Returns true if the ranges are within the blocks, and neither overlap nor touch each other.
    fn is_sound(&self) -> bool {
        let most = BLOCKS * BLOCK;
        let mut spans: Vec<_> = self
            .runs
            .iter()
            .map(|&(begin, end)| [begin, end].map(|at| at.0.wrapping_sub(self.base.0) as usize))
            .collect();
        spans.sort_unstable();
        !spans.is_empty()
            && spans.iter().all(|[begin, end]| begin < end && *end <= most)
            && spans.windows(2).all(|pair| pair[0][1] < pair[1][0])
    }
}

impl Record for Reorder {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&self.0);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.get().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the byte of the test stream at a sequence number.
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
    fn ranges_merge_and_drain_across_sequence_wrap() {
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
    fn reach_and_number_of_ranges_are_limited() {
        let mut pool = Pool::default();
        let mut reorder = Reorder::default();
        let most = u32::try_from(RUNS).unwrap();
        for run in 1..=most {
            assert_eq!(keep(&mut reorder, 0, run * 100, 10, &mut pool), Kept::Yes);
        }
        assert_eq!(reorder.runs().next(), Some((most * 100, most * 100 + 10)));
        assert_eq!(keep(&mut reorder, 0, 150, 10, &mut pool), Kept::No);
        assert_eq!(keep(&mut reorder, 0, 110, 10, &mut pool), Kept::Yes);
        assert_eq!(reorder.runs().next(), Some((100, 120)));
        assert_eq!(reorder.runs().count(), RUNS);
        reorder.clear(&mut pool);
        let end = (BLOCKS * BLOCK) as u32;
        assert_eq!(keep(&mut reorder, 0, end, 10, &mut pool), Kept::No);
        assert!(reorder.is_empty());
        assert_eq!(keep(&mut reorder, 0, end - 10, 20, &mut pool), Kept::No);
        assert_eq!(reorder.runs().next(), Some((end - 10, end)));
        reorder.clear(&mut pool);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn window_with_many_holes_is_reassembled() {
        const STEP: usize = 50_000;
        let mut pool = Pool::default();
        let mut reorder = Reorder::default();
        let first = u32::MAX - 100_000;
        // Every second segment is lost, and retransmitted later.
        for segment in (1..60).step_by(2) {
            let begin = first.wrapping_add(segment * STEP as u32);
            assert_eq!(keep(&mut reorder, first, begin, STEP, &mut pool), Kept::Yes);
        }
        let mut next = first;
        for _ in (0..60).step_by(2) {
            next = next.wrapping_add(STEP as u32);
            reorder.advance(Seq(next), &mut pool);
            next = deliver(&mut reorder, next, &mut pool);
        }
        assert_eq!(next, first.wrapping_add(60 * STEP as u32));
        assert!(reorder.is_empty());
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn scarce_pool_gives_each_flow_one_block() {
        let mut pool = Pool::default();
        let mut others = Vec::new();
        while pool.is_roomy() {
            others.extend(pool.take());
        }
        let mut reorder = Reorder::default();
        let block = BLOCK as u32;
        assert_eq!(keep(&mut reorder, 0, 100, 2 * BLOCK, &mut pool), Kept::PoolEmpty);
        assert_eq!(reorder.runs().next(), Some((100, block)));
        assert_eq!(keep(&mut reorder, 0, 3 * block, 10, &mut pool), Kept::PoolEmpty);
        reorder.clear(&mut pool);
        others.into_iter().for_each(|block| pool.give(block));
        assert_eq!(pool.in_use(), 0);
    }
}
