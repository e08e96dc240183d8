//! The connected guest of a stream or packet link: its socket and the registrations with epoll.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pontoon_event::{Edge, Epoll};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;

use crate::guest_listener::GuestConnection;
use crate::rx_interest::{RxInterest, is_now};

/// Size of the socket's send buffer in bytes, which the host may limit (`net.core.wmem_max`). The kernel reports room
/// only when three quarters of the buffer are free: with the default of 208 KiB both sides slept between bursts, and
/// TCP to the guest reached 10,600 Mbit/s instead of 15,100 (medians of 4 interleaved runs, 2026-11-21). A buffer of 4
/// MiB is not faster.
const SEND_BUFFER: usize = 1 << 20;

/// The guest that is connected to the link; empty if none is.
#[derive(Debug)]
pub(super) struct GuestSlot(Option<ConnectedGuest>);

#[derive(Debug)]
struct ConnectedGuest {
    socket: Arc<OwnedFd>,
    rx_interest: RxInterest,
    /// Duplicate of the guest's socket, registered for room. A second descriptor is necessary as epoll has one
    /// registration for each.
    room: OwnedFd,
}

impl ConnectedGuest {
    /// Prepares the guest's socket, which is non-blocking.
    fn new(socket: OwnedFd) -> io::Result<Self> {
        set_socket_send_buffer_size(&socket, SEND_BUFFER)?;
        Ok(Self {
            rx_interest: RxInterest::default(),
            room: socket.try_clone()?,
            socket: Arc::new(socket),
        })
    }

    fn watch(&self, epoll: &Epoll) -> Result<(), Errno> {
        epoll.add_level(&self.socket, Edge::Link.token())?;
        epoll.add_dormant(&self.room, Edge::Room.token())
    }
}

impl GuestSlot {
    /// Creates the slot, with the guest on `socket` if it is connected already.
    pub(super) fn new(socket: Option<OwnedFd>) -> io::Result<Self> {
        Ok(Self(socket.map(ConnectedGuest::new).transpose()?))
    }

    pub(super) fn socket(&self) -> Option<Arc<OwnedFd>> {
        self.0.as_ref().map(|guest| Arc::clone(&guest.socket))
    }

    /// Registers the socket of a guest that was connected from the start.
    pub(super) fn watch(&self, epoll: &Epoll) -> Result<(), Errno> {
        self.0.as_ref().map_or(Ok(()), |guest| guest.watch(epoll))
    }

    /// Requests one [`Edge::Room`] event for the time at which the guest's socket has room.
    pub(super) fn watch_room(&self, epoll: &Epoll) -> Result<(), Errno> {
        match &self.0 {
            Some(guest) => epoll.rouse(&guest.room, Edge::Room.token()),
            None => Ok(()),
        }
    }

    /// Returns true if the guest has sent frames that no event reports.
    pub(super) fn has_frames(&self) -> bool {
        let guest = self.0.as_ref();
        guest.is_some_and(|guest| guest.rx_interest.misses(&guest.socket))
    }

    /// Requests events before the worker sleeps; with `frames`, also for frames from the guest. Returns the longest
    /// time for which the worker may sleep.
    pub(super) fn sleep(&mut self, epoll: &Epoll, frames: bool) -> Option<Duration> {
        let guest = self.0.as_mut()?;
        guest.rx_interest.sleep(&guest.socket, epoll, frames)
    }

    /// Removes the guest and closes its socket.
    pub(super) fn vacate(&mut self, epoll: &Epoll) {
        if let Some(guest) = self.0.take() {
            // A process that was forked meanwhile may have the socket open, too.
            epoll.remove(&guest.socket);
        }
    }
}

impl GuestConnection for GuestSlot {
    fn is_connected(&self) -> bool {
        self.0.is_some()
    }

    fn peer_closed(&self) -> bool {
        let guest = self.0.as_ref();
        guest.is_some_and(|guest| is_now(&guest.socket, PollFlags::RDHUP))
    }

    fn connect(&mut self, socket: OwnedFd, epoll: &Epoll) -> io::Result<()> {
        let guest = ConnectedGuest::new(socket)?;
        guest.watch(epoll)?;
        self.0 = Some(guest);
        Ok(())
    }
}
