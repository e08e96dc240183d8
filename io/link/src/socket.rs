//! Links over a Unix socket that carries plain frames, delimited by a [`Framing`].
//!
//! Frames have no offload metadata. Frames to the guest have complete checksums and are no longer than its MTU. Frames
//! from the guest may have 64 KiB, and their TCP and UDP checksums may be partial; they are not verified, because the
//! bytes were transferred in memory and not by a network.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::Limits;
use pontoon_event::Epoll;
use rustix::io::Errno;

use super::{AwaitedEvents, Disconnected, Link, NextGuest, RETRY, Receive};

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

/// Size of the longest frame in bytes: Ethernet header with a VLAN tag, and the largest IP packet.
pub const MAX_FRAME: usize = 18 + 65_535;

/// Method by which frames are delimited on a socket: by lengths in a stream, or by message boundaries.
pub trait Framing: Debug + Send + 'static {
    /// The half of the link that receives frames from the socket.
    type Receiver: Receive + SocketHalf + Debug + Default + Send;

    /// Size in bytes of the length in front of each frame (big endian); 0 if frames have none.
    const PREFIX: usize;

    /// Sends slices, each of which is a frame with its length or the remaining bytes of one, in order. Returns the
    /// number of bytes that were sent.
    ///
    /// # Errors
    /// Errors of sendmsg(2) and sendmmsg(2).
    fn send(socket: BorrowedFd<'_>, runs: &[IoSlice<'_>]) -> Result<usize, Errno>;
}

/// A half of a socket link, which uses the guest's socket while a guest is connected.
pub trait SocketHalf {
    /// Sets the socket of the guest that has connected, or removes it with `None`. Frames from or to the previous guest
    /// that are buffered are dropped.
    fn set_socket(&mut self, guest: Option<Arc<OwnedFd>>);
}

/// A stream or packet link: a link over a Unix socket whose frames are delimited by the framing `F`.
#[derive(Debug)]
pub struct Socket<F: Framing> {
    guest_listener: GuestListener,
    guest_slot: GuestSlot,
    receiver: F::Receiver,
    transmitter: SocketTransmitter<F>,
}

impl<F: Framing> Socket<F> {
    /// Creates a link to guests that connect through `source`; `mtu` is the MTU of their interface.
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

    const UNKNOWN_GUESTS: bool = true;

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

    fn sleep(&mut self, epoll: &Epoll, wait: AwaitedEvents) -> Option<Duration> {
        let room = (wait.room && self.guest_slot.watch_room(epoll).is_err()).then_some(RETRY);
        self.guest_slot.sleep(epoll, wait.frames).or(room)
    }

    fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        self.guest_listener.retry_accept(epoll)
    }

    fn detach(&mut self, epoll: &Epoll) -> NextGuest {
        self.guest_slot.vacate(epoll);
        self.attach();
        self.guest_listener.await_next(epoll)
    }
}
