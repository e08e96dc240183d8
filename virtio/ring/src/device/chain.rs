//! Reading and validation of descriptor chains on the device side (virtio 1.2, section 2.7.5).

use super::error::{Indirect, VirtqueueError};
use crate::descriptor::{self, Access, Descriptor};
use crate::index::Size;
use crate::memory::{Area, Memory};

/// A descriptor chain that the device has taken and must return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Index of the chain's first descriptor, which is the id under which the chain is returned.
    pub head: u16,
    /// Total length in bytes of the buffers that the device may read.
    pub readable: u32,
    /// Total length in bytes of the buffers that the device may write.
    pub writable: u32,
}

/// A contiguous part of a chain's memory. Pieces are in the order of the chain, readable ones first; none is empty.
#[derive(Clone, Copy, Debug)]
pub struct Piece<A> {
    /// Access of the device to the memory.
    pub access: Access,
    /// Address of the piece in the descriptor, which a log of dirty pages needs.
    pub addr: u64,
    /// The memory of the piece, mapped in this process.
    pub area: A,
}

/// The descriptor table of a virtqueue, and the memory to which its descriptors refer.
pub(super) struct Chains<'q, M: Memory> {
    pub(super) memory: &'q M,
    pub(super) table: &'q M::Area,
    pub(super) size: Size,
    pub(super) indirect: bool,
}

impl<M: Memory> Chains<'_, M> {
    /// Reads the chain with the first descriptor `head`, and passes its pieces to `each`.
    ///
    /// Each descriptor is read once, into private memory. Each iteration consumes one buffer, of which there are at
    /// most as many as the queue has descriptors, or enters the only indirect table; so the loop ends whatever the
    /// driver writes at the same time.
    pub(super) fn read(
        &self,
        head: u16,
        mut each: impl FnMut(Piece<M::Area>),
    ) -> Result<Chain, VirtqueueError> {
        let mut chain = Chain {
            head,
            ..Chain::default()
        };
        let mut table = Table {
            area: self.table.clone(),
            len: self.size.get().into(),
            indirect: false,
        };
        let mut index = head;
        let mut buffers = 0;
        loop {
            if u32::from(index) >= table.len {
                return Err(VirtqueueError::Index {
                    head,
                    index,
                    table: table.len,
                });
            }
            let descriptor = Descriptor::load(&table.area, index.into());
            let flags = descriptor.flags;
            if flags & !(descriptor::NEXT | descriptor::WRITE | descriptor::INDIRECT) != 0 {
                return Err(VirtqueueError::Flags { head, flags });
            }
            if flags & descriptor::INDIRECT != 0 {
                table = self
                    .enter(&table, descriptor)
                    .map_err(|refused| refused.in_chain(head))?;
                index = 0;
                continue;
            }
            if buffers == self.size.get() {
                return Err(VirtqueueError::TooManyBuffers { head });
            }
            buffers += 1;
            chain.add(descriptor)?;
            self.pieces(head, descriptor, &mut each)?;
            if flags & descriptor::NEXT == 0 {
                return Ok(chain);
            }
            index = descriptor.next;
        }
    }

    /// Returns the table that an indirect descriptor of `outer` refers to. The descriptor's WRITE flag is ignored
    /// (virtio 1.2, section 2.7.5.3.2).
    fn enter(&self, outer: &Table<M::Area>, descriptor: Descriptor) -> Result<Table<M::Area>, IndirectError> {
        let Descriptor { addr, len, flags, .. } = descriptor;
        if !self.indirect {
            return Err(IndirectError::Indirect(Indirect::NotNegotiated));
        }
        if outer.indirect {
            return Err(IndirectError::Indirect(Indirect::Nested));
        }
        if flags & descriptor::NEXT != 0 {
            return Err(IndirectError::Indirect(Indirect::Chained));
        }
        let bytes = len as usize;
        if len == 0 || !bytes.is_multiple_of(descriptor::BYTES) {
            return Err(IndirectError::Indirect(Indirect::Length(len)));
        }
        let area = self
            .memory
            .area(addr, bytes)
            .filter(|area| area.len() == bytes)
            .ok_or(IndirectError::Unmapped { addr, len: bytes })?;
        Ok(Table {
            area,
            len: len / descriptor::BYTES as u32,
            indirect: true,
        })
    }

    /// Looks up the memory of one buffer, which may consist of several areas, and passes the pieces to `each`.
    fn pieces(
        &self,
        head: u16,
        descriptor: Descriptor,
        each: &mut impl FnMut(Piece<M::Area>),
    ) -> Result<(), VirtqueueError> {
        let access = access(descriptor);
        let mut addr = descriptor.addr;
        let mut len = descriptor.len as usize;
        while len > 0 {
            let unmapped = VirtqueueError::Unmapped { head, addr, len };
            let area = self.memory.area(addr, len).ok_or(unmapped)?;
            let bytes = area.len();
            debug_assert!((1..=len).contains(&bytes));
            each(Piece { access, addr, area });
            len -= bytes;
            if len > 0 {
                addr = addr.checked_add(bytes as u64).ok_or(unmapped)?;
            }
        }
        Ok(())
    }
}

impl Chain {
    /// Adds the length of a buffer to the totals of the chain.
    fn add(&mut self, descriptor: Descriptor) -> Result<(), VirtqueueError> {
        let head = self.head;
        if descriptor.len == 0 {
            return Err(VirtqueueError::Empty { head });
        }
        // The sum of both totals is checked, so that neither can overflow.
        (self.readable.checked_add(self.writable))
            .and_then(|bytes| bytes.checked_add(descriptor.len))
            .ok_or(VirtqueueError::TooManyBytes { head })?;
        match access(descriptor) {
            Access::Writable => self.writable += descriptor.len,
            Access::Readable if self.writable > 0 => return Err(VirtqueueError::Order { head }),
            Access::Readable => self.readable += descriptor.len,
        }
        Ok(())
    }
}

/// A table of descriptors: that of the virtqueue, or an indirect one.
struct Table<A> {
    area: A,
    len: u32,
    indirect: bool,
}

/// Error of an indirect descriptor, without the head of its chain, which the function does not know.
enum IndirectError {
    Indirect(Indirect),
    Unmapped { addr: u64, len: usize },
}

impl IndirectError {
    fn in_chain(self, head: u16) -> VirtqueueError {
        match self {
            Self::Indirect(reason) => VirtqueueError::Indirect { head, reason },
            Self::Unmapped { addr, len } => VirtqueueError::Unmapped { head, addr, len },
        }
    }
}

fn access(descriptor: Descriptor) -> Access {
    if descriptor.flags & descriptor::WRITE == 0 {
        Access::Readable
    } else {
        Access::Writable
    }
}
