//! The memory of an attached interface.

use std::io;
use std::ptr::NonNull;
use std::vec::Vec;

use pontoon_ring::Layout;
use pontoon_ring::memory::{Memory, Raw, Window};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::{VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// Address of the first byte, as the device knows it: so that zero is no address.
pub(super) const ORIGIN: u64 = 1 << 20;

/// The memory of an attached interface: a file that the device maps too.
#[derive(Debug)]
pub struct Mapping {
    window: Window<Raw<'static>>,
    /// What the window is of, until both are dropped.
    memory: GuestMemoryMmap,
}

impl Mapping {
    /// Maps `len` bytes of a new file.
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
        // SAFETY: `len` bytes at `base` are one mapping, readable and writable, until `memory` is dropped; the window is
        // private to this type, and what it gives out goes only to the interface that owns this, which keeps none of it
        // from one call to the next. This process accesses the memory through nothing else, and from one thread at a
        // time, as an interface's methods want it for themselves.
        let raw = unsafe { Raw::new(base, len) };
        Ok(Self {
            window: Window::new(raw, ORIGIN),
            memory,
        })
    }

    /// What the device is to be told of the memory.
    pub(super) fn regions(&self) -> Result<Vec<VhostUserMemoryRegionInfo>, vhost::Error> {
        self.memory
            .iter()
            .map(VhostUserMemoryRegionInfo::from_guest_region)
            .collect()
    }

    /// Where a ring lies, by addresses of this process.
    pub(super) fn place(&self, layout: Layout) -> io::Result<VringConfigData> {
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
