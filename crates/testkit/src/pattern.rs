//! Stream contents that depend on the stream and on the position, so that no byte need be kept to be checked: a byte
//! that is lost, doubled, moved or crossed over from another stream shows at once.

use crate::rng::mix;

/// Writes the bytes of `stream` from `at` on.
pub fn fill(stream: u64, at: u64, into: &mut [u8]) {
    for (index, byte) in Bytes::new(stream, at).zip(into.iter_mut()) {
        *byte = index;
    }
}

/// The bytes of `stream` from `at` on.
#[must_use]
pub fn bytes(stream: u64, at: u64, len: usize) -> Vec<u8> {
    Bytes::new(stream, at).take(len).collect()
}

/// Where `data` first differs from the bytes of `stream` from `at` on.
#[must_use]
pub fn mismatch(stream: u64, at: u64, data: &[u8]) -> Option<u64> {
    Bytes::new(stream, at)
        .zip(data)
        .position(|(want, have)| want != *have)
        .map(|offset| at + offset as u64)
}

struct Bytes {
    stream: u64,
    at: u64,
    word: [u8; 8],
}

impl Bytes {
    fn new(stream: u64, at: u64) -> Self {
        Self {
            stream,
            at,
            word: word(stream, at / 8),
        }
    }
}

impl Iterator for Bytes {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let byte = self.word[(self.at % 8) as usize];
        self.at += 1;
        if self.at.is_multiple_of(8) {
            self.word = word(self.stream, self.at / 8);
        }
        Some(byte)
    }
}

fn word(stream: u64, index: u64) -> [u8; 8] {
    mix(mix(stream).wrapping_add(index)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_decides_the_byte() {
        let whole = bytes(7, 0, 100);
        for at in 0..90 {
            assert_eq!(bytes(7, at as u64, 10), whole[at..at + 10]);
        }
        assert_eq!(mismatch(7, 3, &whole[3..50]), None);
        assert!(mismatch(8, 3, &whole[3..50]).is_some());
        let mut wrong = whole.clone();
        wrong[40] ^= 1;
        assert_eq!(mismatch(7, 0, &wrong), Some(40));
    }
}
