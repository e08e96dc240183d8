//! The log of dirty pages: what a migration still has to copy.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::guard::Watch;

/// One bit for each page of the guest's memory, in memory that the front-end clears.
#[derive(Debug)]
pub(crate) struct Log {
    /// First: it ends before the mapping does.
    watch: Watch,
    map: MmapRegion,
    begin: usize,
    len: usize,
}

/// Bytes that one bit stands for (VHOST_LOG_PAGE).
const PAGE: u64 = 4096;

impl Log {
    /// Maps a log of `size` bytes at `offset` in `file`.
    ///
    /// # Errors
    /// The file is shorter, or cannot be mapped.
    pub(crate) fn new(size: u64, offset: u64, file: OwnedFd) -> io::Result<Self> {
        let end = offset.checked_add(size).filter(|_| size > 0);
        let file_len = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        let end = end.filter(|end| *end <= file_len).ok_or_else(|| {
            io::Error::other(format!(
                "a log of {size:#x} at {offset:#x} in a file of {file_len:#x}"
            ))
        })?;
        let [begin, len, end] =
            [offset, size, end].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let map =
            MmapRegion::from_file(FileOffset::new(File::from(file), 0), end).map_err(io::Error::other)?;
        let watch = Watch::new(&map)?;
        Ok(Self {
            watch,
            map,
            begin,
            len,
        })
    }

    /// Marks the `len` bytes at the guest's `address`, which have been written. What the log has no bit for is left out.
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
                // Release: whoever clears the bit copies what was written before it was set.
                byte.fetch_or(1 << (page % 8), Ordering::Release);
            }
        }
    }

    /// Whether a part of it has been lost.
    pub(crate) fn is_broken(&self) -> bool {
        self.watch.is_broken()
    }
}

/// What one ring writes to the log.
#[derive(Clone, Debug)]
pub(crate) struct RingLog {
    pub(crate) log: Arc<Log>,
    /// The guest's address of the used ring, if writes to that are logged too, and its bytes.
    pub(crate) used: Option<(u64, u64)>,
}

impl RingLog {
    /// Marks what was written to a buffer.
    pub(crate) fn wrote(&self, address: u64, len: usize) {
        self.log.mark(address, len as u64);
    }

    /// Marks the used ring, all of it: it has a page or two.
    pub(crate) fn wrote_used(&self) {
        if let Some((address, len)) = self.used {
            self.log.mark(address, len);
        }
    }
}
