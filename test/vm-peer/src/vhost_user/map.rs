//! Addresses of rings and buffers in the guest's memory.

use pontoon_ring::Layout;

use super::Options;

/// Guest address at which the memory begins; not zero, so that address 0 is invalid.
pub(crate) const BASE: u64 = 1 << 20;

/// Bytes of memory for each transmitted frame: a table of indirect descriptors, then the header and the frame.
pub(crate) const FRAME_MEMORY: u64 = HEADER_OFFSET + (68 << 10);

/// Offset of the header in the memory of a frame, in bytes.
pub(crate) const HEADER_OFFSET: u64 = 4096;

/// Guest addresses of the rings and buffers of one queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairMap {
    pub(crate) rx: Layout,
    pub(crate) tx: Layout,
    pub(crate) buffers: u64,
    pub(crate) places: u64,
    pub(crate) end: u64,
}

impl PairMap {
    /// Returns the addresses of a pair that begins at `begin`.
    pub(crate) fn new(begin: u64, options: &Options) -> Self {
        let size = options.queue_size;
        let ring = page(Layout::contiguous_bytes(size) as u64);
        let count = u64::from(size);
        let buffers = begin + 2 * ring;
        let places = buffers + page(count * u64::from(options.buffer));
        Self {
            rx: Layout::contiguous(size, begin),
            tx: Layout::contiguous(size, begin + ring),
            buffers,
            places,
            end: places + count * FRAME_MEMORY,
        }
    }
}

fn page(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}
