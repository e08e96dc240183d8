//! The memory that an attached interface shares with the device.

use std::io;
use std::ptr::NonNull;
use std::vec::Vec;

use pontoon_ring::Layout;
use pontoon_ring::memory::{Memory, Raw, Window};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::{VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// Address of the first byte in the descriptors; it is not zero, so that address 0 is invalid.
pub(super) const ORIGIN: u64 = 1 << 20;

/// The memory of an attached interface: a memfd that the device maps, too.
#[derive(Debug)]
pub struct Mapping {
    window: Window<Raw<'static>>,
    /// The mapping to which `window` refers.
    memory: GuestMemoryMmap,
}

impl Mapping {
    /// Creates a memfd of `len` bytes and maps it.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let file = memfd_create("pontoon-guest", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        let file = FileOffset::new(file.into(), 0);
        let memory: GuestMemoryMmap =
            GuestMemoryMmap::from_ranges_with_files([(GuestAddress(ORIGIN), len, Some(file))])
                .map_err(io::Error::other)?;
        let base = memory
            .get_host_address(GuestAddress(ORIGIN))
            .map_err(io::Error::other)?;
        let base = NonNull::new(base).ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: `len` bytes at `base` are one mapping, readable and writable, until `memory` is dropped. The window
        // is private to this type, and its areas go only to the interface that owns this value, which keeps none of
        // them from one call to the next. This process accesses the memory only through them, and from one thread at a
        // time, since the interface's methods take `&mut self`.
        let raw = unsafe { Raw::new(base, len) };
        Ok(Self {
            window: Window::new(raw, ORIGIN),
            memory,
        })
    }

    /// Returns the description of the memory that the device receives (SET_MEM_TABLE).
    pub(super) fn regions(&self) -> Result<Vec<VhostUserMemoryRegionInfo>, vhost::Error> {
        self.memory
            .iter()
            .map(VhostUserMemoryRegionInfo::from_guest_region)
            .collect()
    }

    /// Returns the configuration of a ring for the device, with addresses of this process.
    pub(super) fn vring_config(&self, layout: Layout) -> io::Result<VringConfigData> {
        let host = |guest| {
            let host = self.memory.get_host_address(GuestAddress(guest));
            host.map(|host| host.addr() as u64).map_err(io::Error::other)
        };
        Ok(VringConfigData {
            queue_max_size: layout.size,
            queue_size: layout.size,
            flags: 0,
            desc_table_addr: host(layout.descriptors)?,
            used_ring_addr: host(layout.used)?,
            avail_ring_addr: host(layout.available)?,
            log_addr: None,
        })
    }
}

impl Memory for Mapping {
    type Area = Raw<'static>;

    fn area(&self, addr: u64, len: usize) -> Option<Raw<'static>> {
        self.window.area(addr, len)
    }
}
