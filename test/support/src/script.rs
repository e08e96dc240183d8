//! Scripts: random bytes that determine the steps of a test.

/// A reader of bytes and numbers from a script.
pub struct Script<'s>(pub &'s [u8]);

impl Script<'_> {
    /// Returns the next byte, or `None` at the end of the script.
    pub fn next_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns the next byte, or zero at the end of the script.
    pub fn byte(&mut self) -> u8 {
        self.next_byte().unwrap_or(0)
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// Returns a number less than `end`, which is at most 65,536.
    pub fn below(&mut self, end: usize) -> usize {
        if end <= 256 {
            usize::from(self.byte()) % end
        } else {
            usize::from(self.u16()) % end
        }
    }
}
