//! The supervisor's loop: sleeps until something of the outside changes, and passes it on.

use std::io;
use std::os::fd::BorrowedFd;

use pontoon_runtime::Update;
use rustix::event::{PollFd, PollFlags, poll};

use crate::attach::Attached;
use crate::command::Guest;
use crate::engine::Engine;
use crate::error::{Context as _, Error};
use crate::netlink::AddressWatch;
use crate::resolv::ResolvWatch;
use crate::signals::{Sender, Signal, Signals};

/// What is behind the link.
#[derive(Debug)]
pub(crate) enum Behind {
    /// A command of ours.
    Command(Guest),
    /// A namespace of somebody else's.
    Attached(Attached),
}

/// Everything that the supervisor waits for.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Signals to us.
    pub(crate) signals: Signals,
    /// The guest.
    pub(crate) behind: Behind,
    /// The engine.
    pub(crate) engine: Engine,
    /// The host's addresses.
    pub(crate) addresses: AddressWatch,
    /// The host's resolvers, where they are used.
    pub(crate) resolvers: Option<ResolvWatch>,
}

/// What can have something to say. A guest and an engine that end together: the guest is asked first.
#[derive(Clone, Copy, Debug)]
enum Source {
    Guest,
    Engine,
    Signals,
    Addresses,
    Resolvers,
    RoomForUpdates,
}

impl Watch {
    /// Runs until the guest ends, and returns the exit status.
    ///
    /// # Errors
    /// The engine died, and so did those that took its place. The guest ends with it.
    pub(crate) fn run(mut self) -> Result<u8, Error> {
        loop {
            for source in self.wait().context("cannot wait for events")? {
                if let Some(status) = self.handle(source)? {
                    return Ok(status);
                }
            }
        }
    }

    fn wait(&self) -> io::Result<Vec<Source>> {
        let readable = |source, fd| (source, PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let resolvers = self
            .resolvers
            .as_ref()
            .map(|watch| readable(Source::Resolvers, watch.fd()));
        let unsent = self.engine.unsent().map(|fd| {
            (
                Source::RoomForUpdates,
                PollFd::from_borrowed_fd(fd, PollFlags::OUT),
            )
        });
        let always = [
            readable(Source::Guest, self.behind.fd()),
            readable(Source::Engine, self.engine.fd()),
            readable(Source::Signals, self.signals.fd()),
            readable(Source::Addresses, self.addresses.fd()),
        ];
        let (sources, mut fds): (Vec<_>, Vec<_>) = always.into_iter().chain(resolvers).chain(unsent).unzip();
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        let ready = sources
            .into_iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(source, _)| source).collect())
    }

    /// An exit status where that is the end.
    fn handle(&mut self, source: Source) -> Result<Option<u8>, Error> {
        match source {
            Source::Guest => return Ok(self.behind.ended()),
            Source::Engine => self.engine.replace()?,
            Source::Signals => {
                while let Some(signal) = self.signals.take().context("cannot read signals")? {
                    if let Some(status) = self.behind.take_signal(signal) {
                        return Ok(Some(status));
                    }
                }
            }
            Source::Addresses => {
                if let Some(owned) = self.addresses.changed().context("cannot read netlink")? {
                    tracing::debug!(?owned, "the host's addresses changed");
                    self.engine.tell(Update::Owned(owned));
                }
            }
            Source::Resolvers => {
                let changed = self.resolvers.as_mut().map(ResolvWatch::changed).transpose();
                if let Some(servers) = changed.context("cannot read inotify")?.flatten() {
                    tracing::debug!(?servers, "the host's resolvers changed");
                    self.engine.tell(Update::Resolvers(servers));
                }
            }
            Source::RoomForUpdates => self.engine.flush(),
        }
        Ok(None)
    }
}

impl Behind {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Command(guest) => guest.fd(),
            Self::Attached(attached) => attached.fd(),
        }
    }

    /// The exit status, if the guest is gone.
    fn ended(&self) -> Option<u8> {
        match self {
            Self::Command(guest) => Some(guest.wait()),
            Self::Attached(attached) => attached.is_gone().then_some(0),
        }
    }

    /// Hands a signal on to the command. Beside a namespace of somebody else's it is for us, and ends us.
    fn take_signal(&self, signal: Signal) -> Option<u8> {
        match self {
            Self::Command(guest) => {
                if signal.by == Sender::Process {
                    guest.signal(signal.number);
                }
                None
            }
            Self::Attached(_) => ENDING.contains(&signal.number).then_some(0),
        }
    }
}

/// Signals that ask a program to end.
const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
