//! The guest's memory: mappings of the files that the front-end has sent.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_ring::memory::Memory;
use vm_memory::{
    Address, FileOffset, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MmapRegion, VolatileMemory,
    VolatileSlice,
};

use crate::guard::MappingGuard;
use crate::message::RegionDescription;

/// Limit on the number of memory regions, the reply to VHOST_USER_GET_MAX_MEM_SLOTS.
pub(crate) const MAX_REGIONS: usize = 64;

/// Limit on the memory that is mapped for one guest, in bytes: 8 TiB, or a fourth of the address space if that is less
/// ([`most_mapped`]). While a table is replaced, both the old and the new one are mapped, and at the change of guests
/// the memory of several guests. The rest of the address space (128 TiB on x86-64) remains for allocations of the
/// process.
const MAX_MAPPED: u64 = 1 << 43;

/// All regions of the guest's memory. A table is immutable; a change creates another table.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryTable {
    /// Regions in the order in which they were added; they are not sorted by address, because there are few.
    regions: Vec<Arc<MappedRegion>>,
}

/// Reason why a memory region is refused. Addresses and lengths are in bytes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("empty memory region at {0:#x}")]
    Empty(u64),
    #[error(
        "memory region of {size:#x} bytes at {guest:#x}, {user:#x}, {offset:#x} exceeds the address space"
    )]
    Overflow {
        guest: u64,
        user: u64,
        offset: u64,
        size: u64,
    },
    #[error("memory region at {0:#x} overlaps another one")]
    Overlap(u64),
    #[error("more than {MAX_REGIONS} memory regions")]
    TooMany,
    #[error("more than {0:#x} bytes of memory, the limit for one guest in this address space")]
    TooLarge(u64),
    #[error("memory region at {guest:#x} ends at {end:#x} in a file of {len:#x} bytes")]
    Short { guest: u64, end: u64, len: u64 },
    #[error("cannot map memory region at {guest:#x}: {error}")]
    Map { guest: u64, error: io::Error },
}

impl MemoryTable {
    /// Creates a table that maps all of `regions`.
    ///
    /// # Errors
    /// A region is invalid or cannot be mapped.
    pub(crate) fn new(
        regions: impl IntoIterator<Item = (RegionDescription, OwnedFd)>,
    ) -> Result<Self, MemoryError> {
        regions
            .into_iter()
            .try_fold(Self::default(), |table, (region, file)| table.with(region, file))
    }

    /// Creates a table of memory that a VMM in this process has mapped, which is never truncated.
    ///
    /// # Errors
    /// The memory has more than [`MAX_REGIONS`] regions.
    pub(crate) fn in_process(memory: &GuestMemoryMmap) -> Result<Self, MemoryError> {
        if memory.num_regions() > MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        let mapped = |region: &vm_memory::GuestRegionMmap| {
            let guest = region.start_addr().raw_value();
            let described = RegionDescription {
                guest,
                size: region.len(),
                user: guest,
                offset: 0,
            };
            Arc::new(MappedRegion {
                region: described,
                guard: None,
                map: region.get_mmap(),
                begin: 0,
            })
        };
        let regions = memory.iter().map(mapped).collect();
        Ok(Self { regions })
    }

    /// Returns a table with `region`, mapped from `file`, in addition. An identical region is replaced: QEMU 7.2 adds a
    /// region once for each queue pair.
    ///
    /// # Errors
    /// The region overlaps another one, exceeds its file, or cannot be mapped.
    pub(crate) fn with(mut self, region: RegionDescription, file: OwnedFd) -> Result<Self, MemoryError> {
        self.regions.retain(|mapped| mapped.region != region);
        if self.regions.len() == MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        check(&region)?;
        if self.regions.iter().any(|other| overlap(&other.region, &region)) {
            return Err(MemoryError::Overlap(region.guest));
        }
        // A region is mapped from its file's first byte.
        let mapped = |region: &RegionDescription| region.offset + region.size;
        let regions = self.regions.iter().map(|mapped| &mapped.region);
        let others = regions.map(mapped).fold(0, u64::saturating_add);
        let most = most_mapped(std::ptr::from_ref(&others).addr());
        if others.saturating_add(mapped(&region)) > most {
            return Err(MemoryError::TooLarge(most));
        }
        self.regions.push(Arc::new(MappedRegion::new(region, file)?));
        Ok(self)
    }

    /// Returns a table without the region that has the guest address, user address and size of `region`. If there is
    /// none, nothing changes: QEMU 7.2 removes a region once for each queue pair.
    pub(crate) fn without(mut self, region: &RegionDescription) -> Self {
        let named = |region: &RegionDescription| (region.guest, region.user, region.size);
        self.regions
            .retain(|mapped| named(&mapped.region) != named(region));
        self
    }

    /// Converts a virtual address of the front-end into a guest-physical address; `None` if it is in no region.
    pub(crate) fn guest_address(&self, user: u64) -> Option<u64> {
        self.regions.iter().find_map(|mapped| {
            let RegionDescription {
                guest,
                size,
                user: base,
                ..
            } = mapped.region;
            let at = user.checked_sub(base)?;
            (at < size).then(|| guest + at)
        })
    }

    /// Returns true if the file of a region was truncated.
    pub(crate) fn has_faulted(&self) -> bool {
        self.regions
            .iter()
            .filter_map(|mapped| mapped.guard.as_ref())
            .any(MappingGuard::has_faulted)
    }
}

impl<'m> Memory for &'m MemoryTable {
    type Area = VolatileSlice<'m>;

    fn area(&self, addr: u64, len: usize) -> Option<VolatileSlice<'m>> {
        let table: &'m MemoryTable = self;
        table.regions.iter().find_map(|mapped| {
            let at = addr.wrapping_sub(mapped.region.guest);
            let left = mapped.region.size.checked_sub(at).filter(|left| *left > 0)?;
            // Both values are at most the mapping's length, which is a usize.
            mapped
                .map
                .get_slice(mapped.begin + at as usize, len.min(left as usize))
                .ok()
        })
    }
}

/// One region of guest memory and its mapping.
#[derive(Debug)]
struct MappedRegion {
    region: RegionDescription,
    /// Protection of `map` against SIGBUS. It is declared before `map`, so that it is dropped first.
    guard: Option<MappingGuard>,
    map: Arc<MmapRegion>,
    /// Offset of the region's first byte in the mapping.
    begin: usize,
}

impl MappedRegion {
    fn new(region: RegionDescription, file: OwnedFd) -> Result<Self, MemoryError> {
        let guest = region.guest;
        let failed = |error| MemoryError::Map { guest, error };
        let stat = rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?;
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        // The function `check` has excluded an overflow.
        let end = region.offset + region.size;
        if end > len {
            return Err(MemoryError::Short { guest, end, len });
        }
        // The file is mapped from its first byte, as the specification's own back-end does: with pages of 2 MiB an
        // offset need not be a multiple of the page size. The end is rounded up to a page of that size, because munmap
        // requires it.
        let page = u64::try_from(stat.st_blksize).unwrap_or(0).max(1);
        let mapped = end.next_multiple_of(page).min(len);
        let (Ok(begin), Ok(mapped)) = (usize::try_from(region.offset), usize::try_from(mapped)) else {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        };
        let map = MmapRegion::from_file(FileOffset::new(File::from(file), 0), mapped)
            .map_err(|error| failed(io::Error::other(error)))?;
        let guard = MappingGuard::new(&map).map_err(failed)?;
        Ok(Self {
            region,
            guard: Some(guard),
            map: Arc::new(map),
            begin,
        })
    }
}

/// Returns the limit on the memory that is mapped for one guest. `stack` is an address of the stack, which Linux places
/// in the upper half of the address space. For another placement, the result would be too low, never too high.
fn most_mapped(stack: usize) -> u64 {
    let space = (stack as u64).checked_next_power_of_two().unwrap_or(u64::MAX);
    MAX_MAPPED.min(space / 4)
}

/// Checks that the sums of the region's addresses and lengths do not overflow.
fn check(region: &RegionDescription) -> Result<(), MemoryError> {
    let &RegionDescription {
        guest,
        size,
        user,
        offset,
    } = region;
    if size == 0 {
        return Err(MemoryError::Empty(guest));
    }
    // mmap accepts file offsets up to i64::MAX only.
    let most = i64::MAX as u64;
    let fits = guest.checked_add(size).is_some()
        && user.checked_add(size).is_some()
        && offset.checked_add(size).is_some_and(|end| end <= most);
    if !fits {
        return Err(MemoryError::Overflow {
            guest,
            user,
            offset,
            size,
        });
    }
    Ok(())
}

fn overlap(one: &RegionDescription, other: &RegionDescription) -> bool {
    let within = |a: u64, b: u64| a < b + other.size && b < a + one.size;
    within(one.guest, other.guest) || within(one.user, other.user)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// A region at `guest` of `size` bytes of a sparse file, from `offset` on.
    fn region(guest: u64, offset: u64, size: u64) -> (RegionDescription, OwnedFd) {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, offset + size).unwrap();
        let region = RegionDescription {
            guest,
            size,
            user: guest,
            offset,
        };
        (region, file)
    }

    #[test]
    fn mapped_memory_is_bounded_by_a_fourth_of_a_small_address_space() {
        // Stacks below the end of an address space of 256 TiB (aarch64), 128 TiB (x86-64) and 256 GiB (39-bit
        // addresses).
        assert_eq!(most_mapped(0xffff_f000_0000), MAX_MAPPED);
        assert_eq!(most_mapped(0x7ffc_1234_5678), MAX_MAPPED);
        assert_eq!(most_mapped(0x3f_ff12_3456), 64 << 30);
    }

    #[test]
    fn mapped_memory_is_bounded() {
        let half = MAX_MAPPED / 2;
        let table = MemoryTable::new([region(0, 0, half), region(half, half - 4096, 4096)]).unwrap();
        for (large, file) in [region(MAX_MAPPED, 0, 4096), region(MAX_MAPPED, half, half)] {
            let error = table.clone().with(large, file).unwrap_err();
            assert!(matches!(error, MemoryError::TooLarge(MAX_MAPPED)), "{error}");
        }
        // A region that is removed leaves its room to another.
        let (first, _) = region(0, 0, half);
        let (other, file) = region(MAX_MAPPED, 0, half);
        table.without(&first).with(other, file).unwrap();
    }
}
