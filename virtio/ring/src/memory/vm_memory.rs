//! Implementation of [`Memory`] for the guest memory of the `vm-memory` crate.

use core::sync::atomic::{Ordering, compiler_fence};

use ::vm_memory::bitmap::{BS, BitmapSlice};
use ::vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, VolatileSlice};

use super::{Area, Memory};

/// Memory of a virtual machine, looked up by guest-physical addresses.
///
/// Stores are recorded in the memory's dirty bitmap, if it has one.
#[derive(Debug)]
pub struct VmMemory<'m, M: ?Sized>(&'m M);

impl<'m, M: GuestMemoryBackend + ?Sized> VmMemory<'m, M> {
    /// Creates access to all of `memory`.
    pub const fn new(memory: &'m M) -> Self {
        Self(memory)
    }
}

impl<M: ?Sized> Clone for VmMemory<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ?Sized> Copy for VmMemory<'_, M> {}

impl<'m, M: GuestMemoryBackend + ?Sized> Memory for VmMemory<'m, M> {
    type Area = VolatileSlice<'m, BS<'m, <M::R as GuestMemoryRegion>::B>>;

    fn area(&self, addr: u64, len: usize) -> Option<Self::Area> {
        let (region, at) = self.0.to_region_addr(GuestAddress(addr))?;
        let left = usize::try_from(region.len() - at.raw_value()).unwrap_or(usize::MAX);
        region.get_slice(at, len.min(left)).ok()
    }
}

impl<B: BitmapSlice> Area for VolatileSlice<'_, B> {
    fn len(&self) -> usize {
        VolatileSlice::len(self)
    }

    fn is_aligned(&self, align: usize) -> bool {
        self.ptr_guard().as_ptr().addr().is_multiple_of(align)
    }

    fn slice(&self, at: usize, len: usize) -> Self {
        self.subslice(at, len).expect(CHECKED)
    }

    fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        self.load(at, order).expect(CHECKED)
    }

    fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        self.store(value, at, order).expect(CHECKED);
    }

    fn load_u32(&self, at: usize) -> u32 {
        self.load(at, Ordering::Relaxed).expect(CHECKED)
    }

    fn store_u32(&self, at: usize, value: u32) {
        self.store(value, at, Ordering::Relaxed).expect(CHECKED);
    }

    fn load_u64(&self, at: usize) -> u64 {
        self.load(at, Ordering::Relaxed).expect(CHECKED)
    }

    fn store_u64(&self, at: usize, value: u64) {
        self.store(value, at, Ordering::Relaxed).expect(CHECKED);
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        self.slice(at, into.len()).copy_to(into);
        // The copy may consist of plain accesses, after which the compiler could read the guest's memory again instead
        // of the copy. The fence forbids that.
        compiler_fence(Ordering::SeqCst);
    }

    fn copy_in(&self, at: usize, from: &[u8]) {
        self.slice(at, from.len()).copy_from(from);
    }
}

const CHECKED: &str = "asked for within the area and aligned";
