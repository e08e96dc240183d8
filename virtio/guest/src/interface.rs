//! The network interface: sends and receives frames, and waits for the device.

use core::time::Duration;

use pontoon_ring::memory::Memory;
use pontoon_ring::{Features, Notification};

use crate::map::Map;
use crate::pacing::{Pacer, PollTime};
use crate::receive::ReceiveQueue;
use crate::transmit::TransmitQueue;
use crate::{Error, Pacing, Platform, QueueError, Ring};

/// A network interface in memory `M` on a platform `P`, with `N` frames each way.
///
/// Frames are Ethernet frames from the destination address to the end of the payload, with complete checksums: no
/// checksum is left to the device, and none is accepted unverified from it.
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

/// The result of [`Interface::poll`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A frame to read.
    pub frame: bool,
    /// There is room for a frame after there was none. Reported once.
    pub room: bool,
}

/// Counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames queued.
    pub sent: u64,
    /// Frames read.
    pub received: u64,
    /// Frames dropped because their length was below that of the header.
    pub runts: u64,
    /// Notifications of the device, for either ring.
    pub doorbells: u64,
    /// Number of sleeps.
    pub sleeps: u64,
}

impl<M: Memory, P: Platform, const N: usize> Interface<M, P, N> {
    /// Creates both rings in `memory` at the addresses in `map`, and fills the receive ring. After this, configure the
    /// device with the rings and call [`start`](Self::start).
    ///
    /// `features` are those negotiated: VIRTIO_F_VERSION_1 is required, and of the features that concern the rings only
    /// VIRTIO_F_EVENT_IDX is supported. Without it the device is notified more often.
    ///
    /// # Errors
    /// The map does not fit `memory`, or is misaligned in it.
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

    /// Notifies the device, which must know the rings by now, of the receive buffers.
    pub fn start(&mut self) {
        self.notify(Ring::Receive);
    }

    /// Copies a frame into a transmit buffer, to be sent at the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The frame was not queued.
    pub fn queue(&mut self, frame: &[u8]) -> Result<(), QueueError> {
        self.transmitter.queue(&self.memory, frame)?;
        self.counters.sent += 1;
        Ok(())
    }

    /// Publishes queued frames and the buffers of frames that were read. Notifies the device only if it requested that.
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

    /// Returns whether there is room for a frame. If there is none, the next [`poll`](Self::poll) waits for room, too.
    ///
    /// # Errors
    /// The device violated the protocol.
    pub fn poll_room(&mut self) -> Result<bool, Error> {
        self.transmitter.poll_room(&self.memory)
    }

    /// Queues a frame and flushes.
    ///
    /// # Errors
    /// The frame was not queued.
    pub fn write(&mut self, frame: &[u8]) -> Result<(), QueueError> {
        self.queue(frame)?;
        Ok(self.flush()?)
    }

    /// Copies the next frame, if there is one, into `into` and returns its length. The part of a frame that does not
    /// fit is lost.
    ///
    /// # Errors
    /// The device violated the protocol.
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

    /// Flushes, and waits until there is a frame to read, or room after there was none, or until `deadline` on the
    /// platform's clock. Returns at once if the deadline has passed; without a deadline there is no time limit.
    ///
    /// # Errors
    /// The device violated the protocol, or is gone.
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

    /// Returns the bytes of the longest frame.
    pub fn frame(&self) -> usize {
        self.transmitter.frame()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        Counters {
            runts: self.receiver.runts,
            ..self.counters
        }
    }

    /// Returns the platform.
    pub fn platform(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Polls with notifications suppressed, for as long as the pacing allows. Returns `None` when it is time to sleep.
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

    /// Sleeps with notifications requested.
    fn sleep(&mut self, deadline: Option<Duration>) -> Result<Ready, Error> {
        loop {
            // Each `rearm` has a full fence between its request and its poll, and either notification ends the sleep.
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

    /// Publishes the buffers of frames that were read.
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
    /// Returns whether anything is ready.
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
