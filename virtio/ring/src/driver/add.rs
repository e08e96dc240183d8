//! Adding chains to the available ring (2.7.13.1).

use super::Slot;
use super::queue::DriverQueue;
use crate::descriptor::{self, Access, Descriptor};
use crate::memory::{Area, Memory};

/// A buffer in memory that the device can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its address as the device sees it.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Access of the device.
    pub access: Access,
}

impl Buffer {
    /// A buffer that the device reads.
    pub const fn readable(addr: u64, len: u32) -> Self {
        Self {
            addr,
            len,
            access: Access::Readable,
        }
    }

    /// A buffer that the device writes.
    pub const fn writable(addr: u64, len: u32) -> Self {
        Self {
            addr,
            len,
            access: Access::Writable,
        }
    }
}

/// The reason why a chain was not added. The queue is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Too few descriptors are free at present.
    #[error("{needed} descriptors needed, {free} free")]
    Full {
        /// The number of descriptors that the chain needs.
        needed: usize,
        /// The number of free descriptors of the ring.
        free: u16,
    },
    /// The chain has more buffers than the queue has descriptors (2.7.5.3.1).
    #[error("{0} buffers exceed the queue size")]
    TooManyBuffers(usize),
    /// The chain has 2^32 bytes or more (2.7.5.2).
    #[error("a chain of 2^32 bytes or more")]
    TooManyBytes,
    /// The chain has no buffers, or a buffer of length 0 (2.7.13.1).
    #[error("no buffer, or an empty one")]
    Empty,
    /// A readable buffer follows a writable one (2.7.4.2).
    #[error("a readable buffer after a writable one")]
    Order,
    /// VIRTIO_F_INDIRECT_DESC was not negotiated (2.7.5.3.1).
    #[error("indirect descriptors were not negotiated")]
    NotNegotiated,
    /// The indirect table is not in contiguous memory, or not aligned to 16 bytes.
    #[error("invalid indirect table address {0:#x}")]
    Table(u64),
}

impl<M: Memory, S: AsRef<[Slot]> + AsMut<[Slot]>> DriverQueue<'_, M, S> {
    /// Adds a chain of buffers, with one descriptor each. The device sees it after the next [`publish`](Self::publish).
    /// [`Used::tag`](super::Used::tag) returns `tag`.
    ///
    /// # Errors
    /// The chain was not added.
    pub fn add(&mut self, tag: u32, buffers: &[Buffer]) -> Result<(), AddError> {
        let writable = self.check(buffers)?;
        self.check_free(buffers.len())?;
        let head = self.driver.slots.first_free();
        // Descriptors are taken in the order of the chain, so the next one is known as soon as this one is allocated.
        for (left, buffer) in (0..buffers.len()).rev().zip(buffers) {
            let index = self.driver.slots.allocate();
            let next = self.driver.slots.first_free();
            descriptor(*buffer, (left > 0).then_some(next)).store(&self.table, index.into());
        }
        self.make_available(head, buffers.len() as u16, tag, writable);
        Ok(())
    }

    /// Adds a chain of buffers with a single descriptor that refers to an indirect table at `table` (2.7.5.3). The
    /// table takes 16 bytes per buffer, which belong to the device until the chain comes back.
    ///
    /// # Errors
    /// The chain was not added.
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

    /// Checks a chain of buffers, and returns the bytes that the device may write.
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

    /// Puts a chain whose descriptors are written into the available ring (2.7.13.2).
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
