//! Links over a Unix socket: plain frames, delimited by a [`Framing`].
//!
//! There is no offload metadata. Frames to the guest have complete checksums and the guest's MTU. Frames from the guest
//! may be of 64 KiB, and their TCP and UDP checksums unfinished: they are not checked, as the bytes came through memory
//! and not over a wire.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::Limits;
use pontoon_event::Epoll;
use rustix::io::Errno;

use super::{Disconnected, For, Link, NextGuest, RETRY, Receive};

mod attach;
mod guest;
mod header_buffers;
mod packet;
mod stream;
#[cfg(test)]
mod tests;
mod transmit;

pub use packet::Packet;
pub use stream::Stream;
pub use transmit::{SocketReservation, SocketTransmitter};

use crate::guest_listener::{GuestConnection as _, GuestListener, Source};
use guest::GuestSlot;

/// Bytes of the longest frame: Ethernet header with a tag, and the largest IP packet.
pub const MAX_FRAME: usize = 18 + 65_535;

/// The delimiting of frames on a socket.
pub trait Framing: Debug + Send + 'static {
    /// The half that receives frames from the socket.
    type Receiver: Receive + SocketHalf + Debug + Default + Send;

    /// Bytes in front of each frame, which hold its length in big endian.
    const PREFIX: usize;

    /// Sends runs of bytes, each a frame with its prefix or the rest of one, from the first one on. Returns the
    /// number of bytes that were sent.
    ///
    /// # Errors
    /// The kernel's.
    fn send(socket: BorrowedFd<'_>, runs: &[IoSlice<'_>]) -> Result<usize, Errno>;
}

/// A half of a link, which has a socket while a guest is connected.
pub trait SocketHalf {
    /// Sets the socket of the guest that is connected from now on. The frames of another one are dropped.
    fn set_socket(&mut self, guest: Option<Arc<OwnedFd>>);
}

/// A link over a socket.
#[derive(Debug)]
pub struct Socket<F: Framing> {
    guest_listener: GuestListener,
    guest_slot: GuestSlot,
    receiver: F::Receiver,
    transmitter: SocketTransmitter<F>,
}

impl<F: Framing> Socket<F> {
    /// A link to guests from `source`, whose interface has this MTU.
    ///
    /// # Errors
    /// A descriptor cannot be made non-blocking.
    pub fn new(source: Source, mtu: u16) -> io::Result<Self> {
        let limits = Limits {
            mtu: mtu.into(),
            max_gso: mtu.into(),
            tso4: false,
            tso6: false,
            uso: false,
        };
        let (guest_listener, guest) = GuestListener::new(source)?;
        let mut socket = Self {
            guest_listener,
            guest_slot: GuestSlot::new(guest)?,
            receiver: F::Receiver::default(),
            transmitter: SocketTransmitter::new(limits),
        };
        socket.attach();
        Ok(socket)
    }

    fn attach(&mut self) {
        self.receiver.set_socket(self.guest_slot.socket());
        self.transmitter.set_socket(self.guest_slot.socket());
    }
}

impl<F: Framing> Link for Socket<F> {
    type Receiver<'a> = &'a mut F::Receiver;
    type Transmitter<'a> = &'a mut SocketTransmitter<F>;

    fn halves(&mut self) -> (&mut F::Receiver, &mut SocketTransmitter<F>) {
        (&mut self.receiver, &mut self.transmitter)
    }

    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        self.guest_slot.watch(epoll)?;
        self.guest_listener.watch(epoll)
    }

    fn control(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        let was_connected = self.guest_slot.is_connected();
        self.guest_listener.accept(&mut self.guest_slot, epoll);
        if !was_connected && self.guest_slot.is_connected() {
            self.attach();
        }
        Ok(())
    }

    fn poll_guest(&mut self) -> bool {
        self.guest_slot.is_connected()
    }

    fn poll_frames(&mut self) -> bool {
        self.guest_slot.has_frames()
    }

    fn take_full(&mut self) -> Result<bool, Disconnected> {
        self.transmitter.take_full()
    }

    fn sleep(&mut self, epoll: &Epoll, wait: For) -> Option<Duration> {
        let room = (wait.room && self.guest_slot.watch_room(epoll).is_err()).then_some(RETRY);
        self.guest_slot.sleep(epoll, wait.frames).or(room)
    }

    fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        self.guest_listener.retry_accept(epoll)
    }

    fn detach(&mut self, epoll: &Epoll) -> NextGuest {
        self.guest_slot.vacate();
        self.attach();
        self.guest_listener.await_next(epoll)
    }
}
