//! The network interface of a guest, which sends and receives frames and waits for the device.

use core::time::Duration;

use pontoon_ring::memory::Memory;
use pontoon_ring::{Features, Notification};

use crate::map::Map;
use crate::pacing::{Pacer, PollTime};
use crate::receive::ReceiveQueue;
use crate::transmit::TransmitQueue;
use crate::{Error, Pacing, Platform, QueueError, Ring};

/// A network interface of a guest in memory `M`, on a platform `P`, with `N` buffers in each direction.
///
/// Frames are Ethernet frames from the destination address to the end of the payload, with complete checksums: the
/// interface leaves no checksum to the device, and accepts no frame from it with an unverified one.
///
/// After any error except [`QueueError::Full`] and [`QueueError::Long`] the interface is unusable, and every call
/// returns the error again.
#[derive(Debug)]
pub struct Interface<M, P, const N: usize> {
    memory: M,
    platform: P,
    receiver: ReceiveQueue<N>,
    transmitter: TransmitQueue<N>,
    pacer: Pacer,
    counters: Counters,
}

/// Result of [`Interface::poll`]: the events that have ended the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A received frame can be read.
    pub frame: bool,
    /// A frame can be queued, after there was no room for one. This is reported once.
    pub room: bool,
}

/// Counters of an interface since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of frames that were queued to be sent.
    pub sent: u64,
    /// Number of received frames that were read.
    pub received: u64,
    /// Number of received frames that were dropped because they were shorter than the `virtio_net_hdr`.
    pub runts: u64,
    /// Number of notifications that were sent to the device, for either ring.
    pub doorbells: u64,
    /// Number of times that the interface has slept.
    pub sleeps: u64,
}

impl<M: Memory, P: Platform, const N: usize> Interface<M, P, N> {
    /// Creates both rings in `memory` at the addresses in `map`, and fills the receive ring with buffers. The caller
    /// must then configure the device with the rings and call [`start`](Self::start).
    ///
    /// `features` are the negotiated ones: VIRTIO_F_VERSION_1 is required, and of the features that concern the rings
    /// only VIRTIO_F_EVENT_IDX is supported. Without the latter the device is notified more often.
    ///
    /// # Errors
    /// The map exceeds `memory` or is misaligned in it.
    pub fn new(
        memory: M,
        map: Map<N>,
        features: Features,
        platform: P,
        pacing: Pacing,
    ) -> Result<Self, Error> {
        map.check(&memory)?;
        Ok(Self {
            receiver: ReceiveQueue::new(&memory, &map, features)?,
            transmitter: TransmitQueue::new(&memory, &map, features)?,
            memory,
            platform,
            pacer: Pacer::new(pacing),
            counters: Counters::default(),
        })
    }

    /// Notifies the device, which must have the addresses of the rings already, that the receive ring has buffers.
    pub fn start(&mut self) {
        self.notify(Ring::Receive);
    }

    /// Copies a frame into a transmit buffer, to be sent at the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The frame was not queued, for the reason in the error.
    pub fn queue(&mut self, frame: &[u8]) -> Result<(), QueueError> {
        self.transmitter.queue(&self.memory, frame)?;
        self.counters.sent += 1;
        Ok(())
    }

    /// Makes queued frames, and the buffers of frames that were read, available to the device. Notifies the device only
    /// if it has requested that.
    ///
    /// # Errors
    /// The rings are not mapped any longer.
    pub fn flush(&mut self) -> Result<(), Error> {
        let notification = self.transmitter.publish(&self.memory)?;
        if notification == Notification::Required {
            self.notify(Ring::Transmit);
        }
        self.publish_buffers()
    }

    /// Returns true if there is room for a frame. If there is none, the next [`poll`](Self::poll) also waits for room.
    ///
    /// # Errors
    /// The device has violated the virtqueue protocol.
    pub fn poll_room(&mut self) -> Result<bool, Error> {
        self.transmitter.poll_room(&self.memory)
    }

    /// Queues a frame and flushes the interface.
    ///
    /// # Errors
    /// The frame was not queued, for the reason in the error.
    pub fn write(&mut self, frame: &[u8]) -> Result<(), QueueError> {
        self.queue(frame)?;
        Ok(self.flush()?)
    }

    /// Copies the next frame, if there is one, to `into`, and returns its length in bytes. The bytes that exceed `into`
    /// are lost.
    ///
    /// # Errors
    /// The device has violated the virtqueue protocol.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Error> {
        let len = self.receiver.read(&self.memory, into)?;
        if len.is_some() {
            self.counters.received += 1;
        }
        if len.is_none() || self.receiver.should_publish() {
            self.publish_buffers()?;
        }
        Ok(len)
    }

    /// Flushes, and waits until a frame can be read, or a frame can be queued after there was no room, or until
    /// `deadline` on the platform's clock. It returns at once if the deadline has passed; without a deadline the wait
    /// is not limited.
    ///
    /// # Errors
    /// The device has violated the virtqueue protocol or has ended.
    pub fn poll(&mut self, deadline: Option<Duration>) -> Result<Ready, Error> {
        self.flush()?;
        let ready = self.poll_ready()?;
        if ready.is_any() {
            return Ok(ready);
        }
        let begin = self.platform.now();
        let ready = match self.busy_poll(begin, deadline)? {
            Some(ready) => ready,
            None => self.sleep(deadline)?,
        };
        let waited = self.platform.now().saturating_sub(begin);
        self.pacer.record_wait(waited, ready.is_any());
        Ok(ready)
    }

    /// Returns the length of the longest frame in bytes.
    pub fn frame(&self) -> usize {
        self.transmitter.frame()
    }

    /// Returns the counters of the interface.
    pub fn counters(&self) -> Counters {
        Counters {
            runts: self.receiver.runts,
            ..self.counters
        }
    }

    /// Returns the platform on which the interface runs.
    pub fn platform(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Polls the rings with notifications suppressed, for as long as the pacing allows. Returns `None` if the interface
    /// should sleep now.
    fn busy_poll(&mut self, begin: Duration, deadline: Option<Duration>) -> Result<Option<Ready>, Error> {
        let until = match self.pacer.poll_time() {
            PollTime::Limited(window) if window.is_zero() => return Ok(None),
            PollTime::Limited(window) => begin.checked_add(window),
            PollTime::Unlimited => None,
        };
        loop {
            let now = self.platform.now();
            let ready = self.poll_ready()?;
            if ready.is_any() || has_passed(deadline, now) {
                return Ok(Some(ready));
            }
            if has_passed(until, now) {
                return Ok(None);
            }
            core::hint::spin_loop();
        }
    }

    /// Requests notifications and sleeps until one arrives or the deadline has passed.
    fn sleep(&mut self, deadline: Option<Duration>) -> Result<Ready, Error> {
        loop {
            // Each `rearm` has a full fence between its request and its poll, and a notification of either ring ends
            // the sleep.
            let ready = Ready {
                frame: self.receiver.rearm(&self.memory)?,
                room: self.transmitter.rearm(&self.memory)?,
            };
            if ready.is_any() || has_passed(deadline, self.platform.now()) {
                self.receiver.suppress(&self.memory)?;
                self.transmitter.suppress(&self.memory)?;
                return Ok(ready);
            }
            self.counters.sleeps += 1;
            self.platform.sleep(deadline)?;
        }
    }

    fn poll_ready(&mut self) -> Result<Ready, Error> {
        Ok(Ready {
            frame: self.receiver.poll(&self.memory)?,
            room: self.transmitter.poll(&self.memory)?,
        })
    }

    /// Makes the buffers of frames that were read available to the device.
    fn publish_buffers(&mut self) -> Result<(), Error> {
        let notification = self.receiver.publish(&self.memory)?;
        if notification == Notification::Required {
            self.notify(Ring::Receive);
        }
        Ok(())
    }

    fn notify(&mut self, ring: Ring) {
        self.counters.doorbells += 1;
        self.platform.notify(ring);
    }
}

impl Ready {
    /// Returns true if a frame or room is ready.
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.frame || self.room
    }
}

fn has_passed(deadline: Option<Duration>, now: Duration) -> bool {
    deadline.is_some_and(|deadline| now >= deadline)
}

#[cfg(test)]
pub(crate) mod tests;
