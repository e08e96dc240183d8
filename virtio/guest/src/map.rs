//! Addresses of an interface's rings and buffers in shared memory.

use pontoon_ring::Layout;
use pontoon_ring::memory::{Area, Memory};

use crate::Error;

/// Size in bytes of the header in front of each frame: `virtio_net_hdr` with `num_buffers` (virtio 1.2, section 5.1.6).
pub const HEADER: usize = 12;

/// Layout of the memory that an interface shares with the device: two rings of `N` descriptors each, and a buffer for
/// every descriptor.
///
/// `N` must be a power of two, at most 32,768, which is checked at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map<const N: usize> {
    base: u64,
    frame: u16,
}

impl<const N: usize> Map<N> {
    const SIZE: u16 = {
        assert!(N.is_power_of_two() && N <= 32_768, "no size of a queue");
        N as u16
    };

    /// Size of a ring in bytes, including padding.
    const RING: u64 = (Layout::contiguous_bytes(Self::SIZE) as u64).next_multiple_of(LINE);

    /// Places rings and buffers from the address `base` on, a multiple of 64, for frames of up to `frame` bytes (1,514
    /// for an MTU of 1,500).
    #[must_use]
    pub const fn new(base: u64, frame: u16) -> Self {
        Self { base, frame }
    }

    /// Returns the size of the shared memory in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        (2 * Self::RING + 2 * N as u64 * self.stride()) as usize
    }

    /// Returns the length of the longest frame in bytes.
    #[must_use]
    pub const fn frame(&self) -> usize {
        self.frame as usize
    }

    /// Returns the layout of the receive ring, for frames from the device.
    #[must_use]
    pub const fn receive(&self) -> Layout {
        Layout::contiguous(Self::SIZE, self.base)
    }

    /// Returns the layout of the transmit ring, for frames to the device.
    #[must_use]
    pub const fn transmit(&self) -> Layout {
        Layout::contiguous(Self::SIZE, self.base + Self::RING)
    }

    pub(crate) const fn receive_buffers(&self) -> BufferArray {
        self.buffers(0)
    }

    pub(crate) const fn transmit_buffers(&self) -> BufferArray {
        self.buffers(N as u64)
    }

    /// Checks that the whole map is in contiguous mapped memory.
    pub(crate) fn check(&self, memory: &impl Memory) -> Result<(), Error> {
        let (addr, len) = (self.base, self.bytes());
        match memory.area(addr, len) {
            Some(area) if area.len() == len => Ok(()),
            _ => Err(Error::Unmapped { addr, len }),
        }
    }

    /// Returns `N` buffers behind both rings and behind `before` other buffers.
    const fn buffers(&self, before: u64) -> BufferArray {
        let stride = self.stride();
        BufferArray {
            first: self.base + 2 * Self::RING + before * stride,
            stride,
            len: HEADER as u32 + self.frame as u32,
        }
    }

    /// Returns the distance in bytes between two buffers, which share no cache line.
    const fn stride(&self) -> u64 {
        (HEADER as u64 + self.frame as u64).next_multiple_of(LINE)
    }
}

/// Addresses of buffers of one size. The number of a buffer is the tag of its chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferArray {
    first: u64,
    stride: u64,
    /// Size of each buffer in bytes: header and frame.
    pub(crate) len: u32,
}

impl BufferArray {
    /// Returns the address of the buffer with this number.
    pub(crate) fn at(&self, number: u32) -> u64 {
        self.first + self.stride * u64::from(number)
    }

    /// Returns the memory of the first `len` bytes of a buffer, which must be within the buffer.
    pub(crate) fn area<M: Memory>(&self, memory: &M, number: u32, len: usize) -> M::Area {
        memory
            .area(self.at(number), len)
            .expect("all of the map was in memory when the interface was made")
    }
}

/// Size of a cache line in bytes.
const LINE: u64 = 64;
