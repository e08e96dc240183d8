//! The receive ring: receives frames from the device.

use pontoon_ring::driver::{self, Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory};
use pontoon_ring::{Features, LayoutError, Notification};

use crate::Error;
use crate::map::{Buffers, HEADER, Map};

/// The receive ring. Every descriptor has a buffer, which the device owns except while it is being read.
#[derive(Debug)]
pub(crate) struct ReceiveQueue<const N: usize> {
    driver: Driver<[Slot; N]>,
    buffers: Buffers,
    /// Buffers returned to the ring and not published.
    unpublished: usize,
    /// Frames dropped because their length was below that of the header.
    pub(crate) runts: u64,
}

impl<const N: usize> ReceiveQueue<N> {
    /// Creates the ring, with all buffers in it.
    pub(crate) fn new<M: Memory>(memory: &M, map: &Map<N>, features: Features) -> Result<Self, LayoutError> {
        let mut receiver = Self {
            driver: Driver::new(memory, map.receive(), features, [Slot::default(); N])?,
            buffers: map.receive_buffers(),
            unpublished: 0,
            runts: 0,
        };
        let mut ring = receiver.driver.attach(memory)?;
        for number in 0..N as u32 {
            add_buffer(&mut ring, receiver.buffers, number);
        }
        // `Interface::start` notifies the device later.
        let _ = ring.publish();
        ring.suppress();
        Ok(receiver)
    }

    /// Copies the next frame into `into`, as far as it fits, and returns its length.
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
            add_buffer(&mut ring, self.buffers, used.tag);
            self.unpublished += 1;
            match len {
                Some(len) => return Ok(Some(len)),
                None => self.runts += 1,
            }
        }
    }

    /// Returns whether at least half of the buffers are unpublished, so that they should be published now. A device
    /// that has used up the others would wait for them, and need a notification each time.
    pub(crate) fn should_publish(&self) -> bool {
        self.unpublished >= N / 2
    }

    /// Publishes the returned buffers.
    pub(crate) fn publish<M: Memory>(&mut self, memory: &M) -> Result<Notification, LayoutError> {
        if self.unpublished == 0 {
            return Ok(Notification::NotRequired);
        }
        self.unpublished = 0;
        Ok(self.driver.attach(memory)?.publish())
    }

    /// Returns whether a frame is ready, and suppresses notifications again, since a suppression expires while the
    /// device is busy.
    pub(crate) fn poll<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        let mut ring = self.driver.attach(memory)?;
        ring.suppress();
        Ok(ring.poll()? > 0)
    }

    /// Requests a notification for the next frame, and returns whether one is ready.
    pub(crate) fn rearm<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        Ok(self.driver.attach(memory)?.rearm()? > 0)
    }

    /// Suppresses notifications.
    pub(crate) fn suppress<M: Memory>(&mut self, memory: &M) -> Result<(), LayoutError> {
        self.driver.attach(memory)?.suppress();
        Ok(())
    }
}

/// Puts a buffer into the ring.
fn add_buffer<M: Memory, const N: usize>(
    ring: &mut driver::DriverQueue<'_, &M, [Slot; N]>,
    buffers: Buffers,
    number: u32,
) {
    ring.add(number, &[Buffer::writable(buffers.at(number), buffers.len)])
        .expect("there are as many descriptors as buffers, and this buffer was not in the ring");
}
