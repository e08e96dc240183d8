//! The connection of a stream or packet link to its guest.

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

/// Bytes on their way to the guest, at most, as far as the host allows (`net.core.wmem_max`). The kernel reports room
/// when three fourths of it are free: with its default of 208 KiB both sides slept between bursts, and TCP down was 10,600
/// Mbit/s where it is 15,100 (medians of 4 interleaved, 2026-11-21); 4 MiB bring no more.
const SEND_BUFFER: usize = 1 << 20;

/// A connected guest, if there is one.
#[derive(Debug)]
pub(super) struct GuestSlot(Option<Guest>);

#[derive(Debug)]
struct Guest {
    socket: Arc<OwnedFd>,
    rx_interest: RxInterest,
    /// The same socket: epoll has one registration for each descriptor, and this one's is for room.
    room: OwnedFd,
}

impl Guest {
    /// `socket` does not block.
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
    /// The place of a guest, which is on `socket` if it is connected already.
    pub(super) fn new(socket: Option<OwnedFd>) -> io::Result<Self> {
        Ok(Self(socket.map(Guest::new).transpose()?))
    }

    pub(super) fn socket(&self) -> Option<Arc<OwnedFd>> {
        self.0.as_ref().map(|guest| Arc::clone(&guest.socket))
    }

    /// Registers a guest that was connected from the start.
    pub(super) fn watch(&self, epoll: &Epoll) -> Result<(), Errno> {
        self.0.as_ref().map_or(Ok(()), |guest| guest.watch(epoll))
    }

    /// Requests one [`Edge::Room`] event when the guest's socket has room.
    pub(super) fn watch_room(&self, epoll: &Epoll) -> Result<(), Errno> {
        match &self.0 {
            Some(guest) => epoll.rouse(&guest.room, Edge::Room.token()),
            None => Ok(()),
        }
    }

    /// Returns true if the guest has frames that no event reports.
    pub(super) fn has_frames(&self) -> bool {
        let guest = self.0.as_ref();
        guest.is_some_and(|guest| guest.rx_interest.misses(&guest.socket))
    }

    /// Returns the longest time for which the worker may sleep; `frames`: it waits for frames.
    pub(super) fn sleep(&mut self, epoll: &Epoll, frames: bool) -> Option<Duration> {
        let guest = self.0.as_mut()?;
        guest.rx_interest.sleep(&guest.socket, epoll, frames)
    }

    /// Releases the guest.
    pub(super) fn vacate(&mut self) {
        self.0 = None;
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
        let guest = Guest::new(socket)?;
        guest.watch(epoll)?;
        self.0 = Some(guest);
        Ok(())
    }
}
