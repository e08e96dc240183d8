//! The tap link: one queue of a tap interface in the guest's network namespace.
//!
//! A read returns one frame; a write delivers one, and returns after the guest's receive path has run. The supervisor
//! opens the tap and negotiates its offloads. The kernel copies the frames in both directions, so that all memory in
//! this module is private.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::{Limits, Transmit as _};
use pontoon_event::{Edge, Epoll};
use pontoon_sys::tun::TapOffload;

use super::rx_interest::RxInterest;
use super::{AwaitedEvents, Disconnected, Link, RETRY};

mod attach;
mod receive;
mod transmit;

pub use attach::{TapQueues, Vhost};
pub use receive::TapReceiver;
pub use transmit::{TapReservation, TapTransmitter};
/// Size in bytes of the largest IP packet, also if it will be segmented.
const MAX_PACKET: usize = 65_535;

/// One queue of a tap, used by read(2) and write(2).
#[derive(Debug)]
pub struct Tap {
    receiver: TapReceiver,
    transmitter: TapTransmitter,
    rx_interest: RxInterest,
}

impl Tap {
    /// Creates the link of a tap's queue; `mtu` is the MTU of the interface.
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
    /// Returns the offloads and the longest frame that the tap accepts.
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

    fn sleep(&mut self, epoll: &Epoll, wait: AwaitedEvents) -> Option<Duration> {
        let frames = self.rx_interest.sleep(&self.receiver, epoll, wait.frames);
        frames.or(wait.room.then_some(RETRY))
    }
}

/// File descriptor of the tap's queue, which both halves of the link use.
#[derive(Clone, Debug)]
struct QueueFd(Arc<OwnedFd>);

impl AsFd for QueueFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
pub(super) mod tests;
