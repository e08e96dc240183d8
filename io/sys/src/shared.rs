//! Memory that processes share by passing its file descriptor (memfd_create(2)).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Creates a memfd of `words` zeroed 64-bit words, which every process that receives the descriptor can map. Each page
/// is allocated at its first write.
///
/// # Errors
/// Errors of memfd_create(2), ftruncate(2) and fcntl(2).
pub fn create(words: usize) -> io::Result<OwnedFd> {
    let file = memfd_create(c"pontoon", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, (words * size_of::<u64>()) as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// 64-bit words of a memfd, mapped into this process and shared with other processes.
#[derive(Debug)]
pub struct SharedWords {
    at: *mut AtomicU64,
    len: usize,
}

// SAFETY: the mapping belongs to this value, and the words in it are atomics.
unsafe impl Send for SharedWords {}
// SAFETY: the mapping belongs to this value, and the words in it are atomics.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the words of a memfd that [`create`] has made.
    ///
    /// # Errors
    /// `InvalidInput`: the file is not sealed against shrinking, so an access could raise SIGBUS. Errors of mmap(2).
    pub fn map(file: impl AsFd) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = usize::try_from(fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a null address lets the kernel choose a free range, so no memory in use is replaced.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0) }?;
        Ok(Self {
            at: at.cast(),
            len: bytes / size_of::<u64>(),
        })
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `len` words, is aligned to a page, lives as long as `self` and cannot shrink; every
        // process accesses it as atomics.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the range is what `map` has mapped, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.at.cast(), self.len * size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn mappings_of_one_memfd_share_their_words() {
        let file = create(1000).unwrap();
        let (ours, theirs) = (SharedWords::map(&file).unwrap(), SharedWords::map(&file).unwrap());
        assert_eq!(ours.len(), 1000);
        assert!(ours.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        ours[999].store(7, Ordering::Relaxed);
        assert_eq!(theirs[999].load(Ordering::Relaxed), 7);
        drop(ours);
        assert_eq!(theirs[999].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn map_refuses_memory_that_may_shrink() {
        let file = memfd_create(c"test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert_eq!(
            SharedWords::map(&file).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(ftruncate(create(8).unwrap(), 0).is_err());
    }
}
