//! Bytes as a script: whatever a fuzzer or a property test comes up with says what happens next.

/// Reads numbers off a script.
pub struct Script<'s>(pub &'s [u8]);

impl Script<'_> {
    /// The next byte, until there is none.
    pub fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte, or zero.
    pub fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// A number below `end`, which is at most 65,536.
    pub fn below(&mut self, end: usize) -> usize {
        if end <= 256 {
            usize::from(self.byte()) % end
        } else {
            usize::from(self.u16()) % end
        }
    }
}
