//! A chain of descriptors, read once and checked (2.7.5).

use super::error::{Error, Indirect};
use crate::descriptor::{self, Access, Descriptor};
use crate::index::Size;
use crate::memory::{Area, Memory};

/// A chain that the device has taken and has to return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its head: the name by which it is returned.
    pub head: u16,
    /// Bytes for the device to read.
    pub readable: u32,
    /// Bytes for the device to write.
    pub writable: u32,
}

/// A contiguous part of a chain. Pieces come in order, the readable ones first; none is empty.
#[derive(Clone, Copy, Debug)]
pub struct Piece<A> {
    /// What the device may do with it.
    pub access: Access,
    /// Its address, as the driver knows it: what a log of dirty pages goes by.
    pub addr: u64,
    /// Its memory.
    pub area: A,
}

/// Where chains are read from.
pub(super) struct Chains<'q, M: Memory> {
    pub(super) memory: &'q M,
    pub(super) table: &'q M::Area,
    pub(super) size: Size,
    pub(super) indirect: bool,
}

impl<M: Memory> Chains<'_, M> {
    /// Reads the chain at `head`.
    ///
    /// Each descriptor is read once, into private memory, and each step takes one of at most as many buffers as the queue
    /// has descriptors, or enters the one indirect table: whatever the driver writes meanwhile, this ends.
    pub(super) fn read(&self, head: u16, mut each: impl FnMut(Piece<M::Area>)) -> Result<Chain, Error> {
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
                return Err(Error::Index {
                    head,
                    index,
                    table: table.len,
                });
            }
            let descriptor = Descriptor::load(&table.area, index.into());
            let flags = descriptor.flags;
            if flags & !(descriptor::NEXT | descriptor::WRITE | descriptor::INDIRECT) != 0 {
                return Err(Error::Flags { head, flags });
            }
            if flags & descriptor::INDIRECT != 0 {
                table = self
                    .enter(&table, descriptor)
                    .map_err(|refused| refused.in_chain(head))?;
                index = 0;
                continue;
            }
            if buffers == self.size.get() {
                return Err(Error::Endless { head });
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

    /// The table that an indirect descriptor of `outer` names. Its WRITE flag means nothing (2.7.5.3.2).
    fn enter(&self, outer: &Table<M::Area>, descriptor: Descriptor) -> Result<Table<M::Area>, Refused> {
        let Descriptor { addr, len, flags, .. } = descriptor;
        if !self.indirect {
            return Err(Refused::Indirect(Indirect::NotNegotiated));
        }
        if outer.indirect {
            return Err(Refused::Indirect(Indirect::Nested));
        }
        if flags & descriptor::NEXT != 0 {
            return Err(Refused::Indirect(Indirect::Chained));
        }
        let bytes = len as usize;
        if len == 0 || !bytes.is_multiple_of(descriptor::BYTES) {
            return Err(Refused::Indirect(Indirect::Length(len)));
        }
        let area = self
            .memory
            .area(addr, bytes)
            .filter(|area| area.len() == bytes)
            .ok_or(Refused::Unmapped { addr, len: bytes })?;
        Ok(Table {
            area,
            len: len / descriptor::BYTES as u32,
            indirect: true,
        })
    }

    /// Finds the memory of one buffer, which may lie in more than one area.
    fn pieces(
        &self,
        head: u16,
        descriptor: Descriptor,
        each: &mut impl FnMut(Piece<M::Area>),
    ) -> Result<(), Error> {
        let access = access(descriptor);
        let mut addr = descriptor.addr;
        let mut len = descriptor.len as usize;
        while len > 0 {
            let unmapped = Error::Unmapped { head, addr, len };
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
    /// Counts one more buffer in.
    fn add(&mut self, descriptor: Descriptor) -> Result<(), Error> {
        let head = self.head;
        if descriptor.len == 0 {
            return Err(Error::Empty { head });
        }
        // Of both together, so that one of them cannot overflow either.
        (self.readable.checked_add(self.writable))
            .and_then(|bytes| bytes.checked_add(descriptor.len))
            .ok_or(Error::Long { head })?;
        match access(descriptor) {
            Access::Writable => self.writable += descriptor.len,
            Access::Readable if self.writable > 0 => return Err(Error::Order { head }),
            Access::Readable => self.readable += descriptor.len,
        }
        Ok(())
    }
}

/// The queue's own table, or an indirect one.
struct Table<A> {
    area: A,
    len: u32,
    indirect: bool,
}

/// Why an indirect table is not entered.
enum Refused {
    Indirect(Indirect),
    Unmapped { addr: u64, len: usize },
}

impl Refused {
    fn in_chain(self, head: u16) -> Error {
        match self {
            Self::Indirect(reason) => Error::Indirect { head, reason },
            Self::Unmapped { addr, len } => Error::Unmapped { head, addr, len },
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
