//! Memory that a process has in common with those that it forks.

use std::io;
use std::sync::atomic::AtomicU64;

/// Words that are zero, shared with every child that is forked from here on (`MAP_SHARED`), for as long as any of them
/// lives. Words that nobody writes take no memory.
///
/// # Errors
/// Out of memory or address space.
pub fn words(count: usize) -> io::Result<&'static [AtomicU64]> {
    let bytes = count
        .checked_mul(size_of::<AtomicU64>())
        .filter(|bytes| *bytes > 0)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at a place of the kernel's choice, touches no memory of ours.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is `bytes` long, page-aligned and zeroed, zero is a value of AtomicU64, and whoever writes
    // to it, in this process or another, does so atomically. It is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), count) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn begins_with_zeroes() {
        let words = words(10_000).unwrap();
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[9_999].store(7, Ordering::Relaxed);
        assert_eq!(words[9_999].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn nothing_cannot_be_mapped() {
        assert_eq!(words(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
