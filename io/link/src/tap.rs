//! The tap link: a namespace's interface.
//!
//! A read takes one frame, a write delivers one and runs the guest's receive path before it returns. Segmentation and
//! checksums are negotiated by the supervisor, which opens the tap. The kernel copies at both, so that all memory here
//! is private to us.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::{Limits, Transmit as _};
use pontoon_event::{Edge, Epoll};
use pontoon_sys::tun::TapOffload;

use super::rx_interest::RxInterest;
use super::{Disconnected, For, Link, RETRY};

mod attach;
mod receive;
mod transmit;

pub use attach::{TapQueues, Vhost};
pub use receive::TapReceiver;
pub use transmit::{TapReservation, TapTransmitter};
/// Bytes of the largest IP packet, segmented or not.
const MAX_PACKET: usize = 65_535;

/// One queue of a tap.
#[derive(Debug)]
pub struct Tap {
    receiver: TapReceiver,
    transmitter: TapTransmitter,
    rx_interest: RxInterest,
}

impl Tap {
    /// Takes a queue over. `mtu` is the interface's.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn new(queue: OwnedFd, offload: TapOffload, mtu: u16) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&queue, true)?;
        let limits = Limits {
            mtu: mtu.into(),
            max_gso: MAX_PACKET,
            tso4: offload.tso,
            tso6: offload.tso,
            uso: offload.uso,
        };
        let queue = QueueFd(Arc::new(queue));
        Ok(Self {
            receiver: TapReceiver::new(queue.clone(), offload.vnet_hdr),
            transmitter: TapTransmitter::new(queue, offload.vnet_hdr, limits),
            rx_interest: RxInterest::default(),
        })
    }
}

impl Tap {
    /// Returns the offloads that it supports, and the longest frame.
    pub(super) fn limits(&self) -> Limits {
        self.transmitter.limits()
    }

    pub(super) fn into_halves(self) -> (TapReceiver, TapTransmitter) {
        (self.receiver, self.transmitter)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl Link for Tap {
    type Receiver<'a> = &'a mut TapReceiver;
    type Transmitter<'a> = &'a mut TapTransmitter;

    fn halves(&mut self) -> (&mut TapReceiver, &mut TapTransmitter) {
        (&mut self.receiver, &mut self.transmitter)
    }

    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        Ok(epoll.add_level(&self.receiver, Edge::Link.token())?)
    }

    fn poll_frames(&mut self) -> bool {
        self.rx_interest.misses(&self.receiver)
    }

    fn take_full(&mut self) -> Result<bool, Disconnected> {
        Ok(self.transmitter.take_full())
    }

    fn sleep(&mut self, epoll: &Epoll, wait: For) -> Option<Duration> {
        let frames = self.rx_interest.sleep(&self.receiver, epoll, wait.frames);
        frames.or(wait.room.then_some(RETRY))
    }
}

/// The descriptor, which both halves use.
#[derive(Clone, Debug)]
struct QueueFd(Arc<OwnedFd>);

impl AsFd for QueueFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
pub(super) mod tests;
