//! The events of a worker: one epoll instance, each source registered once; edge triggered, but for the link.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pontoon_engine::{FlowId, Kind, Readiness, Token, WorkerId};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

mod accept_backoff;

pub use accept_backoff::AcceptBackoff;

/// Events that one wait takes.
pub const EVENTS: usize = 64;

/// Something of the worker's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Edge {
    /// Frames of the guest's.
    Link = 0,
    /// The supervisor's channel.
    Supervisor = 1,
    /// The raw ICMP socket that all echo ids share.
    Icmp = 2,
    /// The raw ICMPv6 socket that all echo ids share.
    Icmpv6 = 3,
    /// Frames and updates from other workers.
    Inbox = 4,
    /// The link has room.
    Room = 5,
    /// Control events of the link: connections and negotiation.
    Control = 6,
}

impl Edge {
    /// Its token.
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

    /// Returns the edge whose token, of [`Kind::Edge`], has this index.
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
            _ => None,
        }
    }
}

/// The epoll instance.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// The events of one wait.
#[derive(Debug)]
pub struct Events {
    buffer: [MaybeUninit<epoll::Event>; EVENTS],
    list: arrayvec::ArrayVec<(Token, Readiness), EVENTS>,
}

impl Epoll {
    /// An instance with no sources.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Registers `source` for everything, edge triggered.
    ///
    /// # Errors
    /// Out of memory, or of the user's watches.
    pub fn add(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, source, EventData::new_u64(token.0), flags())
    }

    /// Registers `source` for input, level triggered: each wait reports it again as long as something is unread.
    ///
    /// # Errors
    /// Out of memory, or of the user's watches.
    pub fn add_level(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, source, EventData::new_u64(token.0), EventFlags::IN)
    }

    /// Registers `source` for nothing but errors, until [`Self::rouse`].
    ///
    /// # Errors
    /// Out of memory, or of the user's watches.
    pub fn add_dormant(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, source, EventData::new_u64(token.0), EventFlags::ONESHOT)
    }

    /// Requests one event when such a source can be written to.
    ///
    /// # Errors
    /// It is not registered.
    pub fn rouse(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        let flags = EventFlags::OUT | EventFlags::ONESHOT;
        epoll::modify(&self.0, source, EventData::new_u64(token.0), flags)
    }

    /// Registers a listening socket that others may be waiting for too: a client wakes one of those that wait, not all.
    ///
    /// # Errors
    /// Out of memory, or of the user's watches.
    pub fn add_shared(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        let flags = EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE;
        epoll::add(&self.0, source, EventData::new_u64(token.0), flags)
    }

    /// Registers such a socket once more. Readiness that exists already is reported again.
    ///
    /// # Errors
    /// As in [`Self::add_shared`]: it is not registered then.
    pub fn renew_shared(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        // An exclusive registration cannot be changed (epoll_ctl(2)).
        match epoll::delete(&self.0, &source) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.add_shared(source, token)
    }

    /// Forgets a source that others may keep open: closing it would not do.
    pub fn remove(&self, source: impl AsFd) {
        // It fails for a source that is not registered, which is all the same.
        let _ = epoll::delete(&self.0, source);
    }

    /// Registers `source` under another token. Readiness that exists already is reported again.
    ///
    /// # Errors
    /// It is not registered.
    pub fn rename(&self, source: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::modify(&self.0, source, EventData::new_u64(token.0), flags())
    }

    /// Waits until something happens, or for `timeout` (for ever if none), with the kernel's precision of nanoseconds.
    ///
    /// # Errors
    /// The kernel's; a signal is an empty list.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
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
            Err(error) => Err(error.into()),
        }
    }
}

impl Events {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: [MaybeUninit::uninit(); EVENTS],
            list: arrayvec::ArrayVec::new(),
        }
    }

    /// Flows and listeners that are ready, and for what.
    pub fn flows(&self) -> impl Iterator<Item = (FlowId, Readiness)> {
        self.all().filter(|(flow, _)| flow.kind != Kind::Edge)
    }

    /// Which of the worker's own sources are ready, and for what.
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
