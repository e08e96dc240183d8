//! Strings between C and Rust.

use core::ffi::{CStr, c_char};

use crate::call::Failure;

/// Returns the string at `text`.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero byte and is not changed during `'a`.
pub(crate) unsafe fn read<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid("a string is null"));
    }
    // SAFETY: the caller promises it (section Safety).
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Failure::invalid("a string is not UTF-8"))
}

/// Writes a string with a zero byte at its end to a buffer. Returns its length without that byte.
///
/// # Errors
/// The buffer is null or too short; nothing is written.
///
/// # Safety
/// `buffer` is null, or `size` bytes at it can be written.
pub(crate) unsafe fn write(text: &str, buffer: *mut c_char, size: usize) -> Result<usize, Failure> {
    if buffer.is_null() || text.len() >= size {
        return Err(Failure::invalid(format!(
            "the buffer has {size} bytes, and the text needs {}",
            text.len() + 1
        )));
    }
    // SAFETY: the caller promises that the buffer can be written, and the text and the zero byte are not longer than it.
    unsafe {
        buffer
            .cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(text.len())
}

/// Copies a string to an array, truncated to its size, with a zero byte at its end.
pub(crate) fn fill<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(text.bytes().take(N.saturating_sub(1))) {
        *to = c_char::from_ne_bytes([from]);
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_truncated_before_the_zero_byte() {
        let array: [c_char; 4] = fill("abcdef");
        assert_eq!(array.map(|letter| letter as u8), *b"abc\0");
        assert_eq!(fill::<4>("a").map(|letter| letter as u8), *b"a\0\0\0");
    }

    #[test]
    fn buffer_that_is_too_short_is_refused() {
        let mut buffer = [1 as c_char; 4];
        // SAFETY: the sizes are those of the buffer, or less.
        unsafe {
            assert!(write("abcd", buffer.as_mut_ptr(), 4).is_err());
            assert_eq!(buffer, [1; 4]);
            assert_eq!(write("abc", buffer.as_mut_ptr(), 4).unwrap(), 3);
            assert!(write("", core::ptr::null_mut(), 4).is_err());
        }
        assert_eq!(buffer.map(|letter| letter as u8), *b"abc\0");
    }
}
