//! Arithmetic of ring indices: free-running 16-bit counters of entries, and a power of two of slots.
//!
//! An index counts entries from the beginning and wraps at 65,536 (virtio 1.2, section 2.7.13.3). The queue size is at
//! most 32,768, so that the indices of a full ring and an empty one differ. All wrapping arithmetic of the crate is in
//! this file.

/// Position of an entry in a ring, counted from the beginning of the queue, modulo 65,536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index(u16);

impl Index {
    pub(crate) const fn new(index: u16) -> Self {
        Self(index)
    }

    pub(crate) const fn get(self) -> u16 {
        self.0
    }

    /// Returns the position that is `entries` entries later.
    pub(crate) const fn forward(self, entries: u16) -> Self {
        Self(self.0.wrapping_add(entries))
    }

    /// Returns the position that is `entries` entries earlier.
    pub(crate) const fn back(self, entries: u16) -> Self {
        Self(self.0.wrapping_sub(entries))
    }

    /// Returns the number of entries from this position to `end`, which is not earlier.
    pub(crate) const fn until(self, end: Self) -> u16 {
        end.0.wrapping_sub(self.0)
    }

    /// Returns true if an index that advances from this position to `end` passes the entry at `event`, so that a peer
    /// that has requested a notification for that entry must be notified (virtio 1.2, section 2.7.7.2, 2.7.10.1).
    pub(crate) const fn passes(self, end: Self, event: Self) -> bool {
        self.until(event) < self.until(end)
    }

    /// Returns the index of the slot that contains the entry.
    pub(crate) const fn slot(self, size: Size) -> u16 {
        self.0 & (size.0 - 1)
    }
}

/// Number of slots of a ring: a power of two, 1 to 32,768 (virtio 1.2, section 2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(u16);

impl Size {
    pub(crate) const fn new(size: u16) -> Option<Self> {
        // The largest power of two in a u16 is 32,768.
        if size.is_power_of_two() {
            Some(Self(size))
        } else {
            None
        }
    }

    pub(crate) const fn get(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests;
