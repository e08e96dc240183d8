//! Where things lie in the guest's memory.

use pontoon_ring::Layout;

use super::Options;

/// The guest's memory begins here, so that an address of zero is none.
pub(crate) const BASE: u64 = 1 << 20;

/// Bytes of a place for one frame to the device: a table of indirect descriptors, then the frame behind its header.
pub(crate) const PLACE: u64 = FRAME + (68 << 10);

/// Where in its place a frame's header begins.
pub(crate) const FRAME: u64 = 4096;

/// Where one pair's rings and buffers lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairMap {
    pub(crate) rx: Layout,
    pub(crate) tx: Layout,
    pub(crate) buffers: u64,
    pub(crate) places: u64,
    pub(crate) end: u64,
}

impl PairMap {
    /// The pair behind `begin`.
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
            end: places + count * PLACE,
        }
    }
}

fn page(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}
