//! A wrapper of a link that copies the frames of both directions into a capture queue.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::link::{Room, TransmitError};
use pontoon_engine::{Frame, Limits, Transmit};
use pontoon_event::Epoll;
use pontoon_wire::vnet::Offload;
use vm_memory::VolatileSlice;

use super::{AwaitedEvents, Disconnected, Link, LinkCounters, NextGuest, Receive, ReceivedBurst, StopAt};

mod queue;

pub use queue::{CaptureQueue, CaptureRecord, Way};
/// A link, and the queue that receives copies of its frames.
#[derive(Debug)]
pub struct CapturingLink<L> {
    link: L,
    capture_queue: Arc<CaptureQueue>,
}

impl<L: Link> CapturingLink<L> {
    /// Creates a link that copies the frames of `link` into `capture_queue`.
    #[must_use]
    pub fn new(link: L, capture_queue: Arc<CaptureQueue>) -> Self {
        Self { link, capture_queue }
    }

    /// Returns the wrapped link; its frames are no longer captured.
    #[must_use]
    pub fn into_inner(self) -> L {
        self.link
    }

    #[cfg(test)]
    pub(super) fn inner(&mut self) -> &mut L {
        &mut self.link
    }
}

impl<L: Link> Link for CapturingLink<L> {
    type Receiver<'a>
        = CapturingReceiver<'a, L::Receiver<'a>>
    where
        Self: 'a;
    type Transmitter<'a>
        = CapturingTransmitter<'a>
    where
        Self: 'a;

    const UNKNOWN_GUESTS: bool = L::UNKNOWN_GUESTS;

    fn halves(&mut self) -> (Self::Receiver<'_>, CapturingTransmitter<'_>) {
        let (receiver, transmitter) = self.link.halves();
        let capture_queue = &*self.capture_queue;
        let receiver = CapturingReceiver {
            link: receiver,
            capture_queue,
        };
        let transmitter = CapturingTransmitter {
            link: Box::new(transmitter),
            capture_queue,
        };
        (receiver, transmitter)
    }

    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        self.link.watch(epoll)
    }

    fn poll_frames(&mut self) -> bool {
        self.link.poll_frames()
    }

    fn control(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        self.link.control(epoll)
    }

    fn poll_guest(&mut self) -> bool {
        self.link.poll_guest()
    }

    fn take_full(&mut self) -> Result<bool, Disconnected> {
        self.link.take_full()
    }

    fn end_turn(&mut self, more: bool) {
        self.link.end_turn(more);
    }

    fn sleep(&mut self, epoll: &Epoll, wait: AwaitedEvents) -> Option<Duration> {
        self.link.sleep(epoll, wait)
    }

    fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        self.link.retry_accept(epoll)
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }

    fn detach(&mut self, epoll: &Epoll) -> NextGuest {
        self.link.detach(epoll)
    }
}

/// The receiving half of a captured link.
#[derive(Debug)]
pub struct CapturingReceiver<'a, R> {
    link: R,
    capture_queue: &'a CaptureQueue,
}

impl<R: Receive> Receive for CapturingReceiver<'_, R> {
    fn receive(&mut self, max: usize, stop_at: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
        let capture_queue = self.capture_queue;
        self.link.receive(max, stop_at, |frames| {
            for frame in frames {
                if let Some(mut record) = capture_queue.record(Way::Up, frame.len) {
                    record.fill(capture_queue.room(&record).min(frame.len), |bytes| {
                        frame.copy(0, bytes);
                    });
                    capture_queue.put(record);
                }
            }
            sink(frames);
        })
    }
}

/// The sending half of a captured link. It calls the wrapped half through a trait object, so that the engine is not
/// compiled a second time for each type of link.
pub struct CapturingTransmitter<'a> {
    link: Box<dyn AnyTransmit + 'a>,
    capture_queue: &'a CaptureQueue,
}

impl Transmit for CapturingTransmitter<'_> {
    type Room<'a>
        = CapturingReservation<'a>
    where
        Self: 'a;

    fn limits(&self) -> Limits {
        self.link.limits()
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        self.link.send(offload, head, payload)?;
        if let Some(mut record) = self.capture_queue.record(Way::Down, head.len() + payload.len()) {
            for part in [head, payload] {
                record.extend(&part[..part.len().min(self.capture_queue.room(&record))]);
            }
            self.capture_queue.put(record);
        }
        Ok(())
    }

    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<CapturingReservation<'_>> {
        Some(CapturingReservation {
            room: self.link.reserve(frames, head, payload)?,
            capture_queue: self.capture_queue,
        })
    }

    fn flush(&mut self) {
        self.link.flush();
    }
}

/// Reserved frames of a captured link: their memory, and the queue for copies of the committed frames.
pub struct CapturingReservation<'a> {
    room: Box<dyn Room + 'a>,
    capture_queue: &'a CaptureQueue,
}

impl CapturingReservation<'_> {
    /// Returns a copy of the next frame of the reservation. It is made before the commit, because the guest can change
    /// the memory afterwards.
    fn record(&self, head: &[u8], len: usize) -> Option<CaptureRecord> {
        let mut record = self.capture_queue.record(Way::Down, head.len() + len)?;
        record.extend(&head[..head.len().min(self.capture_queue.room(&record))]);
        let mut left = len.min(self.capture_queue.room(&record));
        for slice in self.room.payloads() {
            let here = left.min(slice.len());
            record.fill(here, |bytes| {
                slice.copy_to(bytes);
            });
            left -= here;
        }
        Some(record)
    }
}

impl Room for CapturingReservation<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        self.room.payloads()
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError> {
        let record = self.record(head, len);
        self.room.commit(offload, head, len)?;
        if let Some(record) = record {
            self.capture_queue.put(record);
        }
        Ok(())
    }
}

/// The trait [`Transmit`] in a form that permits trait objects.
trait AnyTransmit {
    fn limits(&self) -> Limits;
    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError>;
    fn reserve<'a>(&'a mut self, frames: usize, head: usize, payload: usize) -> Option<Box<dyn Room + 'a>>;
    fn flush(&mut self);
}

impl<T: Transmit> AnyTransmit for T {
    fn limits(&self) -> Limits {
        Transmit::limits(self)
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        Transmit::send(self, offload, head, payload)
    }

    fn reserve<'a>(&'a mut self, frames: usize, head: usize, payload: usize) -> Option<Box<dyn Room + 'a>> {
        let room = Transmit::reserve(self, frames, head, payload)?;
        Some(Box::new(room))
    }

    fn flush(&mut self) {
        Transmit::flush(self);
    }
}

#[cfg(test)]
mod tests;
