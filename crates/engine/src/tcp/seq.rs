//! Sequence numbers (RFC 9293 section 3.4): arithmetic modulo 2^32, order within half of it.

use core::ops::{Add, AddAssign, Sub};

/// A sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Seq(pub(super) u32);

impl Seq {
    pub(super) const fn before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    pub(super) const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// The later of the two.
    pub(super) const fn latest(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// The earlier of the two.
    pub(super) const fn earliest(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }

    /// Bytes from `earlier` to `self`, 0 where `earlier` is not earlier.
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

#[cfg(test)]
mod tests {
    use super::Seq;

    #[test]
    fn order_wraps() {
        let (low, high) = (Seq(u32::MAX - 1), Seq(3));
        assert!(low.before(high) && high.after(low) && !high.before(low) && !low.before(low));
        assert_eq!(high.past(low), 5);
        assert_eq!(low.past(high), 0);
        assert_eq!((low.latest(high), high.latest(low)), (high, high));
        assert_eq!((low.earliest(high), high.earliest(low)), (low, low));
        assert_eq!((low + 5, high - 5), (high, low));
    }
}
