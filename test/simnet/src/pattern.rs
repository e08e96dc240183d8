//! Stream contents as a function of stream number and position, so that bytes are checked without being stored: a
//! byte that is lost, duplicated, moved or from another stream is detected at once.

use crate::rng::mix;

/// Fills `into` with the bytes of stream `stream` from position `at` on.
pub fn fill(stream: u64, at: u64, into: &mut [u8]) {
    into.copy_from_slice(&bytes(stream, at, into.len()));
}

/// Returns `len` bytes of stream `stream` from position `at` on.
#[must_use]
pub fn bytes(stream: u64, at: u64, len: usize) -> Vec<u8> {
    let (first, skip) = (at / 8, (at % 8) as usize);
    let words = (skip + len).div_ceil(8);
    let mut bytes = Vec::with_capacity(8 * words);
    for index in first..first + words as u64 {
        bytes.extend(word(stream, index));
    }
    bytes.truncate(skip + len);
    bytes.drain(..skip);
    bytes
}

/// Returns the first offset at which `data` differs from the bytes of stream `stream` from position `at` on.
#[must_use]
pub fn mismatch(stream: u64, at: u64, data: &[u8]) -> Option<u64> {
    let wanted = bytes(stream, at, data.len());
    if wanted == data {
        return None;
    }
    let differ = wanted.iter().zip(data).position(|(want, have)| want != have);
    differ.map(|offset| at + offset as u64)
}

fn word(stream: u64, index: u64) -> [u8; 8] {
    mix(mix(stream).wrapping_add(index)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_depends_on_stream_and_position() {
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
