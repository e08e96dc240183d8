//! Frames from the device.

use pontoon_ring::driver::{self, Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory};
use pontoon_ring::{Features, LayoutError};

use crate::Error;
use crate::map::{Buffers, HEADER, Map};

/// The receive ring. Every descriptor is a buffer, which the device has but for the moment in which it is read.
#[derive(Debug)]
pub(crate) struct Receiver<const N: usize> {
    driver: Driver<[Slot; N]>,
    buffers: Buffers,
    /// Buffers given back that the device was not shown.
    hidden: usize,
    /// Frames that the device said were shorter than their header.
    pub(crate) runts: u64,
}

impl<const N: usize> Receiver<N> {
    /// Makes the ring, with all buffers in it.
    pub(crate) fn new<M: Memory>(memory: &M, map: &Map<N>, features: Features) -> Result<Self, LayoutError> {
        let mut receiver = Self {
            driver: Driver::new(memory, map.receive(), features, [Slot::default(); N])?,
            buffers: map.receive_buffers(),
            hidden: 0,
            runts: 0,
        };
        let mut ring = receiver.driver.attach(memory)?;
        for number in 0..N as u32 {
            offer(&mut ring, receiver.buffers, number);
        }
        // Whoever makes the ring notifies the device once it knows of it.
        let _ = ring.publish();
        ring.suppress();
        Ok(receiver)
    }

    /// Copies the next frame into `into`, as far as there is room, and says how long it is.
    pub(crate) fn read<M: Memory>(&mut self, memory: &M, into: &mut [u8]) -> Result<Option<usize>, Error> {
        let mut ring = self.driver.attach(memory)?;
        loop {
            let Some(used) = ring.reap()? else {
                if ring.poll()? > 0 {
                    continue;
                }
                ring.suppress();
                return Ok(None);
            };
            let len = (used.len as usize).checked_sub(HEADER);
            if let Some(len) = len {
                let copied = len.min(into.len());
                self.buffers
                    .area(memory, used.tag, HEADER + len)
                    .copy_out(HEADER, &mut into[..copied]);
            }
            offer(&mut ring, self.buffers, used.tag);
            self.hidden += 1;
            match len {
                Some(len) => return Ok(Some(len)),
                None => self.runts += 1,
            }
        }
    }

    /// Whether so many buffers wait to be shown to the device that it should not go without them any longer: half of all.
    /// A device that has used up the others waits for these, and each time is a notification.
    pub(crate) fn is_behind(&self) -> bool {
        self.hidden >= N / 2
    }

    /// Shows the device the buffers given back. Says whether it wants to be notified.
    pub(crate) fn publish<M: Memory>(&mut self, memory: &M) -> Result<bool, LayoutError> {
        if self.hidden == 0 {
            return Ok(false);
        }
        self.hidden = 0;
        Ok(self.driver.attach(memory)?.publish())
    }

    /// Whether there is a frame. Asks again not to be notified, which a busy device would forget otherwise.
    pub(crate) fn look<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        let mut ring = self.driver.attach(memory)?;
        ring.suppress();
        Ok(ring.poll()? > 0)
    }

    /// Asks to be notified of the next frame, and then looks once more whether there is one.
    pub(crate) fn rearm<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        Ok(self.driver.attach(memory)?.rearm()? > 0)
    }

    /// Asks not to be notified.
    pub(crate) fn suppress<M: Memory>(&mut self, memory: &M) -> Result<(), LayoutError> {
        self.driver.attach(memory)?.suppress();
        Ok(())
    }
}

/// Puts a buffer into the ring.
fn offer<M: Memory, const N: usize>(
    ring: &mut driver::Queue<'_, &M, [Slot; N]>,
    buffers: Buffers,
    number: u32,
) {
    ring.add(number, &[Buffer::writable(buffers.at(number), buffers.len)])
        .expect("there are as many descriptors as buffers, and this buffer was not in the ring");
}
