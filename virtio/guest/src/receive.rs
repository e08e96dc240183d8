//! The receive ring of an interface, which receives frames from the device.

use pontoon_ring::driver::{self, Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory};
use pontoon_ring::{Features, LayoutError, Notification};

use crate::Error;
use crate::map::{BufferArray, HEADER, Map};

/// The receive ring of an interface. Every descriptor has a buffer, which belongs to the device except while its frame
/// is read.
#[derive(Debug)]
pub(crate) struct ReceiveQueue<const N: usize> {
    driver: Driver<[Slot; N]>,
    buffers: BufferArray,
    /// Number of buffers that were returned to the ring and not published.
    unpublished: usize,
    /// Number of frames that were dropped because they were shorter than the `virtio_net_hdr`.
    pub(crate) runts: u64,
}

impl<const N: usize> ReceiveQueue<N> {
    /// Creates the ring and publishes all buffers.
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
        // The result is ignored because `Interface::start` notifies the device later.
        let _ = ring.publish();
        ring.suppress();
        Ok(receiver)
    }

    /// Copies the next frame to `into`, as far as it fits, and returns its length in bytes.
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

    /// Returns true if at least half of the buffers are unpublished and should be published now. Otherwise a device
    /// that has used the other buffers would wait for them, and need a notification each time.
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

    /// Returns true if a frame can be read. It also suppresses notifications again, because a suppression expires after
    /// a number of frames.
    pub(crate) fn poll<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        let mut ring = self.driver.attach(memory)?;
        ring.suppress();
        Ok(ring.poll()? > 0)
    }

    /// Requests a notification for the next frame, and returns true if a frame can be read already.
    pub(crate) fn rearm<M: Memory>(&mut self, memory: &M) -> Result<bool, Error> {
        Ok(self.driver.attach(memory)?.rearm()? > 0)
    }

    /// Requests that the device send no notifications for this ring.
    pub(crate) fn suppress<M: Memory>(&mut self, memory: &M) -> Result<(), LayoutError> {
        self.driver.attach(memory)?.suppress();
        Ok(())
    }
}

/// Adds a buffer to the ring.
fn add_buffer<M: Memory, const N: usize>(
    ring: &mut driver::DriverQueue<'_, &M, [Slot; N]>,
    buffers: BufferArray,
    number: u32,
) {
    ring.add(number, &[Buffer::writable(buffers.at(number), buffers.len)])
        .expect("there are as many descriptors as buffers, and this buffer was not in the ring");
}
