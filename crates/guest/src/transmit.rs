//! Frames to the device.

use pontoon_ring::driver::{self, Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory};
use pontoon_ring::{Features, LayoutError};

use crate::map::{Buffers, HEADER, Map};
use crate::{Error, QueueError};

/// The transmit ring, with a buffer for each descriptor.
#[derive(Debug)]
pub(crate) struct Transmitter<const N: usize> {
    driver: Driver<[Slot; N]>,
    buffers: Buffers,
    free: Stack<N>,
    /// Frames were added that the device was not shown.
    hidden: bool,
    /// A frame found no room, and nobody was told of any since.
    wants_room: bool,
}

impl<const N: usize> Transmitter<N> {
    /// Makes the ring. All headers are written once: they are zero, and no more than read by the device.
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
            hidden: false,
            wants_room: false,
        })
    }

    /// Adds a frame to those that the next [`publish`](Self::publish) shows.
    pub(crate) fn queue<M: Memory>(&mut self, memory: &M, frame: &[u8]) -> Result<(), QueueError> {
        let (len, room) = (frame.len(), self.frame());
        if len > room {
            return Err(QueueError::Long { len, room });
        }
        self.has_room(memory)?;
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
        self.hidden = true;
        Ok(())
    }

    /// Whether there is room for a frame. If there is none, it is wanted from now on.
    pub(crate) fn has_room<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        if self.free.is_empty() {
            let mut ring = self.driver.attach(memory)?;
            ring.suppress();
            ring.poll()?;
            take_back(&mut ring, &mut self.free)?;
        }
        self.wants_room = self.free.is_empty();
        Ok(!self.wants_room)
    }

    /// Bytes of the longest frame.
    pub(crate) fn frame(&self) -> usize {
        self.buffers.len as usize - HEADER
    }

    /// Shows the device what was queued. Says whether it wants to be notified.
    pub(crate) fn publish<M: Memory>(&mut self, memory: &M) -> Result<bool, LayoutError> {
        match core::mem::take(&mut self.hidden) {
            true => Ok(self.driver.attach(memory)?.publish()),
            false => Ok(false),
        }
    }

    /// Whether there is room by now that was wanted. It is said once.
    pub(crate) fn look<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        Ok(self.wants_room && self.has_room(memory)?)
    }

    /// Where room is wanted, asks to be notified of it, and then looks once more.
    pub(crate) fn rearm<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        if !self.wants_room {
            return Ok(false);
        }
        let mut ring = self.driver.attach(memory)?;
        ring.rearm()?;
        take_back(&mut ring, &mut self.free)?;
        self.wants_room = self.free.is_empty();
        Ok(!self.wants_room)
    }

    /// Asks not to be notified.
    pub(crate) fn suppress<M: Memory>(&mut self, memory: &M) -> Result<(), LayoutError> {
        self.driver.attach(memory)?.suppress();
        Ok(())
    }
}

/// Frees the buffers that the last look at the ring saw.
fn take_back<M: Memory, const N: usize>(
    ring: &mut driver::Queue<'_, &M, [Slot; N]>,
    free: &mut Stack<N>,
) -> Result<(), Error> {
    while let Some(used) = ring.reap()? {
        // The tag of a buffer is its number.
        free.push(used.tag as u16);
    }
    Ok(())
}

/// Numbers of free buffers: last in, first out, while it is in the cache.
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
