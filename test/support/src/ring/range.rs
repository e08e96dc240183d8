//! A range of a test's memory, for implementations of `Area`.

/// A range of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    at: usize,
    len: usize,
}

impl Range {
    /// Returns the range of a whole memory of `len` bytes.
    pub fn whole(len: usize) -> Self {
        Self { at: 0, len }
    }

    /// Returns the number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns true if the range begins at a multiple of `align`.
    pub fn is_aligned(self, align: usize) -> bool {
        self.at.is_multiple_of(align)
    }

    /// Returns `len` bytes of this range from `at` on. Panics if they are not in it.
    pub fn slice(self, at: usize, len: usize) -> Self {
        assert!(
            at <= self.len && len <= self.len - at,
            "{len} bytes at {at} of {self:?}"
        );
        Self {
            at: self.at + at,
            len,
        }
    }

    /// Returns the position in the whole memory.
    pub fn position(self) -> usize {
        self.at
    }
}
