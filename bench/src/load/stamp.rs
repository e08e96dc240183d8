//! Position stamps: every block of 512 bytes of a stream begins with its position, so that the receiver
//! detects lost, duplicated and reordered bytes.

/// Bytes of a block, the distance between two stamps.
pub(crate) const BLOCK: usize = 512;

/// Bytes of a stamp: the block's position in the stream as a little-endian integer.
const STAMP: usize = 8;

/// Bytes of one send or receive call.
pub(crate) const BUFFER: usize = 256 << 10;

/// Writes the stamps into `buffer`, whose first byte has `position` in the stream. `position` must be the
/// start of a block.
pub(crate) fn stamp(buffer: &mut [u8], position: u64) {
    let positions = (position..).step_by(BLOCK);
    for (block, position) in buffer.chunks_exact_mut(BLOCK).zip(positions) {
        block[..STAMP].copy_from_slice(&position.to_le_bytes());
    }
}

/// The receiver of a stamped stream, which checks every stamp.
pub(crate) struct StampChecker {
    /// Received bytes, from the start of a block on. If the last stamp is incomplete, its first bytes are at
    /// the front.
    buffer: Vec<u8>,
    position: u64,
}

impl StampChecker {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; BLOCK + BUFFER],
            position: 0,
        }
    }

    /// Returns the number of bytes that were checked.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the free part of the buffer, for the next bytes of the stream.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let at = self.within_block();
        &mut self.buffer[at..at + BUFFER]
    }

    /// Checks the stamps in the next `len` bytes of the buffer.
    ///
    /// # Errors
    /// The position of the first block with a wrong stamp.
    pub(crate) fn check(&mut self, len: usize) -> Result<(), u64> {
        let at = self.within_block();
        let end = at + len;
        let start = self.position - at as u64;
        let blocks = self.buffer[..end].chunks(BLOCK).zip((start..).step_by(BLOCK));
        // The stamp of the first block was checked when it was completed.
        for (block, position) in blocks.skip(usize::from(at >= STAMP)) {
            if let Some(stamp) = block.first_chunk::<STAMP>()
                && u64::from_le_bytes(*stamp) != position
            {
                return Err(position);
            }
        }
        self.position += len as u64;
        let begun = self.within_block();
        if begun < STAMP {
            self.buffer.copy_within(end - begun..end, 0);
        }
        Ok(())
    }

    fn within_block(&self) -> usize {
        self.position as usize % BLOCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks `stream` in slices of the given lengths, in turn.
    fn check(stream: &[u8], lengths: &[usize]) -> Result<(), u64> {
        let mut checker = StampChecker::new();
        let mut rest = stream;
        for length in lengths.iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(*length));
            checker.room()[..piece.len()].copy_from_slice(piece);
            checker.check(piece.len())?;
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        assert_eq!(checker.position(), stream.len() as u64);
        Ok(())
    }

    fn stream(blocks: usize) -> Vec<u8> {
        let mut stream = vec![0xaa; blocks * BLOCK];
        stamp(&mut stream, 0);
        stream
    }

    #[test]
    fn slices_of_any_length_are_accepted() {
        let stream = stream(40);
        for length in 1..1100 {
            check(&stream, &[length]).unwrap();
            check(&stream, &[length, 3, 509, 1]).unwrap();
        }
        check(&super::tests::stream(2000), &[BUFFER, 100]).unwrap();
    }

    #[test]
    fn wrong_byte_of_any_stamp_is_detected() {
        for block in 0..40 {
            for byte in 0..STAMP {
                let mut stream = stream(40);
                stream[block * BLOCK + byte] ^= 1;
                for length in [1, 7, 8, 9, 511, 512, 513, 5000] {
                    assert_eq!(check(&stream, &[length]), Err((block * BLOCK) as u64));
                }
            }
        }
    }

    #[test]
    fn lost_duplicated_and_reordered_blocks_are_detected() {
        let whole = stream(10);
        let lost = [&whole[..1000], &whole[1100..]].concat();
        assert_eq!(check(&lost, &[700]), Err(1024));
        let doubled = [&whole[..2048], &whole[1024..]].concat();
        assert_eq!(check(&doubled, &[700]), Err(2048));
        let swapped = [&whole[512..1024], &whole[..512]].concat();
        assert_eq!(check(&swapped, &[700]), Err(0));
    }
}
