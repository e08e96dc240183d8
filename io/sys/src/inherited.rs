//! Memory that a process shares with the children that it forks later.

use std::io;
use std::sync::atomic::AtomicU64;

/// Maps `count` zeroed 64-bit words that the process shares with every child that it forks afterwards (`MAP_SHARED`).
/// The memory exists until the last of these processes exits; each page is allocated at its first write.
///
/// # Errors
/// Errors of mmap(2), for example ENOMEM; `count` is zero or too large.
pub fn words(count: usize) -> io::Result<&'static [AtomicU64]> {
    let bytes = count
        .checked_mul(size_of::<AtomicU64>())
        .filter(|bytes| *bytes > 0)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at an address of the kernel's choice, replaces no memory in use.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is `bytes` long, page-aligned and zeroed, zero is a value of AtomicU64, and every process accesses
    // it atomically. It is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), count) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_zero() {
        let words = words(10_000).unwrap();
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[9_999].store(7, Ordering::Relaxed);
        assert_eq!(words[9_999].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn words_refuses_a_mapping_of_zero_words() {
        assert_eq!(words(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
