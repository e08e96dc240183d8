//! The interface.

use core::time::Duration;

use pontoon_ring::Features;
use pontoon_ring::memory::Memory;

use crate::map::Map;
use crate::pacing::{Look, Pacer};
use crate::receive::Receiver;
use crate::transmit::Transmitter;
use crate::{Error, Pacing, Platform, QueueError, Ring};

/// A network interface, in memory `M` on a platform `P`, with `N` frames each way.
///
/// Frames are Ethernet frames, from the destination's address to the end of the payload, and complete: this side neither
/// leaves a checksum to the device nor takes one on trust.
///
/// Any error but [`QueueError::Full`] and [`QueueError::Long`] is the end: calls go on to report it.
#[derive(Debug)]
pub struct Interface<M, P, const N: usize> {
    memory: M,
    platform: P,
    receiver: Receiver<N>,
    transmitter: Transmitter<N>,
    pacer: Pacer,
    counters: Counters,
}

/// What there is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A frame to read.
    pub frame: bool,
    /// Room for a frame where there was none, which is said once.
    pub room: bool,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames queued.
    pub sent: u64,
    /// Frames read.
    pub received: u64,
    /// Frames dropped, because the device said that they were shorter than their header.
    pub runts: u64,
    /// Times that the device was notified, of either ring.
    pub doorbells: u64,
    /// Times asleep.
    pub sleeps: u64,
}

impl<M: Memory, P: Platform, const N: usize> Interface<M, P, N> {
    /// Makes both rings in `memory`, where `map` has them, and fills the receive ring. After this, tell the device of the
    /// rings, then [`start`](Self::start).
    ///
    /// `features` is what was negotiated: VIRTIO_F_VERSION_1, and of those that are the rings' concern
    /// VIRTIO_F_EVENT_IDX alone. Without the latter the device is notified more often than it needs to be.
    ///
    /// # Errors
    /// The map does not fit into `memory`, or is not aligned there.
    pub fn new(
        memory: M,
        map: Map<N>,
        features: Features,
        platform: P,
        pacing: Pacing,
    ) -> Result<Self, Error> {
        map.check(&memory)?;
        Ok(Self {
            receiver: Receiver::new(&memory, &map, features)?,
            transmitter: Transmitter::new(&memory, &map, features)?,
            memory,
            platform,
            pacer: Pacer::new(pacing),
            counters: Counters::default(),
        })
    }

    /// Notifies the device, which knows of the rings by now, of the receive buffers.
    pub fn start(&mut self) {
        self.notify(Ring::Receive);
    }

    /// Copies a frame into the ring, to leave at the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The frame was not queued.
    pub fn queue(&mut self, frame: &[u8]) -> Result<(), QueueError> {
        self.transmitter.queue(&self.memory, frame)?;
        self.counters.sent += 1;
        Ok(())
    }

    /// Shows the device what was queued, and the buffers of what was read. It is notified only if it is asleep.
    ///
    /// # Errors
    /// The rings are not in memory any more.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.transmitter.publish(&self.memory)? {
            self.notify(Ring::Transmit);
        }
        self.give_back()
    }

    /// Whether there is room for a frame. If there is none, the next [`poll`](Self::poll) waits for it as well.
    ///
    /// # Errors
    /// The device broke the protocol.
    pub fn has_room(&mut self) -> Result<bool, Error> {
        self.transmitter.has_room(&self.memory)
    }

    /// Queues a frame and flushes.
    ///
    /// # Errors
    /// The frame was not queued.
    pub fn write(&mut self, frame: &[u8]) -> Result<(), QueueError> {
        self.queue(frame)?;
        Ok(self.flush()?)
    }

    /// Takes the next frame, if there is one, and says how long it is. Of one that is longer than `into`, the rest is lost.
    ///
    /// # Errors
    /// The device broke the protocol.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Error> {
        let len = self.receiver.read(&self.memory, into)?;
        if len.is_some() {
            self.counters.received += 1;
        }
        if len.is_none() || self.receiver.is_behind() {
            self.give_back()?;
        }
        Ok(len)
    }

    /// Flushes, and waits until there is a frame to read, or room where there was none, or until `deadline` on the
    /// platform's clock. A deadline that has passed does not wait; with none it waits for ever.
    ///
    /// # Errors
    /// The device broke the protocol, or is gone.
    pub fn poll(&mut self, deadline: Option<Duration>) -> Result<Ready, Error> {
        self.flush()?;
        let ready = self.look()?;
        if ready.is_any() {
            return Ok(ready);
        }
        let begin = self.platform.now();
        let ready = match self.look_around(begin, deadline)? {
            Some(ready) => ready,
            None => self.sleep(deadline)?,
        };
        let waited = self.platform.now().saturating_sub(begin);
        self.pacer.waited(waited, ready.is_any());
        Ok(ready)
    }

    /// Bytes of the longest frame.
    pub fn frame(&self) -> usize {
        self.transmitter.frame()
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        Counters {
            runts: self.receiver.runts,
            ..self.counters
        }
    }

    /// What the interface stands on.
    pub fn platform(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Looks again and again, with notifications off, for as long as it pays. `None`: time to sleep.
    fn look_around(&mut self, begin: Duration, deadline: Option<Duration>) -> Result<Option<Ready>, Error> {
        let until = match self.pacer.look() {
            Look::For(window) if window.is_zero() => return Ok(None),
            Look::For(window) => begin.checked_add(window),
            Look::On => None,
        };
        loop {
            let now = self.platform.now();
            let ready = self.look()?;
            if ready.is_any() || has_passed(deadline, now) {
                return Ok(Some(ready));
            }
            if has_passed(until, now) {
                return Ok(None);
            }
            core::hint::spin_loop();
        }
    }

    /// Sleeps with notifications on.
    fn sleep(&mut self, deadline: Option<Duration>) -> Result<Ready, Error> {
        loop {
            // Each has a full fence between its wish and its last look, and either ends the sleep.
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

    fn look(&mut self) -> Result<Ready, Error> {
        Ok(Ready {
            frame: self.receiver.look(&self.memory)?,
            room: self.transmitter.look(&self.memory)?,
        })
    }

    /// Shows the device the buffers of what was read.
    fn give_back(&mut self) -> Result<(), Error> {
        if self.receiver.publish(&self.memory)? {
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
    /// Whether there is anything.
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
