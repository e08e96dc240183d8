//! The log of dirty pages, by which a migration finds the pages of guest memory that it has to copy again.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::guard::MappingGuard;

/// The dirty log: one bit for each page of guest memory, in memory shared with the front-end, which clears the bits.
#[derive(Debug)]
pub(crate) struct DirtyLog {
    /// Protection of `map` against SIGBUS. It is declared before `map`, so that it is dropped first.
    guard: MappingGuard,
    map: MmapRegion,
    begin: usize,
    len: usize,
}

/// Bytes of guest memory per bit (VHOST_LOG_PAGE).
const PAGE: u64 = 4096;

impl DirtyLog {
    /// Maps a log of `size` bytes at `offset` of `file`.
    ///
    /// # Errors
    /// The file is too short, or cannot be mapped.
    pub(crate) fn new(size: u64, offset: u64, file: OwnedFd) -> io::Result<Self> {
        let end = offset.checked_add(size).filter(|_| size > 0);
        let file_len = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        let end = end.filter(|end| *end <= file_len).ok_or_else(|| {
            io::Error::other(format!(
                "a log of {size:#x} bytes at {offset:#x} in a file of {file_len:#x} bytes"
            ))
        })?;
        let [begin, len, end] =
            [offset, size, end].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let map =
            MmapRegion::from_file(FileOffset::new(File::from(file), 0), end).map_err(io::Error::other)?;
        let guard = MappingGuard::new(&map)?;
        Ok(Self {
            guard,
            map,
            begin,
            len,
        })
    }

    /// Marks the pages of `len` written bytes at the guest address `address`. Pages behind the end of the log are
    /// ignored.
    fn mark(&self, address: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = address.saturating_add(len - 1) / PAGE;
        for page in address / PAGE..=last {
            let Some(at) = usize::try_from(page / 8).ok().filter(|at| *at < self.len) else {
                return;
            };
            if let Ok(byte) = self.map.get_atomic_ref::<AtomicU8>(self.begin + at) {
                // Release ordering: a front-end that clears the bit copies afterwards the bytes that were written
                // before it was set.
                byte.fetch_or(1 << (page % 8), Ordering::Release);
            }
        }
    }

    /// Returns true if the file of the log was truncated.
    pub(crate) fn has_faulted(&self) -> bool {
        self.guard.has_faulted()
    }
}

/// The dirty log as one ring uses it.
#[derive(Clone, Debug)]
pub(crate) struct RingLog {
    pub(crate) log: Arc<DirtyLog>,
    /// Guest-physical address and length of the used ring, if writes to it are logged.
    pub(crate) used: Option<(u64, u64)>,
}

impl RingLog {
    /// Marks the pages of a buffer to which `len` bytes were written.
    pub(crate) fn mark_buffer(&self, address: u64, len: usize) {
        self.log.mark(address, len as u64);
    }

    /// Marks all pages of the used ring, which are one or two.
    pub(crate) fn mark_used_ring(&self) {
        if let Some((address, len)) = self.used {
            self.log.mark(address, len);
        }
    }
}
