//! The transmit ring of an interface, which sends frames to the device.

use pontoon_ring::driver::{self, Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory};
use pontoon_ring::{Features, LayoutError, Notification};

use crate::map::{BufferArray, HEADER, Map};
use crate::{Error, QueueError};

/// The transmit ring of an interface, with a buffer for each descriptor.
#[derive(Debug)]
pub(crate) struct TransmitQueue<const N: usize> {
    driver: Driver<[Slot; N]>,
    buffers: BufferArray,
    free: BufferStack<N>,
    /// True if frames were added to the ring and not published.
    unpublished: bool,
    /// True if there was no room for a frame, and room has not been reported since then.
    wants_room: bool,
}

impl<const N: usize> TransmitQueue<N> {
    /// Creates the ring. The headers in all buffers are written once: they are zero, and the device only reads them.
    pub(crate) fn new<M: Memory>(memory: &M, map: &Map<N>, features: Features) -> Result<Self, LayoutError> {
        let buffers = map.transmit_buffers();
        let mut free = BufferStack::new();
        for number in (0..N as u16).rev() {
            buffers
                .area(memory, number.into(), HEADER)
                .copy_in(0, &[0; HEADER]);
            free.push(number);
        }
        let mut driver = Driver::new(memory, map.transmit(), features, [Slot::default(); N])?;
        driver.attach(memory)?.suppress();
        Ok(Self {
            driver,
            buffers,
            free,
            unpublished: false,
            wants_room: false,
        })
    }

    /// Adds a frame to the ring, which the next [`publish`](Self::publish) makes available to the device.
    pub(crate) fn queue<M: Memory>(&mut self, memory: &M, frame: &[u8]) -> Result<(), QueueError> {
        let (len, room) = (frame.len(), self.frame());
        if len > room {
            return Err(QueueError::Long { len, room });
        }
        self.poll_room(memory)?;
        let number = self.free.pop().ok_or(QueueError::Full)?;
        let tag = u32::from(number);
        self.buffers
            .area(memory, tag, HEADER + len)
            .copy_in(HEADER, frame);
        let buffer = Buffer::readable(self.buffers.at(tag), (HEADER + len) as u32);
        self.driver
            .attach(memory)
            .map_err(Error::from)?
            .add(tag, &[buffer])
            .expect("a buffer that is free has its descriptor free");
        self.unpublished = true;
        Ok(())
    }

    /// Returns true if there is room for a frame. If there is none, [`poll`](Self::poll) reports room later.
    pub(crate) fn poll_room<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        if self.free.is_empty() {
            let mut ring = self.driver.attach(memory)?;
            ring.suppress();
            ring.poll()?;
            free_returned(&mut ring, &mut self.free)?;
        }
        self.wants_room = self.free.is_empty();
        Ok(!self.wants_room)
    }

    /// Returns the length of the longest frame in bytes.
    pub(crate) fn frame(&self) -> usize {
        self.buffers.len as usize - HEADER
    }

    /// Publishes the queued frames.
    pub(crate) fn publish<M: Memory>(&mut self, memory: &M) -> Result<Notification, LayoutError> {
        if core::mem::take(&mut self.unpublished) {
            Ok(self.driver.attach(memory)?.publish())
        } else {
            Ok(Notification::NotRequired)
        }
    }

    /// Returns true, once, if there is room after there was none.
    pub(crate) fn poll<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        Ok(self.wants_room && self.poll_room(memory)?)
    }

    /// Requests a notification if there was no room for a frame, and returns true if there is room now.
    pub(crate) fn rearm<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        if !self.wants_room {
            return Ok(false);
        }
        let mut ring = self.driver.attach(memory)?;
        ring.rearm()?;
        free_returned(&mut ring, &mut self.free)?;
        self.wants_room = self.free.is_empty();
        Ok(!self.wants_room)
    }

    /// Requests that the device send no notifications for this ring.
    pub(crate) fn suppress<M: Memory>(&mut self, memory: &M) -> Result<(), LayoutError> {
        self.driver.attach(memory)?.suppress();
        Ok(())
    }
}

/// Frees the buffers that the device has returned up to the last poll.
fn free_returned<M: Memory, const N: usize>(
    ring: &mut driver::DriverQueue<'_, &M, [Slot; N]>,
    free: &mut BufferStack<N>,
) -> Result<(), Error> {
    while let Some(used) = ring.reap()? {
        // The tag of a chain is the number of its buffer.
        free.push(used.tag as u16);
    }
    Ok(())
}

/// Numbers of the free buffers: last in, first out, so that buffers in the processor's cache are reused.
#[derive(Debug)]
struct BufferStack<const N: usize> {
    numbers: [u16; N],
    len: usize,
}

impl<const N: usize> BufferStack<N> {
    const fn new() -> Self {
        Self {
            numbers: [0; N],
            len: 0,
        }
    }

    const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn push(&mut self, number: u16) {
        self.numbers[self.len] = number;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u16> {
        self.len = self.len.checked_sub(1)?;
        Some(self.numbers[self.len])
    }
}
