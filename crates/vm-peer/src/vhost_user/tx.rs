//! Frames to the device.

use std::io;

use pontoon_ring::driver::{AddError, Buffer};
use pontoon_wire::vnet::{self, Offload};
use vm_memory::VolatileSlice;

use super::Error;
use super::map::{FRAME, PLACE};
use super::queue::Queue;

/// The transmit queue, with a place in memory for each descriptor.
#[derive(Debug)]
pub struct Tx {
    /// Its ring.
    pub queue: Queue,
    /// How the next frames lie in memory.
    pub shape: TxLayout,
    places: u64,
    header: usize,
    free: Vec<u32>,
    buffers: Vec<Buffer>,
}

/// How a frame lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxLayout {
    /// Bytes of a piece at most.
    pub piece: u32,
    /// The header is a piece of its own, rather than the beginning of the first one.
    pub header_apart: bool,
    /// The pieces are in a table of their own. At most 256 then, and only where that was negotiated.
    pub indirect: bool,
}

impl TxLayout {
    /// In one piece.
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
            shape: TxLayout::WHOLE,
            places,
            header,
            free,
            buffers: Vec::new(),
        }
    }

    /// Bytes of the header in front of each frame.
    pub fn header(&self) -> usize {
        self.header
    }

    /// Adds a frame, whose headers have `headers` bytes, to the next burst. Says whether there was room.
    ///
    /// # Errors
    /// The device broke the protocol.
    ///
    /// # Panics
    /// With more than 64 KiB, or a shape that needs more descriptors than the ring has.
    pub fn send(&mut self, offload: Offload, headers: usize, frame: &[u8]) -> Result<bool, Error> {
        self.send_raw(&vnet::emit(offload, headers), frame)
    }

    /// Adds a frame with any header.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Panics
    /// As [`send`](Self::send).
    pub fn send_raw(&mut self, header: &[u8; 12], frame: &[u8]) -> Result<bool, Error> {
        assert!(frame.len() as u64 <= PLACE - FRAME - 12, "{} bytes", frame.len());
        self.reap()?;
        let Some(place) = self.free.pop() else {
            return Ok(false);
        };
        let table = self.places + u64::from(place) * PLACE;
        let begin = table + FRAME;
        self.queue.write(begin, &header[..self.header]);
        self.queue.write(begin + self.header as u64, frame);
        self.cut(begin, frame.len());
        let Self { queue, buffers, .. } = self;
        let mut ring = queue.open()?;
        let added = match self.shape.indirect {
            true => ring.add_indirect(place, table, buffers),
            false => ring.add(place, buffers),
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

    /// Adds a frame that `write` puts into memory, behind a header of the queue's own length. Says whether there was room;
    /// there is not, where `write` had nothing.
    ///
    /// # Errors
    /// The device broke the protocol, or `write` failed.
    pub fn fill(
        &mut self,
        write: impl FnOnce(&VolatileSlice<'_>) -> io::Result<Option<usize>>,
    ) -> Result<bool, Error> {
        self.reap()?;
        let Some(place) = self.free.pop() else {
            return Ok(false);
        };
        let begin = self.places + u64::from(place) * PLACE + FRAME;
        let written = write(&self.queue.area(begin, (PLACE - FRAME) as usize));
        let Ok(Some(len)) = written else {
            self.free.push(place);
            return Ok(written.map(|_| false)?);
        };
        let buffer = Buffer::readable(begin, u32::try_from(len).expect("a place is short"));
        let added = self.queue.open()?.add(place, &[buffer]);
        added.expect("each place has its descriptor");
        Ok(true)
    }

    /// Ends a burst: shows it to the device.
    ///
    /// # Errors
    /// The ring is not in memory any more.
    pub fn flush(&mut self) -> Result<(), Error> {
        Ok(self.queue.publish()?)
    }

    /// Frames that the device has not returned.
    ///
    /// # Errors
    /// The device broke the protocol.
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

    /// Makes the list of pieces of a frame of `len` bytes, whose header is at `begin`.
    fn cut(&mut self, begin: u64, len: usize) {
        let end = begin + (self.header + len) as u64;
        let mut at = begin;
        self.buffers.clear();
        while at < end {
            let most = match self.shape.header_apart && at == begin {
                true => self.header as u64,
                false => self.shape.piece.into(),
            };
            let piece = (end - at).min(most);
            // At most a place's size.
            self.buffers.push(Buffer::readable(at, piece as u32));
            at += piece;
        }
    }
}
