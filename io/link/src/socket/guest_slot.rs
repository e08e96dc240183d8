//! The one guest that a link has at a time, and where it comes from.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{SocketFlags, accept_with};
use tracing::{info, warn};

use crate::accept_backoff::AcceptBackoff;
use crate::rx_interest::{RxInterest, is_now};
use pontoon_event::{Edge, Epoll};

/// The socket from which guests come.
#[derive(Debug)]
pub enum Source {
    /// A connected socket: one guest, from the start.
    Connected(OwnedFd),
    /// A listening socket.
    Listening {
        /// The socket.
        listener: OwnedFd,
        /// Only one guest, rather than one after the other.
        one_off: bool,
    },
}

impl Source {
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Connected(socket) => Self::Connected(socket.try_clone()?),
            Self::Listening { listener, one_off } => Self::Listening {
                listener: listener.try_clone()?,
                one_off: *one_off,
            },
        })
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connected(socket) => socket.as_fd(),
            Self::Listening { listener, .. } => listener.as_fd(),
        }
    }
}

/// Bytes on their way to the guest, at most, as far as the host allows (`net.core.wmem_max`). The kernel reports room
/// when three fourths of it are free: with its default of 208 KiB both sides slept between bursts, and TCP down was 10,600
/// Mbit/s where it is 15,100 (medians of 4 interleaved, 2026-11-21); 4 MiB bring no more.
const SEND_BUFFER: usize = 1 << 20;

/// A place for one guest.
#[derive(Debug)]
pub(super) struct GuestSlot {
    guest: Option<Guest>,
    /// The listener, if another guest may connect.
    listener: Option<OwnedFd>,
    accept_backoff: AcceptBackoff,
    one_off: bool,
}

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

    /// Returns true if the guest has closed its end; data that it sent before may still be unread.
    fn has_hung_up(&self) -> bool {
        is_now(&self.socket, PollFlags::RDHUP)
    }

    fn watch(&self, epoll: &Epoll) -> Result<(), Errno> {
        epoll.add_level(&self.socket, Edge::Link.token())?;
        epoll.add_dormant(&self.room, Edge::Room.token())
    }
}

impl GuestSlot {
    pub(super) fn new(source: Source) -> io::Result<Self> {
        Ok(match source {
            Source::Connected(socket) => {
                rustix::io::ioctl_fionbio(&socket, true)?;
                Self {
                    guest: Some(Guest::new(socket)?),
                    listener: None,
                    accept_backoff: AcceptBackoff::default(),
                    one_off: true,
                }
            }
            Source::Listening { listener, one_off } => {
                rustix::io::ioctl_fionbio(&listener, true)?;
                Self {
                    guest: None,
                    listener: Some(listener),
                    accept_backoff: AcceptBackoff::default(),
                    one_off,
                }
            }
        })
    }

    pub(super) fn guest(&self) -> Option<Arc<OwnedFd>> {
        self.guest.as_ref().map(|guest| Arc::clone(&guest.socket))
    }

    pub(super) fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        if let Some(guest) = &self.guest {
            guest.watch(epoll)?;
        }
        if let Some(listener) = &self.listener {
            epoll.add(listener, Edge::Control.token())?;
        }
        Ok(())
    }

    /// Requests one [`Edge::Room`] event when the guest's socket has room.
    pub(super) fn watch_room(&self, epoll: &Epoll) -> Result<(), Errno> {
        match &self.guest {
            Some(guest) => epoll.rouse(&guest.room, Edge::Room.token()),
            None => Ok(()),
        }
    }

    /// Accepts a guest from the listener; further connections are closed while a guest is attached. Returns true if there
    /// is a new guest.
    pub(super) fn admit(&mut self, epoll: &Epoll) -> bool {
        let Some(listener) = &self.listener else {
            return false;
        };
        if self.guest.as_ref().is_some_and(Guest::has_hung_up) {
            // Leave the next guest in the backlog; `await_next` registers the listener again when this one is released.
            return false;
        }
        let mut new = false;
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => {
                    self.accept_backoff.end();
                    return new;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    self.accept_backoff.begin(error);
                    return new;
                }
            };
            if self.guest.is_some() {
                info!("refused the connection of a second guest");
                continue;
            }
            let guest = Guest::new(socket).and_then(|guest| {
                guest.watch(epoll)?;
                Ok(guest)
            });
            match guest {
                Ok(guest) => {
                    info!("the guest has connected");
                    self.guest = Some(guest);
                    new = true;
                }
                Err(error) => warn!("cannot set up a guest's connection: {error}"),
            }
        }
    }

    /// Returns true if the guest has frames that no event reports.
    pub(super) fn has_frames(&self) -> bool {
        let guest = self.guest.as_ref();
        guest.is_some_and(|guest| guest.rx_interest.misses(&guest.socket))
    }

    /// Returns the longest time for which the worker may sleep; `frames`: it waits for frames.
    pub(super) fn sleep(&mut self, epoll: &Epoll, frames: bool) -> Option<Duration> {
        let guest = self.guest.as_mut();
        let guest = guest.and_then(|guest| guest.rx_interest.sleep(&guest.socket, epoll, frames));
        let rest = self.accept_backoff.sleep(self.listener.as_ref(), epoll);
        guest.into_iter().chain(rest).min()
    }

    /// Releases the guest.
    pub(super) fn vacate(&mut self) {
        self.guest = None;
    }

    /// Registers the listener again. Returns true if another guest can connect; [`Edge::Control`] then also reports one
    /// that is in the backlog already.
    pub(super) fn await_next(&self, epoll: &Epoll) -> bool {
        match &self.listener {
            Some(listener) if !self.one_off => epoll.rename(listener.as_fd(), Edge::Control.token()).is_ok(),
            _ => false,
        }
    }
}
