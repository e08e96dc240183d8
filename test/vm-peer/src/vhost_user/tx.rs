//! The driver's transmit queue: frames to the device.

use std::io;

use pontoon_ring::driver::{AddError, Buffer};
use pontoon_wire::vnet::{self, Offload};
use vm_memory::VolatileSlice;

use super::Error;
use super::map::{FRAME_MEMORY, HEADER_OFFSET};
use super::queue::Queue;

/// The driver's transmit queue, with memory for one frame per descriptor.
#[derive(Debug)]
pub struct Tx {
    /// The driver's side of the transmit virtqueue.
    pub queue: Queue,
    /// Division of the following frames into buffers.
    pub layout: TxLayout,
    places: u64,
    header: usize,
    free: Vec<u32>,
    buffers: Vec<Buffer>,
}

/// The division of a frame into buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxLayout {
    /// Largest number of bytes in one buffer.
    pub piece: u32,
    /// True if the header has a buffer of its own; otherwise it is in the first buffer of the frame.
    pub header_apart: bool,
    /// True if the buffers are in an indirect descriptor table: at most 256, and only if negotiated.
    pub indirect: bool,
}

impl TxLayout {
    /// One buffer for the header and the whole frame.
    pub const WHOLE: Self = Self {
        piece: u32::MAX,
        header_apart: false,
        indirect: false,
    };
}

impl Tx {
    pub(crate) fn new(queue: Queue, places: u64, header: usize) -> Self {
        let free = (0..queue.layout().size.into()).rev().collect();
        Self {
            queue,
            layout: TxLayout::WHOLE,
            places,
            header,
            free,
            buffers: Vec::new(),
        }
    }

    /// Returns the length of the header before each frame in bytes.
    pub fn header(&self) -> usize {
        self.header
    }

    /// Adds a frame whose protocol headers are `headers` bytes long. Returns false if no descriptor is free.
    ///
    /// # Errors
    /// The device violated the protocol.
    ///
    /// # Panics
    /// The frame is longer than 64 KiB, or its layout needs more descriptors than the ring has.
    pub fn send(&mut self, offload: Offload, headers: usize, frame: &[u8]) -> Result<bool, Error> {
        self.send_raw(&vnet::emit(offload, headers), frame)
    }

    /// Adds a frame with this `virtio_net_hdr`.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    ///
    /// # Panics
    /// As for [`send`](Self::send).
    pub fn send_raw(&mut self, header: &[u8; 12], frame: &[u8]) -> Result<bool, Error> {
        assert!(
            frame.len() as u64 <= FRAME_MEMORY - HEADER_OFFSET - 12,
            "{} bytes",
            frame.len()
        );
        self.reap()?;
        let Some(place) = self.free.pop() else {
            return Ok(false);
        };
        let table = self.places + u64::from(place) * FRAME_MEMORY;
        let begin = table + HEADER_OFFSET;
        self.queue.write(begin, &header[..self.header]);
        self.queue.write(begin + self.header as u64, frame);
        self.cut(begin, frame.len());
        let Self { queue, buffers, .. } = self;
        let mut ring = queue.open()?;
        let added = if self.layout.indirect {
            ring.add_indirect(place, table, buffers)
        } else {
            ring.add(place, buffers)
        };
        match added {
            Ok(()) => Ok(true),
            Err(AddError::Full { .. }) => {
                self.free.push(place);
                Ok(false)
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a frame that `write` writes to memory together with its header. Returns false if no descriptor is free or
    /// `write` returned `None`.
    ///
    /// # Errors
    /// The device violated the protocol, or `write` failed.
    pub fn fill(
        &mut self,
        write: impl FnOnce(&VolatileSlice<'_>) -> io::Result<Option<usize>>,
    ) -> Result<bool, Error> {
        self.reap()?;
        let Some(place) = self.free.pop() else {
            return Ok(false);
        };
        let begin = self.places + u64::from(place) * FRAME_MEMORY + HEADER_OFFSET;
        let written = write(&self.queue.area(begin, (FRAME_MEMORY - HEADER_OFFSET) as usize));
        let Ok(Some(len)) = written else {
            self.free.push(place);
            return Ok(written.map(|_| false)?);
        };
        let buffer = Buffer::readable(begin, u32::try_from(len).expect("a place is short"));
        let added = self.queue.open()?.add(place, &[buffer]);
        added.expect("each place has its descriptor");
        Ok(true)
    }

    /// Publishes the added frames, and kicks the device if it has enabled notifications.
    ///
    /// # Errors
    /// The ring is not in the guest's memory.
    pub fn flush(&mut self) -> Result<(), Error> {
        Ok(self.queue.publish()?)
    }

    /// Returns the number of frames that the device has not returned through the used ring.
    ///
    /// # Errors
    /// The device violated the protocol.
    pub fn outstanding(&mut self) -> Result<u16, Error> {
        self.reap()?;
        Ok(self.queue.open()?.outstanding())
    }

    fn reap(&mut self) -> Result<(), Error> {
        let mut ring = self.queue.open()?;
        ring.poll()?;
        while let Some(used) = ring.reap()? {
            self.free.push(used.tag);
        }
        Ok(())
    }

    /// Divides a frame of `len` bytes, whose header is at the address `begin`, into buffers.
    fn cut(&mut self, begin: u64, len: usize) {
        let end = begin + (self.header + len) as u64;
        let mut at = begin;
        self.buffers.clear();
        while at < end {
            let most = if self.layout.header_apart && at == begin {
                self.header as u64
            } else {
                self.layout.piece.into()
            };
            let piece = (end - at).min(most);
            // A buffer is not longer than the memory of a frame, so its length fits.
            self.buffers.push(Buffer::readable(at, piece as u32));
            at += piece;
        }
    }
}
