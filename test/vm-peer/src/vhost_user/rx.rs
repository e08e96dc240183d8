//! The driver's receive queue: frames from the device.

use std::io;

use pontoon_ring::driver::Buffer;
use pontoon_wire::vnet::{self, Offload};
use vm_memory::VolatileSlice;

use super::Error;
use super::queue::Queue;

/// The driver's receive queue. All descriptors have buffers of one size.
#[derive(Debug)]
pub struct Rx {
    /// The driver's side of the receive virtqueue.
    pub queue: Queue,
    buffers: u64,
    size: u32,
    header: usize,
    mergeable: bool,
    /// Numbers of the buffers that are not in the available ring.
    spare: Vec<u32>,
    frame: Vec<u8>,
}

/// A frame that the device has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// Offload metadata from the frame's `virtio_net_hdr`.
    pub offload: Offload,
    /// Number of buffers that the frame occupied.
    pub buffers: u16,
    /// Bytes of the frame, without its header.
    pub bytes: &'a [u8],
}

impl Rx {
    pub(crate) fn new(queue: Queue, buffers: u64, size: u32, header: usize, mergeable: bool) -> Self {
        let spare = (0..queue.layout().size.into()).rev().collect();
        Self {
            queue,
            buffers,
            size,
            header,
            mergeable,
            spare,
            frame: Vec::new(),
        }
    }

    /// Returns the length of the header before each frame in bytes.
    pub fn header(&self) -> usize {
        self.header
    }

    /// Adds at most `count` free buffers to the available ring.
    ///
    /// # Errors
    /// The ring is not in the guest's memory.
    pub fn refill(&mut self, count: usize) -> Result<(), Error> {
        let Self {
            queue,
            buffers,
            size,
            spare,
            ..
        } = self;
        let mut ring = queue.open()?;
        for buffer in spare.drain(spare.len().saturating_sub(count)..).rev() {
            let address = *buffers + u64::from(buffer) * u64::from(*size);
            ring.add(buffer, &[Buffer::writable(address, *size)])
                .expect("each buffer has its descriptor");
        }
        Ok(queue.publish()?)
    }

    /// Passes all frames to `sink` and returns their number. Their buffers are added again only by
    /// [`refill`](Self::refill).
    ///
    /// # Errors
    /// The device violated the protocol.
    pub fn take(&mut self, mut sink: impl FnMut(Received<'_>)) -> Result<usize, Error> {
        let mut count = 0;
        self.queue.open()?.poll()?;
        while let Some((offload, buffers)) = self.gather()? {
            sink(Received {
                offload,
                buffers,
                bytes: &self.frame,
            });
            count += 1;
        }
        Ok(count)
    }

    /// Passes all frames to `sink`, adds their buffers again, and returns the number of frames.
    ///
    /// # Errors
    /// The device violated the protocol.
    pub fn receive(&mut self, sink: impl FnMut(Received<'_>)) -> Result<usize, Error> {
        let count = self.take(sink)?;
        self.refill(usize::MAX)?;
        Ok(count)
    }

    /// Passes the memory of each frame, with its header, to `sink`, and adds its buffer again. Returns the number of
    /// frames.
    ///
    /// # Errors
    /// The device violated the protocol, or used several buffers for a frame; or `sink` failed.
    pub fn receive_in_place(
        &mut self,
        mut sink: impl FnMut(&VolatileSlice<'_>) -> io::Result<()>,
    ) -> Result<usize, Error> {
        let mut count = 0;
        self.queue.open()?.poll()?;
        while let Some(used) = self.queue.open()?.reap()? {
            self.spare.push(used.tag);
            let address = self.buffers + u64::from(used.tag) * u64::from(self.size);
            let frame = self.queue.area(address, used.len as usize);
            let mut all = [1, 0];
            if self.mergeable {
                frame
                    .subslice(vnet::SHORT_LEN, 2)
                    .map_err(io::Error::other)?
                    .copy_to(&mut all);
            }
            if all != [1, 0] {
                let all = u16::from_le_bytes(all);
                return Err(Error::Partial { shown: 1, all });
            }
            sink(&frame)?;
            count += 1;
        }
        self.refill(usize::MAX)?;
        Ok(count)
    }

    /// Assembles the next frame from its buffers. Returns its metadata and the number of buffers.
    fn gather(&mut self) -> Result<Option<(Offload, u16)>, Error> {
        self.frame.clear();
        if !self.take_buffer()? {
            return Ok(None);
        }
        let offload = vnet::offload(&self.frame)?;
        let all = match (self.mergeable, self.frame.get(vnet::SHORT_LEN..self.header)) {
            (true, Some(&[low, high])) => u16::from_le_bytes([low, high]),
            _ => 1,
        };
        for shown in 1..all {
            if !self.take_buffer()? {
                return Err(Error::Partial { shown, all });
            }
        }
        self.frame.drain(..self.header.min(self.frame.len()));
        Ok(Some((offload, all)))
    }

    /// Appends the bytes of the next used buffer to the frame. Returns false if there is none.
    fn take_buffer(&mut self) -> Result<bool, Error> {
        let Some(used) = self.queue.open()?.reap()? else {
            return Ok(false);
        };
        self.spare.push(used.tag);
        let begin = self.frame.len();
        self.frame.resize(begin + used.len as usize, 0);
        let address = self.buffers + u64::from(used.tag) * u64::from(self.size);
        self.queue.read(address, &mut self.frame[begin..]);
        Ok(true)
    }
}
