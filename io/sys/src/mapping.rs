//! Anonymous memory that the kernel may read and write at any time, for example the buffers of vhost-net.

use std::io;
use std::ptr::NonNull;

use vm_memory::VolatileSlice;

/// Zeroed anonymous pages of this process, unmapped when dropped. No Rust reference to the bytes is created, as the
/// kernel may change them at any time.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to the process, not to a thread, and are accessed only by volatile or atomic operations
// (`VolatileSlice`) or by the kernel.
unsafe impl Send for Mapping {}
// SAFETY: as above; base and length never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` zeroed bytes.
    ///
    /// # Errors
    /// `InvalidInput`: `len` is zero. `OutOfMemory` and other errors of mmap(2).
    pub fn new(len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // The kernel maps nothing at address 0 unless MAP_FIXED asks for it.
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Returns a volatile slice of the whole mapping.
    #[must_use]
    pub fn whole(&self) -> VolatileSlice<'_> {
        // SAFETY: `len` bytes at `base` are mapped, readable and writable, until this is dropped, which the slice's
        // lifetime ends before; all accesses are volatile, by the type returned here, or the kernel's.
        unsafe { VolatileSlice::new(self.base.as_ptr(), self.len) }
    }

    /// Returns the address of the mapping's first byte in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// Returns the number of mapped bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false, as a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `new` has mapped, and nothing borrows it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_is_zeroed_and_writable() {
        let mapping = Mapping::new(8192).unwrap();
        let last = mapping.whole().subslice(8190, 2).unwrap();
        let mut bytes = [9_u8; 2];
        last.copy_to(&mut bytes);
        assert_eq!(bytes, [0, 0]);
        last.copy_from(&[1_u8, 2]);
        mapping.whole().offset(8190).unwrap().copy_to(&mut bytes);
        assert_eq!(bytes, [1, 2]);
        assert_eq!(mapping.address() % 4096, 0);
    }

    #[test]
    fn new_refuses_a_mapping_of_zero_bytes() {
        assert_eq!(Mapping::new(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
