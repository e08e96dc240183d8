//! TCP sequence numbers (RFC 9293 section 3.4): arithmetic modulo 2^32, and comparison within half of the sequence
//! space.

use core::ops::{Add, AddAssign, Sub};

use arrayvec::ArrayVec;

use crate::state::{Reader, Record, StateError, Writer};

/// A TCP sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Seq(pub(super) u32);

impl Seq {
    pub(super) const fn before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    pub(super) const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Returns the later of two sequence numbers.
    pub(super) const fn latest(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// Returns the earlier of two sequence numbers.
    pub(super) const fn earliest(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }

    /// Returns the number of bytes from `earlier` to `self`; 0 if `earlier` is not earlier.
    pub(super) const fn past(self, earlier: Self) -> u32 {
        if earlier.before(self) {
            self.0.wrapping_sub(earlier.0)
        } else {
            0
        }
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    fn add(self, by: u32) -> Self {
        Self(self.0.wrapping_add(by))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, by: u32) {
        *self = *self + by;
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    fn sub(self, by: u32) -> Self {
        Self(self.0.wrapping_sub(by))
    }
}

/// Removes the ranges from `runs` that overlap or touch `run`, and returns their union with it.
pub(super) fn absorb<const N: usize>(
    runs: &mut ArrayVec<(Seq, Seq), N>,
    (mut begin, mut end): (Seq, Seq),
) -> (Seq, Seq) {
    runs.retain(|&mut (b, e)| {
        let apart = end.before(b) || e.before(begin);
        if !apart {
            begin = begin.earliest(b);
            end = end.latest(e);
        }
        apart
    });
    (begin, end)
}

impl Record for Seq {
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

    #[test]
    fn adjacent_ranges_merge() {
        let run = |begin: u32, end: u32| (Seq(begin), Seq(end));
        let mut runs = ArrayVec::<_, 4>::from([run(10, 20), run(30, 40), run(50, 60), run(70, 80)]);
        assert_eq!(absorb(&mut runs, run(20, 35)), run(10, 40));
        assert_eq!(runs[..], [run(50, 60), run(70, 80)]);
        assert_eq!(absorb(&mut runs, run(61, 69)), run(61, 69));
        assert_eq!(absorb(&mut runs, run(45, 90)), run(45, 90));
        assert!(runs.is_empty());
    }

    #[test]
    fn comparison_wraps() {
        let (low, high) = (Seq(u32::MAX - 1), Seq(3));
        assert!(low.before(high) && high.after(low) && !high.before(low) && !low.before(low));
        assert_eq!(high.past(low), 5);
        assert_eq!(low.past(high), 0);
        assert_eq!((low.latest(high), high.latest(low)), (high, high));
        assert_eq!((low.earliest(high), high.earliest(low)), (low, low));
        assert_eq!((low + 5, high - 5), (high, low));
    }
}
