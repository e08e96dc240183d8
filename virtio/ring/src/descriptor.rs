//! Descriptors of a virtqueue: 16 bytes that describe one buffer (virtio 1.2, section 2.7.5).

use crate::memory::Area;

/// Access of the device to a buffer: it either reads or writes the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads the buffer.
    Readable,
    /// The device writes the buffer (VIRTQ_DESC_F_WRITE).
    Writable,
}

/// A private copy of a descriptor, which the peer cannot change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// `VIRTQ_DESC_F_NEXT`: the chain continues at `next`.
pub(crate) const NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`: the device writes the buffer.
pub(crate) const WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`: the buffer is a table of descriptors.
pub(crate) const INDIRECT: u16 = 4;

/// Size of a virtqueue descriptor in bytes.
pub(crate) const BYTES: usize = 16;

impl Descriptor {
    /// Reads descriptor `index` of a table: with two loads if the table is aligned to 8 bytes, otherwise with one copy
    /// (an indirect table need not be aligned).
    pub(crate) fn load<A: Area>(table: &A, index: usize) -> Self {
        let at = BYTES * index;
        if table.is_aligned(size_of::<u64>()) {
            return Self::from_words([table.load_u64(at), table.load_u64(at + 8)].map(u64::from_le));
        }
        let mut bytes = [0; BYTES];
        table.copy_out(at, &mut bytes);
        let value = u128::from_le_bytes(bytes);
        Self::from_words([value as u64, (value >> 64) as u64])
    }

    /// Writes the descriptor to place `index` of a table that is aligned to 8 bytes at least.
    pub(crate) fn store<A: Area>(self, table: &A, index: usize) {
        let at = BYTES * index;
        let [first, second] = self.to_words();
        table.store_u64(at, first.to_le());
        table.store_u64(at + 8, second.to_le());
    }

    fn from_words([addr, rest]: [u64; 2]) -> Self {
        Self {
            addr,
            len: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        }
    }

    fn to_words(self) -> [u64; 2] {
        let rest = u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48;
        [self.addr, rest]
    }
}
