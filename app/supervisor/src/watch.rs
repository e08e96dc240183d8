//! The supervisor's loop: sleeps until something of the outside changes, and passes it on.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use pontoon_runtime::Update;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::attach::Attached;
use crate::command::Guest;
use crate::control::Control;
use crate::engine::{Engine, Successor};
use crate::error::{Context as _, Error};
use crate::file_watch::FileWatch;
use crate::guest_route::GuestRoute;
use crate::netlink::AddressWatch;
use crate::output;
use crate::pid_namespace::PidNamespace;
use crate::resolv::ResolvWatch;
use crate::signals::{Sender, Signal, Signals};

/// What is behind the link.
#[derive(Debug)]
pub(crate) enum Behind {
    /// A command of ours.
    Command(Guest),
    /// A namespace of somebody else's.
    Attached(Attached),
    /// A machine of somebody else's, which the engine alone has a socket to.
    Machine,
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
    /// The guest's IPv6 default route, where it has IPv6.
    pub(crate) guest_route: Option<GuestRoute>,
    /// Changes of files, where some are watched.
    pub(crate) files: FileWatch,
    /// The host's resolvers, where they are used, or where the guest's own file is over those.
    pub(crate) resolvers: Option<ResolvWatch>,
    /// Whether they are used.
    pub(crate) asks_host: bool,
    /// The control socket, where there is one.
    pub(crate) control: Option<Control>,
}

/// What can have something to say. A guest and an engine that end together: the guest is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Guest,
    Engine,
    Signals,
    Addresses,
    Files,
    RoomForUpdates,
    Talk,
    /// Standard error has room for what waits.
    Log,
    Voice,
    Control,
}

impl Watch {
    /// Runs until the guest ends, and returns the exit status.
    ///
    /// # Errors
    /// The engine died, and so did those that took its place, or none could. The guest ends with it.
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
        let guest = self.behind.fd().map(|fd| readable(Source::Guest, fd));
        let files = self.files.fd().map(|fd| readable(Source::Files, fd));
        let unsent = self.engine.unsent().map(|fd| {
            (
                Source::RoomForUpdates,
                PollFd::from_borrowed_fd(fd, PollFlags::OUT),
            )
        });
        let engine = self.engine.fd().map(|fd| readable(Source::Engine, fd));
        let talk = self.engine.talk().map(|fd| readable(Source::Talk, fd));
        let stderr = io::stderr();
        let log = output::wants_room().then(|| {
            let fd = PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::OUT);
            (Source::Log, fd)
        });
        let always = [
            readable(Source::Signals, self.signals.fd()),
            readable(Source::Addresses, self.addresses.fd()),
        ];
        let control = self.control.iter().flat_map(Control::poll_fds);
        let control = control.map(|fd| (Source::Control, fd));
        let asking = self.control.as_ref().is_some_and(Control::is_asking);
        let voice = self.engine.voice().filter(|_| asking);
        let voice = voice.map(|fd| readable(Source::Voice, fd));
        let (sources, mut fds): (Vec<_>, Vec<_>) = guest
            .into_iter()
            .chain(engine)
            .chain(talk)
            .chain(log)
            .chain(always)
            .chain(files)
            .chain(unsent)
            .chain(voice)
            .chain(control)
            .unzip();
        let resolvers = self.resolvers.as_ref().and_then(ResolvWatch::deadline);
        let turns = [
            (Source::Control, self.control.as_ref().and_then(Control::deadline)),
            (Source::Addresses, self.addresses.deadline()),
            (Source::Files, self.files.deadline()),
            (Source::Files, resolvers),
            (Source::Engine, self.engine.next_turn()),
            (Source::RoomForUpdates, self.engine.next_flush()),
            (Source::Log, output::next_turn()),
        ];
        let due = turns.iter().filter_map(|(_, due)| *due).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        rustix::io::retry_on_intr(|| poll(&mut fds, left.as_ref()))?;
        let ready = sources
            .into_iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty());
        let now = Instant::now();
        let due = turns
            .iter()
            .filter(|(_, due)| due.is_some_and(|due| due <= now))
            .map(|(source, _)| *source);
        let mut ready: Vec<_> = ready.map(|(source, _)| source).chain(due).collect();
        // All of its descriptors are served at once.
        ready.dedup();
        Ok(ready)
    }

    /// An exit status where the namespace's file is gone.
    fn files_changed(&mut self) -> Result<Option<u8>, Error> {
        let events = self.files.drain().context("cannot read inotify")?;
        if let Behind::Attached(attached) = &self.behind
            && attached.file_is_gone()
        {
            return Ok(Some(0));
        }
        let Some(resolvers) = &mut self.resolvers else {
            return Ok(None);
        };
        let found = resolvers.look(&mut self.files);
        // Another file of the host's may say the same, and be in the way of the guest's.
        if let Behind::Command(guest) = &self.behind
            && (events || found.touched)
        {
            guest.resolve_anew();
        }
        if let Some(servers) = found.servers
            && self.asks_host
        {
            tracing::debug!(?servers, "the host's resolvers changed");
            self.engine.tell(Update::Resolvers(servers));
        }
        Ok(None)
    }

    /// An exit status where that is the end.
    fn handle(&mut self, source: Source) -> Result<Option<u8>, Error> {
        match source {
            Source::Guest => return Ok(self.behind.ended()),
            Source::Engine => match self.engine.replace(Instant::now())? {
                Successor::None => return self.behind.hung_up().map(Some),
                Successor::Later => {}
                Successor::Runs => {
                    if let Some(control) = &mut self.control {
                        let engine = &mut self.engine;
                        control.ask_again(&mut |update| engine.tell(update), Instant::now());
                    }
                }
            },
            Source::Signals => {
                while let Some(signal) = self.signals.take().context("cannot read signals")? {
                    if let Some(status) = self.behind.take_signal(signal) {
                        return Ok(Some(status));
                    }
                }
            }
            Source::Addresses => {
                let changed = self.addresses.changed().context("cannot read netlink")?;
                if let Some(owned) = changed.owned {
                    tracing::debug!(?owned, "the host's addresses changed");
                    self.engine.tell(Update::Owned(owned));
                }
                if let Some((route, exists)) = self.guest_route.as_mut().zip(changed.ipv6_default) {
                    route.follow(exists);
                    self.engine.tell(Update::Ipv6Route(exists));
                }
            }
            Source::Files => return self.files_changed(),
            Source::RoomForUpdates => self.engine.flush(),
            Source::Talk => self.engine.pass_on(),
            Source::Log => output::flush(),
            Source::Voice => {
                let heard = self.engine.hear();
                if let Some(control) = &mut self.control {
                    let engine = &mut self.engine;
                    for report in heard {
                        control.hear(report, &mut |update| engine.tell(update), Instant::now());
                    }
                }
            }
            Source::Control => {
                if let Some(control) = &mut self.control {
                    let engine = &mut self.engine;
                    control.serve(&mut |update| engine.tell(update), Instant::now());
                }
            }
        }
        Ok(None)
    }
}

impl Behind {
    /// What to poll for the guest's end, unless it is the engine's.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Command(guest) => Some(guest.fd()),
            Self::Attached(attached) => attached.fd(),
            Self::Machine => None,
        }
    }

    /// Where the guest's processes are, if that tells them from others.
    ///
    /// # Errors
    /// It cannot be found out.
    pub(crate) fn pid_namespace(&self) -> Result<Option<PidNamespace>, Error> {
        let namespace = match self {
            Self::Command(guest) => PidNamespace::of(guest.pid()),
            Self::Attached(attached) => attached.pid().map_or(Ok(None), PidNamespace::of),
            Self::Machine => Ok(None),
        };
        namespace.context("cannot look at the guest's PID namespace")
    }

    /// The exit status, if the guest is gone.
    fn ended(&self) -> Option<u8> {
        match self {
            Self::Command(guest) => Some(guest.wait()),
            // Its process has died.
            Self::Attached(_) => Some(0),
            Self::Machine => None,
        }
    }

    /// The exit status when the guest has let go of the link for good.
    fn hung_up(&self) -> Result<u8, Error> {
        match self {
            Self::Machine => Ok(0),
            Self::Command(_) | Self::Attached(_) => Err(Error::new("the guest's interface was removed")),
        }
    }

    /// Hands a signal on to the command. Beside a guest of somebody else's it is for us, and ends us, unless whoever
    /// started us has it ignored.
    fn take_signal(&self, signal: Signal) -> Option<u8> {
        match self {
            Self::Command(guest) => {
                if signal.by == Sender::Process {
                    guest.signal(signal.number);
                }
                None
            }
            Self::Attached(_) | Self::Machine => {
                (!signal.ignored && ENDING.contains(&signal.number)).then_some(0)
            }
        }
    }
}

/// Signals that ask a program to end.
const ENDING: [i32; 5] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGALRM,
    libc::SIGTERM,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_outlives_what_is_ignored() {
        let status = |number, ignored| {
            Behind::Machine.take_signal(Signal {
                number,
                by: Sender::Process,
                ignored,
            })
        };
        for number in ENDING {
            assert_eq!(status(number, false), Some(0), "{number}");
            assert_eq!(status(number, true), None, "{number}");
        }
        assert_eq!(status(libc::SIGWINCH, false), None);
    }
}
