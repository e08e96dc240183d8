//! Memory that a process shares with the children that it forks later.

use std::io;
use std::sync::atomic::AtomicU64;

/// Maps `count` zeroed 64-bit words that the process shares with every child that it forks afterwards (`MAP_SHARED`).
/// The memory exists until the last of these processes exits; each page is allocated at its first access.
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

/// Sets whether children that are forked later inherit the memory that [`words`] returned (`MADV_DOFORK`), or do not have
/// it at all (`MADV_DONTFORK`).
///
/// # Errors
/// Errors of madvise(2).
pub fn set_inherited(words: &'static [AtomicU64], inherited: bool) -> io::Result<()> {
    let advice = if inherited {
        libc::MADV_DOFORK
    } else {
        libc::MADV_DONTFORK
    };
    let start = words.as_ptr().cast_mut().cast();
    // SAFETY: the advice changes neither the contents nor the mapping of this process, and a forked child that lacks the
    // mapping does not use the reference: a fork of the supervisor runs the code of one child only, which does not have it.
    match unsafe { libc::madvise(start, size_of_val(words), advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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
    fn words_that_are_not_inherited_are_absent_in_children() {
        let words = words(512).unwrap();
        let mapped_in_child = |inherited| {
            set_inherited(words, inherited).unwrap();
            let (start, len) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
            // SAFETY: the child makes two system calls only, which is permitted in a child of a process with threads.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // msync(2) fails with ENOMEM for memory that is not mapped.
                // SAFETY: MS_ASYNC changes nothing, and _exit ends the process.
                unsafe { libc::_exit(i32::from(libc::msync(start, len, libc::MS_ASYNC) == 0)) }
            }
            let mut status = 0;
            // SAFETY: `status` is valid for the duration of the call.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            libc::WEXITSTATUS(status)
        };
        assert_eq!(mapped_in_child(false), 0);
        assert_eq!(mapped_in_child(true), 1);
    }

    #[test]
    fn words_refuses_a_mapping_of_zero_words() {
        assert_eq!(words(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
