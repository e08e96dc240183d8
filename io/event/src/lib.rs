//! The epoll instance of a worker, with which each socket, link and other event source is registered once; all but the
//! link are edge triggered.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use pontoon_engine::{FlowId, Kind, Readiness, Token, WorkerId};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

mod accept_backoff;

pub use accept_backoff::AcceptBackoff;

/// Limit on the events that one epoll_pwait2(2) returns.
pub const EVENTS: usize = 64;

/// An event source of the worker that is neither a flow nor a published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Edge {
    /// The link has frames from the guest.
    Link = 0,
    /// The channel to the supervisor has a message.
    Supervisor = 1,
    /// The raw ICMP socket that all flows with ICMP echo ids share.
    Icmp = 2,
    /// The raw ICMPv6 socket that all flows with ICMPv6 echo ids share.
    Icmpv6 = 3,
    /// The inbox of the mesh has frames or updates from other workers.
    Inbox = 4,
    /// The link has room for frames to the guest again.
    Room = 5,
    /// The link has a control event: a guest connects, disconnects or negotiates (vhost-user).
    Control = 6,
    /// The channel to the socket helper has sockets of the guest's network namespace.
    SocketHelper = 7,
}

impl Edge {
    /// Returns the epoll token of the event source.
    #[must_use]
    pub fn token(self) -> Token {
        let (kind, worker) = (Kind::Edge, WorkerId(0));
        pontoon_engine::FlowId {
            kind,
            worker,
            index: self as u32,
            generation: 0,
        }
        .into()
    }

    /// Returns the event source whose token has this index; `None` for an unknown index.
    #[must_use]
    const fn of(index: u32) -> Option<Self> {
        match index {
            0 => Some(Self::Link),
            1 => Some(Self::Supervisor),
            2 => Some(Self::Icmp),
            3 => Some(Self::Icmpv6),
            4 => Some(Self::Inbox),
            5 => Some(Self::Room),
            6 => Some(Self::Control),
            7 => Some(Self::SocketHelper),
            _ => None,
        }
    }
}

/// An epoll instance (epoll(7)), in which one worker waits.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// Buffer with the events that one [`Epoll::wait`] has returned.
#[derive(Debug)]
pub struct Events {
    buffer: [MaybeUninit<epoll::Event>; EVENTS],
    list: arrayvec::ArrayVec<(Token, Readiness), EVENTS>,
}

impl Epoll {
    /// Creates an epoll instance without sources.
    ///
    /// # Errors
    /// Errors of epoll_create1(2): no free descriptor or memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Registers `source` for input, output, hang-up and errors, edge triggered.
    ///
    /// # Errors
    /// ENOMEM; ENOSPC: the user has reached `/proc/sys/fs/epoll/max_user_watches`.
    pub fn add(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, source, EventData::new_u64(token.0), flags())
    }

    /// Registers `source` for input, level triggered: each wait reports it while it has unread input.
    ///
    /// # Errors
    /// ENOMEM; ENOSPC: the user has reached `/proc/sys/fs/epoll/max_user_watches`.
    pub fn add_level(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, source, EventData::new_u64(token.0), EventFlags::IN)
    }

    /// Registers `source` for one event, a hang-up or an error only; [`Self::rouse`] enables one event for output.
    ///
    /// # Errors
    /// ENOMEM; ENOSPC: the user has reached `/proc/sys/fs/epoll/max_user_watches`.
    pub fn add_dormant(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, source, EventData::new_u64(token.0), EventFlags::ONESHOT)
    }

    /// Requests one event for the time at which a source of [`Self::add_dormant`] can be written to.
    ///
    /// # Errors
    /// ENOENT: the source is not registered.
    pub fn rouse(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        let flags = EventFlags::OUT | EventFlags::ONESHOT;
        epoll::modify(&self.0, source, EventData::new_u64(token.0), flags)
    }

    /// Registers a listening socket that several workers wait for. A client wakes only one of the waiting workers
    /// (`EPOLLEXCLUSIVE`).
    ///
    /// # Errors
    /// ENOMEM; ENOSPC: the user has reached `/proc/sys/fs/epoll/max_user_watches`.
    pub fn add_shared(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        let flags = EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE;
        epoll::add(&self.0, source, EventData::new_u64(token.0), flags)
    }

    /// Removes a listening socket of [`Self::add_shared`] and registers it again, so that clients in its backlog are
    /// reported again.
    ///
    /// # Errors
    /// Those of [`Self::add_shared`]; the socket is not registered afterwards.
    pub fn renew_shared(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        // An exclusive registration cannot be changed (epoll_ctl(2)).
        match epoll::delete(&self.0, &source) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.add_shared(source, token)
    }

    /// Removes a source. It is necessary if other processes have the socket open too, because then closing it does not
    /// remove it.
    pub fn remove(&self, source: impl AsFd) {
        // ENOENT for a source that is not registered is ignored.
        let _ = epoll::delete(&self.0, source);
    }

    /// Changes the token of `source`. A source that is ready already is reported again, with the new token.
    ///
    /// # Errors
    /// ENOENT: the source is not registered.
    pub fn rename(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::modify(&self.0, source, EventData::new_u64(token.0), flags())
    }

    /// Waits for events, at most for the time `requested` (without limit if `None`), with a resolution of nanoseconds
    /// (epoll_pwait2(2)).
    ///
    /// # Errors
    /// Errors of epoll_pwait2(2) other than EINTR; after a signal `events` is empty.
    pub fn wait(&self, events: &mut Events, requested: Option<Duration>) -> io::Result<()> {
        let timeout = requested.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        events.list.clear();
        match epoll::wait(&self.0, &mut events.buffer[..], timeout.as_ref()) {
            Ok((happened, _)) => {
                events.list.extend(happened.iter().map(|event| {
                    let (flags, data) = (event.flags, event.data);
                    (Token(data.u64()), readiness(flags))
                }));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(Errno::NOSYS) => self.wait_milliseconds(events, requested),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits without epoll_pwait2(2).
    #[cold]
    fn wait_milliseconds(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let take = |flags, data| {
            let flags = EventFlags::from_bits_retain(flags);
            events.list.push((Token(data), readiness(flags)));
        };
        match pontoon_sys::epoll::wait::<EVENTS>(&self.0, timeout, take) {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The descriptor is readable while a wait would return an event at once.
impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Events {
    /// Creates an empty buffer for the events of one wait.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: [MaybeUninit::uninit(); EVENTS],
            list: arrayvec::ArrayVec::new(),
        }
    }

    /// Returns the flows and listeners that are ready, with the kind of readiness.
    pub fn flows(&self) -> impl Iterator<Item = (FlowId, Readiness)> {
        self.all().filter(|(flow, _)| flow.kind != Kind::Edge)
    }

    /// Returns the event sources of the worker itself that are ready, with the kind of readiness.
    pub fn edges(&self) -> impl Iterator<Item = (Edge, Readiness)> {
        let edges = self.all().filter(|(flow, _)| flow.kind == Kind::Edge);
        edges.filter_map(|(flow, ready)| Some((Edge::of(flow.index)?, ready)))
    }

    fn all(&self) -> impl Iterator<Item = (FlowId, Readiness)> {
        self.list
            .iter()
            .filter_map(|(token, ready)| Some((token.flow()?, *ready)))
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

fn flags() -> EventFlags {
    EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
}

fn readiness(flags: EventFlags) -> Readiness {
    Readiness {
        readable: flags.intersects(EventFlags::IN | EventFlags::HUP),
        writable: flags.contains(EventFlags::OUT),
        end: flags.intersects(EventFlags::RDHUP | EventFlags::HUP),
        error: flags.contains(EventFlags::ERR),
        urgent: flags.contains(EventFlags::PRI),
    }
}
