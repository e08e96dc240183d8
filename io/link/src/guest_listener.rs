//! The guests of a link over a Unix socket, which connect one at a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use pontoon_event::{AcceptBackoff, Edge, Epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracing::{info, warn};

use crate::NextGuest;

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

/// The connection of a link to its guest, if there is one.
pub(crate) trait GuestConnection {
    /// Returns true if a guest is connected.
    fn is_connected(&self) -> bool;

    /// Returns true if a guest is connected and has closed its end; data that it sent before may still be unread.
    fn peer_closed(&self) -> bool;

    /// Makes `socket`, which does not block, the connection. None exists.
    ///
    /// # Errors
    /// Out of descriptors, of memory, or of the user's watches.
    fn connect(&mut self, socket: OwnedFd, epoll: &Epoll) -> io::Result<()>;
}

/// Accepts the connections of guests, one at a time.
#[derive(Debug)]
pub(crate) struct GuestListener {
    /// The listener; `None`: the guest was connected from the start, and there is no other.
    listener: Option<OwnedFd>,
    one_off: bool,
    accept_backoff: AcceptBackoff,
    /// The failure to accept was logged.
    logged: bool,
}

impl GuestListener {
    /// The listener of `source`, and the guest if it is connected already. Neither blocks.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub(crate) fn new(source: Source) -> io::Result<(Self, Option<OwnedFd>)> {
        rustix::io::ioctl_fionbio(&source, true)?;
        let (listener, one_off, guest) = match source {
            Source::Connected(socket) => (None, true, Some(socket)),
            Source::Listening { listener, one_off } => (Some(listener), one_off, None),
        };
        let guest_listener = Self {
            listener,
            one_off,
            accept_backoff: AcceptBackoff::default(),
            logged: false,
        };
        Ok((guest_listener, guest))
    }

    /// Registers the listener: [`Edge::Control`] reports guests.
    pub(crate) fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        if let Some(listener) = &self.listener {
            epoll.add(listener, Edge::Control.token())?;
        }
        Ok(())
    }

    /// Accepts a guest unless one is connected; the connections of others are closed while it is.
    pub(crate) fn accept(&mut self, guest: &mut impl GuestConnection, epoll: &Epoll) {
        let Some(listener) = &self.listener else {
            return;
        };
        if guest.peer_closed() {
            // Leave the next guest in the backlog; `await_next` registers the listener again when this one is detached.
            return;
        }
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => {
                    self.accept_backoff.end();
                    self.logged = false;
                    return;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    self.accept_backoff.begin();
                    if !std::mem::replace(&mut self.logged, true) {
                        warn!("cannot accept a guest's connection: {error}; retrying");
                    }
                    return;
                }
            };
            if guest.is_connected() {
                info!("refused the connection of a second guest");
                continue;
            }
            match guest.connect(socket, epoll) {
                Ok(()) => info!("the guest has connected"),
                Err(error) => warn!("cannot set up a guest's connection: {error}"),
            }
        }
    }

    /// Returns the longest time for which the worker may sleep. At its end the listener is registered again, so that
    /// [`Edge::Control`] reports guests in its backlog.
    pub(crate) fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        let listener = self.listener.as_ref()?;
        self.accept_backoff
            .sleep(|| epoll.rename(listener, Edge::Control.token()))
    }

    /// Registers the listener again, as a guest has disconnected. If another one can connect, [`Edge::Control`] reports
    /// it, also if it is in the backlog already.
    pub(crate) fn await_next(&self, epoll: &Epoll) -> NextGuest {
        let listener = self.listener.as_ref().filter(|_| !self.one_off);
        match listener.map(|listener| epoll.rename(listener, Edge::Control.token())) {
            Some(Ok(())) => NextGuest::CanConnect,
            Some(Err(_)) | None => NextGuest::Never,
        }
    }
}
