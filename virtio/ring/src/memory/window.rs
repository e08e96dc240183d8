//! Implementation of [`Memory`] for one area that is mapped at one address.

use super::{Area, Memory};

/// An area of memory whose first byte has the address `origin` in descriptors.
///
/// A vhost-net link and a guest use it, because all memory that they share with the other side is one mapping.
#[derive(Clone, Copy, Debug)]
pub struct Window<A> {
    area: A,
    origin: u64,
}

impl<A: Area> Window<A> {
    /// Maps `area` at the address `origin`.
    pub const fn new(area: A, origin: u64) -> Self {
        Self { area, origin }
    }
}

impl<A: Area> Memory for Window<A> {
    type Area = A;

    fn area(&self, addr: u64, len: usize) -> Option<A> {
        let at = usize::try_from(addr.checked_sub(self.origin)?).ok()?;
        let left = self.area.len().checked_sub(at)?;
        (left > 0).then(|| self.area.slice(at, len.min(left)))
    }
}
