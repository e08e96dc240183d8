//! Places for frames in a circular buffer: produced, then submitted, each in order; given back in whatever order; and
//! reclaimed in order again.
//!
//! Positions count up for ever; a position's place is its remainder by the buffer's size. No frame crosses the end.

use std::collections::VecDeque;

/// Frames begin at multiples of this, so that two of them share no cache line.
const ALIGN: usize = 64;

/// The places of one buffer.
#[derive(Debug)]
pub(super) struct FrameRing {
    bytes: usize,
    /// From the oldest that is not reclaimed to the newest.
    frames: VecDeque<Frame>,
    /// Frames, at most.
    most: usize,
    /// Name of the oldest one; the others' follow, and wrap.
    first: u32,
    /// The number of submitted frames, which are the oldest.
    submitted: usize,
    /// The position at which the next one may begin.
    produced: u64,
    /// The position of the oldest one, or one before it.
    reclaimed: u64,
}

/// Bytes side by side that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    position: u64,
    /// The offset of the first byte.
    pub(super) at: usize,
    /// The number of bytes.
    pub(super) len: usize,
}

/// A frame for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Submitted {
    /// The name that it is given back by.
    pub(super) name: u32,
    /// The offset of its first byte.
    pub(super) at: usize,
    /// Its bytes.
    pub(super) len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    at: usize,
    len: usize,
    /// The position behind it.
    end: u64,
    given_back: bool,
}

impl FrameRing {
    /// A buffer of `bytes`, a multiple of [`ALIGN`], for `most` frames at one time.
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

    /// Free bytes side by side: `least` of them at least.
    pub(super) fn room(&mut self, least: usize) -> Option<Run> {
        if self.frames.is_empty() {
            // From the beginning, which is in the cache.
            (self.produced, self.reclaimed) = (0, 0);
        }
        let free = self.bytes - (self.produced - self.reclaimed) as usize;
        let at = (self.produced % self.bytes as u64) as usize;
        let to_end = self.bytes - at;
        let here = Run {
            position: self.produced,
            at,
            len: free.min(to_end),
        };
        let beginning = Run {
            position: self.produced + to_end as u64,
            at: 0,
            len: free.saturating_sub(to_end),
        };
        [here, beginning]
            .into_iter()
            .find(|run| run.len >= least && run.len > 0)
    }

    /// Frames that may be produced before one is reclaimed.
    pub(super) fn vacancies(&self) -> usize {
        self.most - self.frames.len()
    }

    /// There is a frame of `len` bytes now, `skip` bytes into `run`: room that was found since the last one was produced,
    /// and is large enough. There is a vacancy.
    pub(super) fn produce(&mut self, run: Run, skip: usize, len: usize) {
        debug_assert!(
            skip + len <= run.len && self.vacancies() > 0 && run.position + skip as u64 >= self.produced
        );
        self.produced = run.position + (skip + len).next_multiple_of(ALIGN) as u64;
        self.frames.push_back(Frame {
            at: run.at + skip,
            len,
            end: self.produced,
            given_back: false,
        });
    }

    /// Returns true if a frame is produced and not submitted.
    pub(super) fn has_unsubmitted(&self) -> bool {
        self.submitted < self.frames.len()
    }

    /// Submits the next frame.
    pub(super) fn submit(&mut self) -> Option<Submitted> {
        let Frame { at, len, .. } = *self.frames.get(self.submitted)?;
        let name = self.first.wrapping_add(self.submitted as u32);
        self.submitted += 1;
        Some(Submitted { name, at, len })
    }

    /// Takes a submitted frame back, and reclaims what can be.
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
    fn frames_given_back_out_of_order_wait_for_older_ones() {
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

    /// Against a plain list of what is out: no two frames overlap, and room is found whenever the buffer is empty.
    #[test]
    fn no_two_frames_overlap() {
        const BYTES: usize = 4096;
        let mut ring = FrameRing::new(BYTES, 16);
        ring.first = u32::MAX - 100;
        let mut out: Vec<Submitted> = Vec::new();
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
                    let apart = |other: &Submitted| {
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
