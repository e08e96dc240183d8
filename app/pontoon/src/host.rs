//! The state of the host's network that an engine depends on, and its changes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use pontoon_host_network::address_watch::AddressWatch;
use pontoon_host_network::file_watch::FileWatch;
use pontoon_host_network::network::HostNetwork;
use pontoon_host_network::resolv::ResolvWatch;
use pontoon_sys::timer::Timer;
use pontoon_worker::Update;
use pontoon_worker::messages::SupervisorChannel;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{Context as _, Error};

/// Limit on the updates that wait for room in the channel to the engine. A later state replaces an earlier one; only lists of many
/// thousands of addresses have several messages.
const MOST_UNSENT: usize = 1024;

/// Time between two attempts to send updates to an engine whose channel has no room.
const ROOM_PAUSE: Duration = Duration::from_millis(10);

/// Watches of networks that have ended, which the next networks use: closing an inotify instance takes 10 ms and more, because the
/// kernel waits until no CPU uses its watches.
static SPARE: Mutex<Vec<ResolverWatch>> = Mutex::new(Vec::new());

/// State of the host's network at the start.
pub(crate) struct FirstState {
    pub(crate) network: HostNetwork,
    /// The host's resolvers, if they are used.
    pub(crate) resolvers: Vec<SocketAddr>,
}

/// Watch of the host's addresses, routes and resolvers, which sends changes to the engine.
#[derive(Debug)]
pub(crate) struct HostWatch {
    state: Mutex<WatchState>,
    /// Epoll instance with the descriptors of the watches and the timer. The watches are edge triggered, because a read that has
    /// failed is retried after a time only.
    poll: OwnedFd,
    timer: Timer,
}

#[derive(Debug)]
struct WatchState {
    addresses: AddressWatch,
    /// Watch of the host's resolvers, if the network began with them.
    resolvers: Option<ResolverWatch>,
    /// True if the engine uses the host's resolvers.
    asks_host: bool,
    channel: SupervisorChannel,
    /// True if the watch of files has a descriptor, and the epoll instance contains it.
    polls_files: bool,
}

/// Watch of the host's resolv.conf, with its inotify instance.
#[derive(Debug)]
struct ResolverWatch {
    files: FileWatch,
    resolv: ResolvWatch,
}

impl ResolverWatch {
    /// Begins to watch the file, and reads it.
    fn start() -> io::Result<Self> {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(mut watch) = spare {
            watch.look()?;
            return Ok(watch);
        }
        let mut files = FileWatch::default();
        let (resolv, _) = ResolvWatch::start(&mut files);
        Ok(Self { files, resolv })
    }

    /// Reads events, and then the file. Returns the resolvers if they have changed.
    fn look(&mut self) -> io::Result<Option<Vec<SocketAddr>>> {
        self.files.drain()?;
        Ok(self.resolv.look(&mut self.files).servers)
    }
}

impl HostWatch {
    /// Begins to watch the host, and reads its state. The changes are sent over `channel`. The resolvers are read and followed if
    /// `asks_host` is set.
    pub(crate) fn start(asks_host: bool, channel: OwnedFd) -> Result<(Arc<Self>, FirstState), Error> {
        let what = "cannot watch the host's network";
        let (addresses, network) = AddressWatch::start().context("cannot read the host's addresses")?;
        let resolvers = asks_host.then(ResolverWatch::start).transpose().context(what)?;
        let servers = resolvers.as_ref().map(|watch| watch.resolv.servers().to_vec());
        let watch = Self {
            poll: epoll::create(CreateFlags::CLOEXEC).context(what)?,
            timer: Timer::new().context(what)?,
            state: Mutex::new(WatchState {
                addresses,
                resolvers,
                asks_host,
                channel: SupervisorChannel::new(channel, MOST_UNSENT).context(what)?,
                polls_files: false,
            }),
        };
        watch.register().context(what)?;
        let first = FirstState {
            network,
            resolvers: servers.unwrap_or_default(),
        };
        Ok((Arc::new(watch), first))
    }

    fn register(&self) -> io::Result<()> {
        let (mut state, data) = (self.lock(), EventData::new_u64(0));
        epoll::add(&self.poll, &self.timer, data, EventFlags::IN)?;
        epoll::add(
            &self.poll,
            state.addresses.fd(),
            data,
            EventFlags::IN | EventFlags::ET,
        )?;
        self.set_timer(&mut state)
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the host's own addresses, the prefixes that a route of type `local` delivers to it, and the addresses from which it
    /// sends to other hosts.
    pub(crate) fn addresses(&self) -> (Vec<IpNet>, [Option<IpAddr>; 2]) {
        let state = self.lock();
        (state.addresses.owned().to_vec(), state.addresses.sources())
    }

    /// Returns true if there may be changes, or a time has come.
    pub(crate) fn is_ready(&self) -> bool {
        let ready = crate::network::wait(self.poll.as_fd(), PollFlags::IN, Some(Duration::ZERO));
        ready.unwrap_or(true)
    }

    /// Reads what has changed, and sends it to the engine, or queues it if the channel has no room.
    pub(crate) fn follow(&self) -> Result<(), Error> {
        self.try_follow().context("cannot follow the host's network")
    }

    fn try_follow(&self) -> io::Result<()> {
        let mut state = self.lock();
        // Events from here on make the descriptor readable again.
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 3];
        rustix::io::retry_on_intr(|| {
            epoll::wait(
                &self.poll,
                &mut events[..],
                Some(&rustix::event::Timespec::default()),
            )
        })?;
        state.read()?;
        state.channel.flush(Instant::now());
        self.set_timer(&mut state)
    }

    /// Sets the timer to the next time to look without an event, and polls the watch of files if it has a descriptor now.
    fn set_timer(&self, state: &mut WatchState) -> io::Result<()> {
        if let Some(files) = state.resolvers.as_ref().and_then(|watch| watch.files.fd())
            && !state.polls_files
        {
            epoll::add(
                &self.poll,
                files,
                EventData::new_u64(0),
                EventFlags::IN | EventFlags::ET,
            )?;
            state.polls_files = true;
        }
        let now = Instant::now();
        let due = state.deadline(now).map(|due| due.saturating_duration_since(now));
        self.timer.set(due)
    }

    /// Sends the updates that wait for room. Returns true if none does any more.
    pub(crate) fn flush(&self) -> bool {
        let mut state = self.lock();
        state.channel.flush(Instant::now());
        !state.channel.wants_room() && state.channel.retry_at().is_none()
    }

    /// Sends resolvers of the program, and ignores those of the host from now on.
    pub(crate) fn replace_resolvers(&self, update: Update) -> Result<(), Error> {
        let mut state = self.lock();
        state.asks_host = false;
        state.send(update).context("cannot set the resolvers")
    }
}

/// The descriptor is readable while there is something to follow.
impl AsFd for HostWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

impl WatchState {
    fn read(&mut self) -> io::Result<()> {
        let servers = self.resolvers.as_mut().map(ResolverWatch::look).transpose()?;
        if let Some(servers) = servers.flatten()
            && self.asks_host
        {
            tracing::debug!(?servers, "the host's resolvers changed");
            self.send(Update::Resolvers(servers))?;
        }
        let changed = self.addresses.changed()?;
        if let Some(owned) = changed.owned {
            tracing::debug!(?owned, "the host's addresses changed");
            for update in Update::owned(owned) {
                self.send(update)?;
            }
        }
        if let Some(sources) = changed.sources {
            self.send(Update::HostAddresses(sources))?;
        }
        if let Some(exists) = changed.ipv6_default {
            self.send(Update::Ipv6Route(exists))?;
        }
        Ok(())
    }

    fn send(&mut self, update: Update) -> io::Result<()> {
        let overflow = |_| io::Error::other("too many updates wait for the engine");
        self.channel.send(update).map_err(overflow)
    }

    /// Returns the time to look at the host, or to send updates, if no event comes earlier.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let resolvers = self.resolvers.as_ref();
        let room = self.channel.wants_room().then_some(now + ROOM_PAUSE);
        let times = [
            self.addresses.deadline(),
            resolvers.and_then(|watch| watch.files.deadline()),
            resolvers.and_then(|watch| watch.resolv.deadline()),
            self.channel.retry_at(),
            room,
        ];
        times.into_iter().flatten().min()
    }
}

impl Drop for WatchState {
    fn drop(&mut self) {
        let spare = self.resolvers.take();
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).extend(spare);
    }
}

/// Thread that follows the host for an engine with threads.
#[derive(Debug)]
pub(crate) struct HostThread {
    /// Eventfd that ends the thread.
    stop: OwnedFd,
    thread: JoinHandle<Result<(), Error>>,
}

impl HostThread {
    pub(crate) fn start(watch: Arc<HostWatch>) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let thread = thread::Builder::new().name("pontoon-host".to_owned());
        let thread = thread.spawn(move || {
            let followed = follow_until(&watch, &stopped);
            if followed.is_err() {
                // A guest could reach addresses that the host gets from now on.
                watch.lock().channel.shutdown();
            }
            followed
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread.
    ///
    /// # Errors
    /// It had ended the engine before, for this reason.
    pub(crate) fn finish(self) -> Result<(), Error> {
        // A write fails only if the count is at its maximum; then the descriptor is readable.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        let panicked = |_| Err::<(), _>(io::Error::other("the thread panicked"));
        match self.thread.join() {
            Ok(followed) => followed,
            Err(panic) => panicked(panic).context("cannot follow the host's network"),
        }
    }
}

/// Follows the host until `stop` is readable.
fn follow_until(watch: &HostWatch, stop: &OwnedFd) -> Result<(), Error> {
    loop {
        let mut polled = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(watch, PollFlags::IN),
        ];
        let waited = rustix::io::retry_on_intr(|| poll(&mut polled, None));
        waited.context("cannot wait for changes of the host's network")?;
        if !polled[0].revents().is_empty() {
            return Ok(());
        }
        watch.follow()?;
    }
}
