//! The transmit ring: sends frames to the device.

use pontoon_ring::driver::{self, Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory};
use pontoon_ring::{Features, LayoutError, Notification};

use crate::map::{Buffers, HEADER, Map};
use crate::{Error, QueueError};

/// The transmit ring, with a buffer for each descriptor.
#[derive(Debug)]
pub(crate) struct TransmitQueue<const N: usize> {
    driver: Driver<[Slot; N]>,
    buffers: Buffers,
    free: Stack<N>,
    /// Frames were added and not published.
    unpublished: bool,
    /// A frame found no room, and room has not been reported since.
    wants_room: bool,
}

impl<const N: usize> TransmitQueue<N> {
    /// Creates the ring. All headers are written once: they are zero, and the device only reads them.
    pub(crate) fn new<M: Memory>(memory: &M, map: &Map<N>, features: Features) -> Result<Self, LayoutError> {
        let buffers = map.transmit_buffers();
        let mut free = Stack::new();
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

    /// Adds a frame, to be published by the next [`publish`](Self::publish).
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

    /// Returns whether there is room for a frame. If there is none, room is reported later.
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

    /// Returns the bytes of the longest frame.
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

    /// Returns, once, whether there is room after there was none.
    pub(crate) fn poll<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        Ok(self.wants_room && self.poll_room(memory)?)
    }

    /// If room is wanted, requests a notification, and returns whether there is room.
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

    /// Suppresses notifications.
    pub(crate) fn suppress<M: Memory>(&mut self, memory: &M) -> Result<(), LayoutError> {
        self.driver.attach(memory)?.suppress();
        Ok(())
    }
}

/// Frees the buffers that the device had returned at the last poll.
fn free_returned<M: Memory, const N: usize>(
    ring: &mut driver::DriverQueue<'_, &M, [Slot; N]>,
    free: &mut Stack<N>,
) -> Result<(), Error> {
    while let Some(used) = ring.reap()? {
        // The tag of a chain is the number of its buffer.
        free.push(used.tag as u16);
    }
    Ok(())
}

/// Numbers of free buffers, last in, first out, to reuse cached buffers.
#[derive(Debug)]
struct Stack<const N: usize> {
    numbers: [u16; N],
    len: usize,
}

impl<const N: usize> Stack<N> {
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
