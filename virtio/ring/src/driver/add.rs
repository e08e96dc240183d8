//! Adding of descriptor chains to the available ring (virtio 1.2, section 2.7.13.1).

use super::Slot;
use super::queue::DriverQueue;
use crate::descriptor::{self, Access, Descriptor};
use crate::memory::{Area, Memory};

/// A buffer of a descriptor chain, in memory that the device can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Address of the buffer in the device's address space.
    pub addr: u64,
    /// Length of the buffer in bytes.
    pub len: u32,
    /// Access of the device to the buffer.
    pub access: Access,
}

impl Buffer {
    /// Describes a buffer that the device reads.
    pub const fn readable(addr: u64, len: u32) -> Self {
        Self {
            addr,
            len,
            access: Access::Readable,
        }
    }

    /// Describes a buffer that the device writes.
    pub const fn writable(addr: u64, len: u32) -> Self {
        Self {
            addr,
            len,
            access: Access::Writable,
        }
    }
}

/// Reason why a chain was not added to the queue. The queue is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The queue has fewer free descriptors than the chain needs.
    #[error("the chain needs {needed} descriptors, {free} are free")]
    Full {
        /// Number of descriptors that the chain needs.
        needed: usize,
        /// Number of free descriptors of the queue.
        free: u16,
    },
    /// The chain has more buffers than the queue has descriptors (virtio 1.2, section 2.7.5.3.1).
    #[error("the chain has {0} buffers, more than the queue size")]
    TooManyBuffers(usize),
    /// The chain has 2^32 bytes or more (virtio 1.2, section 2.7.5.2).
    #[error("the chain has 2^32 bytes or more")]
    TooManyBytes,
    /// The chain has no buffers, or a buffer of length 0 (virtio 1.2, section 2.7.13.1).
    #[error("the chain has no buffer, or an empty buffer")]
    Empty,
    /// A readable buffer follows a writable one (virtio 1.2, section 2.7.4.2).
    #[error("the chain has a readable buffer after a writable one")]
    Order,
    /// An indirect chain was added, but VIRTIO_F_INDIRECT_DESC was not negotiated (virtio 1.2, section 2.7.5.3.1).
    #[error("indirect descriptors were not negotiated")]
    NotNegotiated,
    /// The indirect table is not in contiguous memory, or not aligned to 16 bytes.
    #[error("invalid indirect table address {0:#x}")]
    Table(u64),
}

impl<M: Memory, S: AsRef<[Slot]> + AsMut<[Slot]>> DriverQueue<'_, M, S> {
    /// Adds a chain of buffers, with one descriptor each. The device sees the chain after the next
    /// [`publish`](Self::publish). When the chain is reaped, [`Used::tag`](super::Used::tag) is `tag`.
    ///
    /// # Errors
    /// The chain was not added, for the reason in the error.
    pub fn add(&mut self, tag: u32, buffers: &[Buffer]) -> Result<(), AddError> {
        let writable = self.check(buffers)?;
        self.check_free(buffers.len())?;
        let head = self.driver.slots.first_free();
        // Descriptors are allocated in the order of the chain, so the next one is known as soon as this one is
        // allocated.
        for (left, buffer) in (0..buffers.len()).rev().zip(buffers) {
            let index = self.driver.slots.allocate();
            let next = self.driver.slots.first_free();
            descriptor(*buffer, (left > 0).then_some(next)).store(&self.table, index.into());
        }
        self.make_available(head, buffers.len() as u16, tag, writable);
        Ok(())
    }

    /// Adds a chain of buffers with a single descriptor that refers to an indirect table at `table` (virtio 1.2,
    /// section 2.7.5.3). The table occupies 16 bytes per buffer, which belong to the device until the chain is reaped.
    ///
    /// # Errors
    /// The chain was not added, for the reason in the error.
    pub fn add_indirect(&mut self, tag: u32, table: u64, buffers: &[Buffer]) -> Result<(), AddError> {
        if !self.driver.indirect {
            return Err(AddError::NotNegotiated);
        }
        let writable = self.check(buffers)?;
        self.check_free(1)?;
        let len = descriptor::BYTES * buffers.len();
        let area = self
            .memory
            .area(table, len)
            .filter(|area| area.len() == len && area.is_aligned(descriptor::BYTES))
            .ok_or(AddError::Table(table))?;
        for (index, buffer) in buffers.iter().enumerate() {
            let next = index + 1;
            descriptor(*buffer, (next < buffers.len()).then_some(next as u16)).store(&area, index);
        }
        let head = self.driver.slots.allocate();
        let flags = descriptor::INDIRECT;
        Descriptor {
            addr: table,
            len: len as u32,
            flags,
            next: 0,
        }
        .store(&self.table, head.into());
        self.make_available(head, 1, tag, writable);
        Ok(())
    }

    /// Validates a chain of buffers, and returns the number of bytes that the device may write.
    fn check(&self, buffers: &[Buffer]) -> Result<u32, AddError> {
        if buffers.len() > self.driver.layout.size.into() {
            return Err(AddError::TooManyBuffers(buffers.len()));
        }
        if buffers.is_empty() || buffers.iter().any(|buffer| buffer.len == 0) {
            return Err(AddError::Empty);
        }
        if !buffers.is_sorted_by_key(|buffer| buffer.access == Access::Writable) {
            return Err(AddError::Order);
        }
        let bytes: u64 = buffers.iter().map(|buffer| u64::from(buffer.len)).sum();
        u32::try_from(bytes).map_err(|_| AddError::TooManyBytes)?;
        let writable = buffers.iter().filter(|buffer| buffer.access == Access::Writable);
        Ok(writable.map(|buffer| buffer.len).sum())
    }

    fn check_free(&self, needed: usize) -> Result<(), AddError> {
        let free = self.driver.slots.free();
        if needed > free.into() {
            return Err(AddError::Full { needed, free });
        }
        Ok(())
    }

    /// Adds a chain to the available ring, after its descriptors were written (virtio 1.2, section 2.7.13.2).
    fn make_available(&mut self, head: u16, chained: u16, tag: u32, writable: u32) {
        self.driver.slots.record(head, chained, tag, writable);
        let entry = self.driver.cursor.write();
        self.available.set_head(entry, head);
    }
}

fn descriptor(buffer: Buffer, next: Option<u16>) -> Descriptor {
    let write = match buffer.access {
        Access::Readable => 0,
        Access::Writable => descriptor::WRITE,
    };
    Descriptor {
        addr: buffer.addr,
        len: buffer.len,
        flags: write | next.map_or(0, |_| descriptor::NEXT),
        next: next.unwrap_or(0),
    }
}
