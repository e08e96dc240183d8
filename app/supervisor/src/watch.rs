//! The supervisor's event loop: waits for changes on the host and forwards them to the engine and the guest.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use pontoon_process::error::{Context as _, Error};
use pontoon_process::guest_namespaces::GuestNamespaces;
use pontoon_process::log::output;
use pontoon_process::signals::{Signal, Signals};
use pontoon_worker::Update;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::Control;
use crate::engine::{Engine, Restart};
use crate::events::Events;
use crate::guest::attach::Attached;
use crate::guest::command::InitProcess;
use crate::guest::route::GuestRoute;
use crate::host::address_watch::AddressWatch;
use crate::host::file_watch::FileWatch;
use crate::host::resolv::ResolvWatch;

/// Guest of the supervisor, by the way in which it was started.
#[derive(Debug)]
pub(crate) enum GuestKind {
    /// The guest is a command that the supervisor has started.
    Command(InitProcess),
    /// The guest is an existing network namespace.
    Attached(Attached),
    /// The guest is a virtual machine, whose socket only the engine has.
    Machine,
}

/// Event sources of the supervisor's loop.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Signals to the supervisor.
    pub(crate) signals: Signals,
    /// Descriptor whose hang-up terminates the loop, if the options name one.
    pub(crate) exit: Option<OwnedFd>,
    /// Guest, whose end terminates the loop.
    pub(crate) guest: GuestKind,
    /// Engine process.
    pub(crate) engine: Engine,
    /// Watch of the host's addresses.
    pub(crate) addresses: AddressWatch,
    /// IPv6 default route in the guest's namespace, if the guest has IPv6.
    pub(crate) guest_route: Option<GuestRoute>,
    /// Watch of files by inotify.
    pub(crate) files: FileWatch,
    /// Watch of the host's resolv.conf, if its resolvers are used, or if the guest's file is mounted over it.
    pub(crate) resolvers: Option<ResolvWatch>,
    /// True if DNS queries are forwarded to the host's resolvers.
    pub(crate) asks_host: bool,
    /// Events of flows, if something may use them.
    pub(crate) events: Option<Events>,
    /// Control socket and metrics address, if the options name one.
    pub(crate) control: Option<Control>,
}

/// Event sources, in the order in which they are handled: if guest and engine exit at the same time, the guest's exit
/// status is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Guest,
    /// The descriptor of `--exit-fd`.
    Exit,
    /// The command was stopped, or the terminal has sent it a signal.
    Job,
    Engine,
    /// The engine is to be checked for a hang.
    EngineHang,
    SocketHelper,
    Signals,
    Addresses,
    Files,
    RoomForUpdates,
    Stderr,
    /// Standard error is writable, and log lines are queued for it.
    Log,
    Reports,
    Events,
    Control,
}

impl Watch {
    /// Runs the supervisor's loop until the guest ends, and returns the exit status.
    ///
    /// # Errors
    /// The engine crashed too often or could not be restarted, which ends the guest, too.
    pub(crate) fn run(mut self) -> Result<u8, Error> {
        let status = self.serve();
        let Self {
            guest,
            engine,
            events,
            ..
        } = self;
        // The engine reports its open flows as closed while it ends.
        drop((guest, engine));
        if let Some(events) = events {
            events.finish(Instant::now());
        }
        status
    }

    fn serve(&mut self) -> Result<u8, Error> {
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
        let guest = self.guest.fd().map(|fd| readable(Source::Guest, fd));
        // Hang-ups and errors are reported even without interest in events.
        let exit = self.exit.as_ref();
        let exit = exit.map(|fd| (Source::Exit, PollFd::new(fd, PollFlags::empty())));
        let job = match &self.guest {
            GuestKind::Command(guest) => guest.job_fd().map(|fd| readable(Source::Job, fd)),
            GuestKind::Attached(_) | GuestKind::Machine => None,
        };
        let files = self.files.fd().map(|fd| readable(Source::Files, fd));
        let unsent = self.engine.unsent().map(|fd| {
            (
                Source::RoomForUpdates,
                PollFd::from_borrowed_fd(fd, PollFlags::OUT),
            )
        });
        let engine = self.engine.fd().map(|fd| readable(Source::Engine, fd));
        let helper = self.engine.helper_fd();
        let helper = helper.map(|fd| readable(Source::SocketHelper, fd));
        let stderr_pipe = self.engine.stderr_fd().map(|fd| readable(Source::Stderr, fd));
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
        let reports = self.engine.report_fd().filter(|_| asking);
        let reports = reports.map(|fd| readable(Source::Reports, fd));
        let events = self.events.as_ref();
        let doorbell = events.map(|events| (Source::Events, events.poll_fd()));
        let audit = events.map(Events::audit_pipes).unwrap_or_default();
        let audit = audit
            .iter()
            .map(|(fd, events)| (Source::Events, PollFd::new(fd, *events)));
        let (sources, mut fds): (Vec<_>, Vec<_>) = guest
            .into_iter()
            .chain(exit)
            .chain(job)
            .chain(engine)
            .chain(helper)
            .chain(stderr_pipe)
            .chain(log)
            .chain(always)
            .chain(files)
            .chain(unsent)
            .chain(reports)
            .chain(doorbell)
            .chain(audit)
            .chain(control)
            .unzip();
        let resolvers = self.resolvers.as_ref().and_then(ResolvWatch::deadline);
        let turns = [
            (Source::Control, self.control.as_ref().and_then(Control::deadline)),
            (Source::Addresses, self.addresses.deadline()),
            (Source::Files, self.files.deadline()),
            (Source::Files, resolvers),
            (Source::Engine, self.engine.next_turn()),
            (Source::EngineHang, self.engine.next_look()),
            (Source::RoomForUpdates, self.engine.next_flush()),
            (Source::Log, output::next_turn()),
            (Source::Events, events.and_then(Events::deadline)),
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
        // All ready descriptors of one source are served by one call.
        ready.dedup();
        Ok(ready)
    }

    /// Handles inotify events. Returns an exit status if the file of the guest's network namespace was removed.
    fn files_changed(&mut self) -> Result<Option<u8>, Error> {
        let events = self.files.drain().context("cannot read inotify")?;
        if let GuestKind::Attached(attached) = &self.guest
            && attached.file_is_gone()
        {
            return Ok(Some(0));
        }
        let Some(resolvers) = &mut self.resolvers else {
            return Ok(None);
        };
        let found = resolvers.look(&mut self.files);
        // A replaced file can have the same content, and is no longer covered by the mount of the guest's file.
        if let GuestKind::Command(guest) = &self.guest
            && (events || found.touched)
        {
            guest.resolv_conf_changed();
        }
        if let Some(servers) = found.servers
            && self.asks_host
        {
            tracing::debug!(?servers, "the host's resolvers changed");
            self.engine.send(Update::Resolvers(servers));
        }
        Ok(None)
    }

    /// Handles a change of the command as a job of the caller's shell. The engine is stopped with this process, because it
    /// would not be notified of changes of the host's addresses meanwhile.
    fn job_changed(&mut self) {
        if let GuestKind::Command(guest) = &mut self.guest
            && let Some((stop, reaction)) = guest.job_changed()
        {
            self.engine.signal(rustix::process::Signal::STOP);
            guest.stop_with_the_command(stop, reaction);
            self.engine.signal(rustix::process::Signal::CONT);
        }
    }

    /// Handles one ready source. Returns an exit status if the guest has ended.
    fn handle(&mut self, source: Source) -> Result<Option<u8>, Error> {
        match source {
            Source::Guest => return Ok(self.guest.ended()),
            Source::Exit => {
                tracing::info!("the descriptor of --exit-fd is closed at its other end");
                return Ok(Some(0));
            }
            Source::Job => self.job_changed(),
            Source::Engine => match self.engine.replace(Instant::now())? {
                Restart::Final => return self.guest.hung_up().map(Some),
                Restart::Scheduled => {}
                Restart::Done => {
                    if let Some(control) = &mut self.control {
                        let engine = &mut self.engine;
                        control.ask_again(&mut |update| engine.send(update), Instant::now());
                    }
                }
            },
            Source::EngineHang => self.engine.look_for_hang(Instant::now()),
            Source::SocketHelper => self.engine.replace_helper(Instant::now()),
            Source::Signals => {
                while let Some(signal) = self.signals.take().context("cannot read signals")? {
                    if let Some(status) = self.guest.take_signal(signal) {
                        return Ok(Some(status));
                    }
                }
            }
            Source::Addresses => {
                let changed = self.addresses.changed().context("cannot read netlink")?;
                if let Some(owned) = changed.owned {
                    tracing::debug!(?owned, "the host's addresses changed");
                    if let Some(control) = &mut self.control {
                        control.set_owned(&owned);
                    }
                    self.engine.send(Update::Owned(owned));
                }
                if let Some(sources) = changed.sources {
                    self.engine.send(Update::HostAddresses(sources));
                }
                if let Some((route, exists)) = self.guest_route.as_mut().zip(changed.ipv6_default) {
                    route.follow(exists);
                    self.engine.send(Update::Ipv6Route(exists));
                }
            }
            Source::Files => return self.files_changed(),
            Source::RoomForUpdates => self.engine.flush(),
            Source::Stderr => self.engine.forward_stderr(),
            Source::Log => output::flush(),
            Source::Reports => {
                let reports = self.engine.receive();
                if let Some(control) = &mut self.control {
                    let engine = &mut self.engine;
                    for report in reports {
                        control.take_report(report, &mut |update| engine.send(update), Instant::now());
                    }
                }
            }
            Source::Events => {
                let have_records = self
                    .events
                    .as_ref()
                    .is_some_and(|events| events.serve(Instant::now()));
                if have_records && let Some(control) = &mut self.control {
                    let engine = &mut self.engine;
                    control.serve(&mut |update| engine.send(update), Instant::now());
                }
            }
            Source::Control => {
                if let Some(control) = &mut self.control {
                    let engine = &mut self.engine;
                    control.serve(&mut |update| engine.send(update), Instant::now());
                }
            }
        }
        Ok(None)
    }
}

impl GuestKind {
    /// Returns the descriptor that is readable when the guest has ended, if the kind of guest has one.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Command(guest) => Some(guest.fd()),
            Self::Attached(attached) => attached.fd(),
            Self::Machine => None,
        }
    }

    /// Returns the namespaces of the guest's processes; `None` for a virtual machine, which has none on this host.
    ///
    /// # Errors
    /// A namespace cannot be opened.
    pub(crate) fn namespaces(&self) -> Result<Option<GuestNamespaces>, Error> {
        let namespaces = match self {
            Self::Command(guest) => GuestNamespaces::of(guest.pid()),
            Self::Attached(attached) => attached.namespaces(),
            Self::Machine => return Ok(None),
        };
        namespaces.map(Some).context("cannot open the guest's namespaces")
    }

    /// Opens the guest's network namespace; `None` for a virtual machine.
    ///
    /// # Errors
    /// The guest has exited, or no descriptor is free.
    pub(crate) fn network(&self) -> io::Result<Option<File>> {
        match self {
            Self::Command(guest) => guest.network().map(Some),
            Self::Attached(attached) => attached.network().map(Some),
            Self::Machine => Ok(None),
        }
    }

    /// Returns the exit status of the guest, if it has ended.
    fn ended(&self) -> Option<u8> {
        match self {
            Self::Command(guest) => Some(guest.wait()),
            // The process that holds the network namespace has exited.
            Self::Attached(_) => Some(0),
            Self::Machine => None,
        }
    }

    /// Returns the exit status of the program after the guest has closed the link and cannot reopen it.
    fn hung_up(&self) -> Result<u8, Error> {
        match self {
            Self::Machine => Ok(0),
            Self::Command(_) | Self::Attached(_) => Err(Error::new("the guest's interface was removed")),
        }
    }

    /// Forwards a signal to the command. With any other kind of guest, a termination signal ends the supervisor, unless its
    /// parent process had the signal ignored; then the exit status is returned.
    fn take_signal(&mut self, signal: Signal) -> Option<u8> {
        match self {
            Self::Command(guest) => {
                guest.signal(signal);
                None
            }
            Self::Attached(_) | Self::Machine => {
                (!signal.ignored && ENDING.contains(&signal.number)).then_some(0)
            }
        }
    }
}

/// Signals that request the termination of a process.
const ENDING: [i32; 5] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGALRM,
    libc::SIGTERM,
];

#[cfg(test)]
mod tests {
    use pontoon_process::signals::Sender;

    use super::*;

    #[test]
    fn an_ignored_signal_does_not_end_a_machine() {
        let status = |number, ignored| {
            GuestKind::Machine.take_signal(Signal {
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
