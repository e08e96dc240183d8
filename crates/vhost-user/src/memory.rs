//! The guest's memory: files of the front-end's, mapped.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_ring::memory::Memory;
use vm_memory::{
    Address, FileOffset, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MmapRegion, VolatileMemory,
    VolatileSlice,
};

use crate::guard::Watch;
use crate::message::Region;

/// Parts of the guest's memory at a time: VHOST_USER_GET_MAX_MEM_SLOTS.
pub(crate) const MAX_REGIONS: usize = 64;

/// All of the guest's memory. It never changes; another table takes its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// By use rather than address: there are few.
    regions: Vec<Arc<Mapped>>,
}

/// Why memory was refused. Addresses and lengths are in bytes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("memory of no bytes at {0:#x}")]
    Empty(u64),
    #[error(
        "{size:#x} bytes of memory at {guest:#x}, {user:#x}, {offset:#x} pass the end of the address space"
    )]
    Overflow {
        guest: u64,
        user: u64,
        offset: u64,
        size: u64,
    },
    #[error("memory at {0:#x} overlaps other memory")]
    Overlap(u64),
    #[error("more than {MAX_REGIONS} regions of memory")]
    TooMany,
    #[error("memory at {guest:#x} ends at {end:#x} in a file of {len:#x}")]
    Short { guest: u64, end: u64, len: u64 },
    #[error("memory at {guest:#x} cannot be mapped: {error}")]
    Map { guest: u64, error: io::Error },
}

impl Table {
    /// Maps all of `regions`.
    ///
    /// # Errors
    /// One of them cannot be.
    pub(crate) fn new(regions: impl IntoIterator<Item = (Region, OwnedFd)>) -> Result<Self, Refused> {
        regions
            .into_iter()
            .try_fold(Self::default(), |table, (region, file)| table.with(region, file))
    }

    /// Memory that is mapped already, by a VMM in this process. Nobody cuts it off.
    ///
    /// # Errors
    /// It is in too many regions.
    pub(crate) fn in_process(memory: &GuestMemoryMmap) -> Result<Self, Refused> {
        if memory.num_regions() > MAX_REGIONS {
            return Err(Refused::TooMany);
        }
        let mapped = |region: &vm_memory::GuestRegionMmap| {
            let guest = region.start_addr().raw_value();
            let described = Region {
                guest,
                size: region.len(),
                user: guest,
                offset: 0,
            };
            Arc::new(Mapped {
                region: described,
                watch: None,
                map: region.get_mmap(),
                begin: 0,
            })
        };
        let regions = memory.iter().map(mapped).collect();
        Ok(Self { regions })
    }

    /// This memory and `region`, which is mapped from `file`. One that is there already is mapped anew: QEMU 7.2 says it
    /// once for each pair of queues.
    ///
    /// # Errors
    /// It overlaps what is there, is not all in its file, or cannot be mapped.
    pub(crate) fn with(mut self, region: Region, file: OwnedFd) -> Result<Self, Refused> {
        self.regions.retain(|mapped| mapped.region != region);
        if self.regions.len() == MAX_REGIONS {
            return Err(Refused::TooMany);
        }
        check(&region)?;
        if self.regions.iter().any(|other| overlap(&other.region, &region)) {
            return Err(Refused::Overlap(region.guest));
        }
        self.regions.push(Arc::new(Mapped::new(region, file)?));
        Ok(self)
    }

    /// This memory without `region`, which its guest and user addresses and its size name. QEMU 7.2 takes it away once for
    /// each pair of queues, too.
    pub(crate) fn without(mut self, region: &Region) -> Self {
        let named = |region: &Region| (region.guest, region.user, region.size);
        self.regions
            .retain(|mapped| named(&mapped.region) != named(region));
        self
    }

    /// The guest's address of what the front-end has at `user`.
    pub(crate) fn guest_address(&self, user: u64) -> Option<u64> {
        self.regions.iter().find_map(|mapped| {
            let Region {
                guest,
                size,
                user: base,
                ..
            } = mapped.region;
            let at = user.checked_sub(base)?;
            (at < size).then(|| guest + at)
        })
    }

    /// Whether a part of it has been lost.
    pub(crate) fn is_broken(&self) -> bool {
        self.regions
            .iter()
            .filter_map(|mapped| mapped.watch.as_ref())
            .any(Watch::is_broken)
    }
}

impl<'m> Memory for &'m Table {
    type Area = VolatileSlice<'m>;

    fn area(&self, addr: u64, len: usize) -> Option<VolatileSlice<'m>> {
        let table: &'m Table = self;
        table.regions.iter().find_map(|mapped| {
            let at = addr.wrapping_sub(mapped.region.guest);
            let left = mapped.region.size.checked_sub(at).filter(|left| *left > 0)?;
            // Both are at most the mapping's length, which is a usize.
            mapped
                .map
                .get_slice(mapped.begin + at as usize, len.min(left as usize))
                .ok()
        })
    }
}

/// One region.
#[derive(Debug)]
struct Mapped {
    region: Region,
    /// First: it ends before the mapping does.
    watch: Option<Watch>,
    map: Arc<MmapRegion>,
    /// Where in the mapping the region begins.
    begin: usize,
}

impl Mapped {
    fn new(region: Region, file: OwnedFd) -> Result<Self, Refused> {
        let guest = region.guest;
        let failed = |error| Refused::Map { guest, error };
        let stat = rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?;
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        // `check` has seen that this is an address.
        let end = region.offset + region.size;
        if end > len {
            return Err(Refused::Short { guest, end, len });
        }
        // From the file's first byte, as the specification's own back-end does it: an offset need not be a multiple of
        // the page size where that is 2 MiB. For the same reason up to the end of the last such page, as munmap wants it.
        let page = u64::try_from(stat.st_blksize).unwrap_or(0).max(1);
        let mapped = end.next_multiple_of(page).min(len);
        let (Ok(begin), Ok(mapped)) = (usize::try_from(region.offset), usize::try_from(mapped)) else {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        };
        let map = MmapRegion::from_file(FileOffset::new(File::from(file), 0), mapped)
            .map_err(|error| failed(io::Error::other(error)))?;
        let watch = Watch::new(&map).map_err(failed)?;
        Ok(Self {
            region,
            watch: Some(watch),
            map: Arc::new(map),
            begin,
        })
    }
}

/// Sums of a region's numbers can be made from here on.
fn check(region: &Region) -> Result<(), Refused> {
    let &Region {
        guest,
        size,
        user,
        offset,
    } = region;
    if size == 0 {
        return Err(Refused::Empty(guest));
    }
    // mmap takes no more than the positive half.
    let most = i64::MAX as u64;
    let fits = guest.checked_add(size).is_some()
        && user.checked_add(size).is_some()
        && offset.checked_add(size).is_some_and(|end| end <= most);
    if !fits {
        return Err(Refused::Overflow {
            guest,
            user,
            offset,
            size,
        });
    }
    Ok(())
}

fn overlap(one: &Region, other: &Region) -> bool {
    let within = |a: u64, b: u64| a < b + other.size && b < a + one.size;
    within(one.guest, other.guest) || within(one.user, other.user)
}
