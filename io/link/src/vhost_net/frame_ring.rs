//! Allocation of frames in a circular buffer. Frames are produced and submitted in order, given back by the kernel in
//! any order, and their memory is reclaimed in order.
//!
//! Positions increase without wrapping; the offset in the buffer is the position modulo the buffer's size. No frame
//! extends over the end of the buffer.

use std::collections::VecDeque;

/// Alignment of frames in bytes, so that two of them share no cache line.
const ALIGN: usize = 64;

/// The allocated frames of one circular buffer.
#[derive(Debug)]
pub(super) struct FrameRing {
    bytes: usize,
    /// Frames that are not reclaimed, from the oldest to the newest.
    frames: VecDeque<AllocatedFrame>,
    /// Limit on the number of frames in the buffer.
    most: usize,
    /// Identifier of the oldest frame; those of the next frames follow it, and wrap at 2^32.
    first: u32,
    /// Number of frames that were submitted to the kernel; they are the oldest ones.
    submitted: usize,
    /// Position at which the next frame may begin.
    produced: u64,
    /// Position of the oldest frame, or a position before it.
    reclaimed: u64,
}

/// A contiguous range of free bytes in the circular buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeRange {
    position: u64,
    /// Offset of the first byte in the buffer.
    pub(super) at: usize,
    /// Length of the free range in bytes.
    pub(super) len: usize,
}

/// A frame that was submitted to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubmittedFrame {
    /// Identifier by which the kernel gives the frame back (the tag of its descriptor).
    pub(super) name: u32,
    /// Offset of the frame's first byte in the buffer.
    pub(super) at: usize,
    /// Length of the frame in bytes.
    pub(super) len: usize,
}

#[derive(Clone, Copy, Debug)]
struct AllocatedFrame {
    at: usize,
    len: usize,
    /// Position behind the frame in the circular buffer.
    end: u64,
    given_back: bool,
}

impl FrameRing {
    /// Creates an empty buffer of `bytes` bytes, a multiple of [`ALIGN`], for at most `most` frames.
    pub(super) fn new(bytes: usize, most: u16) -> Self {
        debug_assert!(bytes.is_multiple_of(ALIGN));
        let most = usize::from(most);
        Self {
            bytes,
            frames: VecDeque::with_capacity(most),
            most,
            first: 0,
            submitted: 0,
            produced: 0,
            reclaimed: 0,
        }
    }

    /// Returns a contiguous range of at least `least` free bytes; `None` if there is none.
    pub(super) fn room(&mut self, least: usize) -> Option<FreeRange> {
        if self.frames.is_empty() {
            // An empty buffer is used from its beginning, which is in the processor's cache.
            (self.produced, self.reclaimed) = (0, 0);
        }
        let free = self.bytes - (self.produced - self.reclaimed) as usize;
        let at = (self.produced % self.bytes as u64) as usize;
        let to_end = self.bytes - at;
        let here = FreeRange {
            position: self.produced,
            at,
            len: free.min(to_end),
        };
        let beginning = FreeRange {
            position: self.produced + to_end as u64,
            at: 0,
            len: free.saturating_sub(to_end),
        };
        [here, beginning]
            .into_iter()
            .find(|run| run.len >= least && run.len > 0)
    }

    /// Returns how many frames may be produced before one is reclaimed.
    pub(super) fn vacancies(&self) -> usize {
        self.most - self.frames.len()
    }

    /// Adds a frame of `len` bytes, `skip` bytes behind the start of `run`. The caller has found `run` with
    /// [`Self::room`] after the last frame was produced, and has checked that it is large enough and that
    /// [`Self::vacancies`] is not 0.
    pub(super) fn produce(&mut self, run: FreeRange, skip: usize, len: usize) {
        debug_assert!(
            skip + len <= run.len && self.vacancies() > 0 && run.position + skip as u64 >= self.produced
        );
        self.produced = run.position + (skip + len).next_multiple_of(ALIGN) as u64;
        self.frames.push_back(AllocatedFrame {
            at: run.at + skip,
            len,
            end: self.produced,
            given_back: false,
        });
    }

    /// Returns true if a frame was produced and not submitted.
    pub(super) fn has_unsubmitted(&self) -> bool {
        self.submitted < self.frames.len()
    }

    /// Marks the next frame as submitted, and returns it; `None` if all frames are submitted.
    pub(super) fn submit(&mut self) -> Option<SubmittedFrame> {
        let AllocatedFrame { at, len, .. } = *self.frames.get(self.submitted)?;
        let name = self.first.wrapping_add(self.submitted as u32);
        self.submitted += 1;
        Some(SubmittedFrame { name, at, len })
    }

    /// Marks a submitted frame as given back, and reclaims the oldest frames up to the first that the kernel still has.
    pub(super) fn give_back(&mut self, name: u32) {
        let nth = name.wrapping_sub(self.first) as usize;
        if nth < self.submitted
            && let Some(frame) = self.frames.get_mut(nth)
        {
            frame.given_back = true;
        }
        while let Some(frame) = self.frames.front().filter(|frame| frame.given_back) {
            self.reclaimed = frame.end;
            self.frames.pop_front();
            self.submitted -= 1;
            self.first = self.first.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn produce(ring: &mut FrameRing, len: usize) -> Option<usize> {
        let run = (ring.vacancies() > 0).then(|| ring.room(len)).flatten()?;
        ring.produce(run, 0, len);
        Some(run.at)
    }

    #[test]
    fn frames_are_contiguous_and_do_not_cross_the_end() {
        let mut ring = FrameRing::new(640, 8);
        assert_eq!(produce(&mut ring, 200), Some(0));
        assert_eq!(produce(&mut ring, 200), Some(256));
        assert_eq!(produce(&mut ring, 129), None, "128 bytes are left at the end");
        let first = ring.submit().unwrap();
        assert_eq!((first.at, first.len), (0, 200));
        ring.give_back(first.name);
        assert_eq!(produce(&mut ring, 200), Some(0));
        assert_eq!(produce(&mut ring, 1), None, "the gap at the end is used up");
        let second = ring.submit().unwrap();
        ring.give_back(second.name);
        assert_eq!(produce(&mut ring, 257), None, "the gap is the third frame's");
        assert_eq!(produce(&mut ring, 256), Some(256));
        assert_eq!(produce(&mut ring, 1), None);
    }

    #[test]
    fn frames_given_back_out_of_order_are_reclaimed_in_order() {
        let mut ring = FrameRing::new(192, 3);
        let names: Vec<u32> = (0..3)
            .map(|_| {
                produce(&mut ring, 64).unwrap();
                ring.submit().unwrap().name
            })
            .collect();
        ring.give_back(names[2]);
        ring.give_back(names[1]);
        assert_eq!((ring.vacancies(), ring.room(1)), (0, None));
        ring.give_back(names[0]);
        assert_eq!(ring.vacancies(), 3);
        assert_eq!(ring.room(192).unwrap().at, 0);
    }

    #[test]
    fn empty_buffer_is_used_from_its_beginning() {
        let mut ring = FrameRing::new(256, 4);
        for _ in 0..10 {
            assert_eq!(produce(&mut ring, 100), Some(0));
            let name = ring.submit().unwrap().name;
            ring.give_back(name);
        }
    }

    #[test]
    fn only_submitted_frames_can_be_given_back() {
        let mut ring = FrameRing::new(256, 4);
        produce(&mut ring, 64).unwrap();
        ring.give_back(0);
        ring.give_back(7);
        assert_eq!(ring.vacancies(), 3);
        assert!(ring.has_unsubmitted());
        assert_eq!(ring.submit().map(|frame| frame.name), Some(0));
        assert!(!ring.has_unsubmitted());
        assert_eq!(ring.submit(), None);
    }

    /// Compares the buffer with a plain list of frames: no two frames overlap, and an empty buffer always has room.
    #[test]
    fn no_two_frames_overlap() {
        const BYTES: usize = 4096;
        let mut ring = FrameRing::new(BYTES, 16);
        ring.first = u32::MAX - 100;
        let mut out: Vec<SubmittedFrame> = Vec::new();
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut produced = 0;
        for _ in 0..100_000 {
            if random(2) == 0 {
                let (skip, len) = (random(100), 1 + random(1200));
                if ring.vacancies() > 0
                    && let Some(run) = ring.room(skip + len)
                {
                    ring.produce(run, skip, len);
                    let frame = ring.submit().unwrap();
                    assert!(frame.at + frame.len <= BYTES);
                    let apart = |other: &SubmittedFrame| {
                        frame.at + frame.len <= other.at || other.at + other.len <= frame.at
                    };
                    assert!(out.iter().all(apart), "{frame:?} among {out:?}");
                    out.push(frame);
                    produced += 1;
                } else {
                    assert!(!out.is_empty());
                }
            } else if !out.is_empty() {
                let frame = out.swap_remove(random(out.len()));
                ring.give_back(frame.name);
            }
        }
        assert!(produced > 10_000, "{produced}");
    }
}
