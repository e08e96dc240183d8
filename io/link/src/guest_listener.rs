//! Listening Unix socket of a link, to which guests connect one at a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use pontoon_event::{AcceptBackoff, Edge, Epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracing::{info, warn};

use crate::NextGuest;

/// The Unix socket of a link over which a guest is served: a connection, or a listener.
#[derive(Debug)]
pub enum Source {
    /// A connected socket, whose peer is the only guest.
    Connected(OwnedFd),
    /// A listening socket, to which guests connect.
    Listening {
        /// File descriptor of the listening socket.
        listener: OwnedFd,
        /// True if the link ends when its first guest disconnects; otherwise another guest can connect then.
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

/// The connection of a link to its guest, which may be absent.
pub(crate) trait GuestConnection {
    /// Returns true if a guest is connected.
    fn is_connected(&self) -> bool;

    /// Returns true if a guest is connected and has closed its end of the connection. Data that it has sent before may
    /// be unread.
    fn peer_closed(&self) -> bool;

    /// Makes the non-blocking `socket` the connection to the guest. It is called only while no guest is connected.
    ///
    /// # Errors
    /// Errors of setsockopt(2), dup(2) and epoll_ctl(2), for example EMFILE or ENOSPC.
    fn connect(&mut self, socket: OwnedFd, epoll: &Epoll) -> io::Result<()>;
}

/// Limit on the connections that one call of [`GuestListener::accept`] accepts. Otherwise, a program that connects as
/// fast as its connections are refused would prevent the worker from handling frames.
const MAX_ACCEPTS: usize = 16;

/// Accepts the connections of guests on a listening Unix socket, one guest at a time.
#[derive(Debug)]
pub(crate) struct GuestListener {
    /// The listening socket; `None` if the guest was connected from the start, so that no other guest can connect.
    listener: Option<OwnedFd>,
    one_off: bool,
    accept_backoff: AcceptBackoff,
    /// True if a failure of accept(2) was logged already.
    logged: bool,
}

impl GuestListener {
    /// Creates the listener of `source`, and returns it with the guest's socket if the guest is connected already. Both
    /// sockets become non-blocking.
    ///
    /// # Errors
    /// Errors of ioctl(2) with FIONBIO.
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

    /// Registers the listener with epoll; [`Edge::Control`] reports guests that connect.
    pub(crate) fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        if let Some(listener) = &self.listener {
            epoll.add(listener, Edge::Control.token())?;
        }
        Ok(())
    }

    /// Accepts a guest's connection if no guest is connected. While one is connected, the connections of other guests
    /// are closed at once.
    pub(crate) fn accept(&mut self, guest: &mut impl GuestConnection, epoll: &Epoll) {
        let Some(listener) = &self.listener else {
            return;
        };
        for _ in 0..MAX_ACCEPTS {
            if guest.peer_closed() {
                // The connected guest has closed its end: the next one stays in the backlog, and `await_next` registers
                // the listener again when the first is detached.
                return;
            }
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
                info!("the connection of a second guest was refused");
                continue;
            }
            match guest.connect(socket, epoll) {
                Ok(()) => info!("the guest has connected"),
                Err(error) => warn!("cannot set up a guest's connection: {error}"),
            }
        }
        // epoll reports the rest of the backlog again, after the worker has handled the frames of the guest.
        if let Err(error) = epoll.rename(listener, Edge::Control.token()) {
            warn!("cannot watch the socket of the guest: {error}");
        }
    }

    /// Returns the longest time for which the worker may sleep; `None` without a pause after a failed accept(2). At its
    /// end the listener is registered again, so that [`Edge::Control`] reports guests in its backlog.
    pub(crate) fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        let listener = self.listener.as_ref()?;
        self.accept_backoff
            .sleep(|| epoll.rename(listener, Edge::Control.token()))
    }

    /// Registers the listener again after a guest has disconnected. If another guest can connect, [`Edge::Control`]
    /// reports it, also if it is in the backlog already.
    pub(crate) fn await_next(&self, epoll: &Epoll) -> NextGuest {
        let listener = self.listener.as_ref().filter(|_| !self.one_off);
        match listener.map(|listener| epoll.rename(listener, Edge::Control.token())) {
            Some(Ok(())) => NextGuest::CanConnect,
            Some(Err(_)) | None => NextGuest::Never,
        }
    }
}
