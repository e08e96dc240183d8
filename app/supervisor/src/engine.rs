//! The engine's process, as the supervisor sees it. One that dies is replaced: what it was made of is kept here, and so
//! are the descriptors of links and published ports, which stay open meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_engine::config::{Protocol, Published};
use pontoon_runtime::messages::{Door, MAX_LEN, Order, Report};
use pontoon_runtime::{Attachment, Outbound, Setup, Update};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit, set_parent_process_death_signal};

use crate::error::{Context as _, Error, one_line};
use crate::publish::listen_again;
use crate::restart_policy::{Attempts, Deaths};
use crate::spawn::{self, Child};
use crate::stderr_pipe::Talk;
use crate::{child_channel, environment, output, panics, stdio};

mod outbox;

use outbox::Outbox;

/// A running engine. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Engine {
    life: Life,
    outbox: Outbox,
    /// What the next one will be made of.
    setup: Setup,
    /// The sockets of what is published in `setup`, in the same order: those that the control socket's side has.
    ports: Vec<Arc<OwnedFd>>,
    /// Where each of them is in that order.
    places: Places,
    attachment: Attachment,
    require_sandbox: bool,
    /// The namespaces of the first one.
    born_in: Option<Namespaces>,
    deaths: Deaths,
}

/// The place of each published port in the list of them: a guest may have tens of thousands.
type Places = BTreeMap<(Protocol, SocketAddr), usize>;

#[derive(Debug)]
enum Life {
    /// It runs, or is dead and nobody has looked.
    Alive(Process),
    /// There is none, as the host has refused to start one.
    Missing(Attempts),
}

/// What comes after an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Successor {
    /// Another one, which runs.
    Runs,
    /// Another one, once the host lets it start: see [`Engine::next_turn`].
    Later,
    /// None: the guest has let go of the link for good.
    None,
}

/// One engine: from its fork to its death.
#[derive(Debug)]
struct Process {
    child: Child,
    socket: OwnedFd,
    /// Its standard error.
    talk: Talk,
    /// What it said before it died.
    last_words: Vec<u8>,
}

/// How long the engine may take to say that it runs; it takes a few milliseconds.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// How long the engine may take to end; it takes about a millisecond.
const GRACE: Duration = Duration::from_millis(200);

/// Room for what the engine says of itself: a line of text.
const LINE: usize = 4096;

/// Messages heard at one time: an engine that the guest has taken over may say more without end, and others wait.
const MOST_HEARD: usize = 64;

/// More messages than one that is dead can have left: the kernel counts some hundreds of bytes for each, and lets a
/// socket have some hundreds of thousands.
const MOST_LEFT: usize = 4096;

/// What the engine's last words begin with.
const LAST_WORDS: &[u8] = b"error: ";

impl Engine {
    /// Starts the engine, and waits until its loop runs. `ports` are the sockets of what is published in `setup`.
    ///
    /// # Errors
    /// It could not start, and why.
    pub(crate) fn start(
        mut setup: Setup,
        ports: Vec<Arc<OwnedFd>>,
        attachment: Attachment,
        require_sandbox: bool,
    ) -> Result<Self, Error> {
        let mut born_in = None;
        let mut process = Process::start(&mut setup, &ports, &attachment, require_sandbox, &mut born_in)?;
        process.ready()?;
        let published = setup.config.published.iter().enumerate();
        let places = published.map(|(place, port)| ((port.protocol, port.host), place));
        Ok(Self {
            life: Life::Alive(process),
            places: places.collect(),
            outbox: Outbox::default(),
            setup,
            ports,
            attachment,
            require_sandbox,
            born_in,
            deaths: Deaths::default(),
        })
    }

    /// Call it when it is dead, or its turn has come. Unless it ended in order, another one takes its place, with links,
    /// published ports and what it was told as they were. Flows are lost.
    ///
    /// # Errors
    /// It died too often, or with it the guest's only connection, or no other one could be started for too long: what to
    /// tell the user.
    pub(crate) fn replace(&mut self, now: Instant) -> Result<Successor, Error> {
        let mut attempts = match &mut self.life {
            Life::Missing(attempts) => *attempts,
            Life::Alive(process) => match process.autopsy() {
                Death::Ended => return Ok(Successor::None),
                Death::Died(why) => {
                    self.mourn(&why, now)?;
                    Attempts::new(now)
                }
            },
        };
        // What is left of the dead one may be what its successor needs.
        self.life = Life::Missing(attempts);
        self.outbox.clear();
        let begin = Instant::now();
        let Err(error) = self.again() else {
            return Ok(Successor::Runs);
        };
        let first = attempts.is_first();
        if attempts.too_long(now + begin.elapsed()) {
            let what = format!(
                "no other engine could be started in {:?}: {error}",
                Deaths::WITHIN
            );
            return Err(Error::new(what));
        }
        if first {
            tracing::warn!("{error}; it is tried again for {:?}", Deaths::WITHIN);
        }
        self.life = Life::Missing(attempts);
        Ok(Successor::Later)
    }

    /// Notes a death.
    ///
    /// # Errors
    /// No other engine is to come.
    fn mourn(&mut self, why: &str, now: Instant) -> Result<(), Error> {
        if !self.attachment.outlives_engine() {
            let what = format!("{why}, and nobody else can go on with the guest's connection");
            return Err(Error::new(what).advise("--socket, or a listening socket as --fd"));
        }
        if self.deaths.too_many(now) {
            return Err(Error::new(format!(
                "{why}, as the two before it did in {:?}",
                Deaths::WITHIN
            )));
        }
        tracing::warn!("{why}; another one takes its place, without its flows");
        Ok(())
    }

    /// One that ends before its loop runs has seen nothing of the guest's: what ended it is the host's.
    fn again(&mut self) -> Result<(), Error> {
        reopen_ports(&self.setup.config.published, &self.ports);
        let mut process = Process::start(
            &mut self.setup,
            &self.ports,
            &self.attachment,
            self.require_sandbox,
            &mut self.born_in,
        )?;
        process.ready()?;
        self.life = Life::Alive(process);
        Ok(())
    }

    fn process(&self) -> Option<&Process> {
        match &self.life {
            Life::Alive(process) => Some(process),
            Life::Missing(_) => None,
        }
    }

    /// Readable when the engine is dead.
    #[must_use]
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.process().map(|process| process.child.fd())
    }

    /// When to call [`Self::replace`] where there is no engine.
    #[must_use]
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        match &self.life {
            Life::Alive(_) => None,
            Life::Missing(attempts) => Some(attempts.next()),
        }
    }

    /// Readable when it has said something.
    #[must_use]
    pub(crate) fn voice(&self) -> Option<BorrowedFd<'_>> {
        self.process().map(|process| process.socket.as_fd())
    }

    /// Readable when it has written to its standard error.
    #[must_use]
    pub(crate) fn talk(&self) -> Option<BorrowedFd<'_>> {
        self.process().and_then(|process| process.talk.fd())
    }

    /// Says what it has written there.
    pub(crate) fn pass_on(&mut self) {
        if let Life::Alive(process) = &mut self.life {
            process.talk.pass_on();
        }
    }

    /// What its workers said since the last call, or the beginning of it.
    pub(crate) fn hear(&mut self) -> Vec<Report> {
        match &mut self.life {
            Life::Alive(process) => process.hear(MOST_HEARD),
            Life::Missing(_) => Vec::new(),
        }
    }

    /// Tells the engine something, now or when there is room.
    pub(crate) fn tell(&mut self, update: Update) {
        let config = &mut self.setup.config;
        match &update {
            Update::Resolvers(list) => config.resolvers.clone_from(list),
            Update::Owned(list) => self.setup.owned.clone_from(list),
            Update::Ipv6Route(exists) => {
                if let Some(v6) = &mut config.addresses.v6 {
                    v6.default_route = *exists;
                }
            }
            Update::Rules(list) => config.egress.set(list),
            Update::Published(doors) => {
                change_ports(&mut config.published, &mut self.ports, &mut self.places, doors);
            }
            // The next one is forked from this process, and says as much.
            Update::LogLevel(_) => {}
            Update::Capture(Order::Start(start)) => {
                if let Life::Alive(process) = &self.life {
                    process.limit_files(start.size);
                }
            }
            Update::SomeOwned(_) | Update::Ask(_) | Update::Flows(_) | Update::Capture(Order::Stop(_)) => {}
        }
        if matches!(self.life, Life::Alive(_)) {
            match update {
                Update::Owned(list) => Update::owned(list)
                    .into_iter()
                    .for_each(|update| self.outbox.put(update)),
                update => self.outbox.put(update),
            }
            self.flush();
        }
    }

    /// What to poll for writing while something waits for room.
    #[must_use]
    pub(crate) fn unsent(&self) -> Option<BorrowedFd<'_>> {
        self.voice().filter(|_| self.outbox.wants_room())
    }

    /// When to call [`Self::flush`] where there is nothing to poll for.
    #[must_use]
    pub(crate) fn next_flush(&self) -> Option<Instant> {
        self.outbox.next_turn()
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) {
        if let Life::Alive(process) = &self.life {
            self.outbox.flush(Instant::now(), |update| {
                seqpacket::send(&process.socket, &update.encode(), &update.descriptors())
            });
        }
    }
}

impl Process {
    /// Forks an engine, in as many namespaces of its own as the host allows, or as the one before had.
    fn start(
        setup: &mut Setup,
        ports: &[Arc<OwnedFd>],
        attachment: &Attachment,
        require_sandbox: bool,
        before: &mut Option<Namespaces>,
    ) -> Result<Self, Error> {
        let (ours, theirs) = seqpacket::pair_with_untrusted().context("cannot make a socket pair")?;
        rustix::io::ioctl_fionbio(&ours, true).context("cannot set up a socket")?;
        let disabled = Disabled::from_env().context("cannot read the environment")?;
        let (talk, error) = Talk::pair().context("cannot make a pipe")?;
        let role = match setup.outbound {
            Some(Outbound::Interface(_)) => Role::EngineOnInterface,
            Some(Outbound::Address(_)) | None => Role::Engine,
        };
        let child = spawn::sandboxed(&disabled, before, |born_in| {
            let sandbox = Sandbox {
                role,
                born_in,
                required: require_sandbox,
            };
            let own = rustix::stdio::dup2_stderr(&error);
            own.map_or(1, |()| {
                output::is_own_pipe();
                become_engine(setup, ports, attachment, sandbox, &disabled, &theirs)
            })
        });
        Ok(Self {
            child: child.context("cannot fork the engine")?,
            socket: ours,
            talk,
            last_words: Vec::new(),
        })
    }

    /// Waits until its loop runs.
    ///
    /// # Errors
    /// It could not start, and why. It is dead then.
    fn ready(&mut self) -> Result<(), Error> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut fds, Some(&PATIENCE)).context("cannot wait for the engine")? == 0 {
            return Err(Error::new("the engine does not answer"));
        }
        let mut buffer = [0; LINE];
        let message = child_channel::receive(&self.socket, &mut buffer).context("cannot hear the engine")?;
        let words = message.map_or(&[][..], |message| &buffer[..message.len]);
        self.talk.pass_on_all();
        match Report::decode(words) {
            Ok(Report::Ready) => {
                self.limit_files(Some(0));
                Ok(())
            }
            Ok(Report::Stats(_) | Report::Flows(_) | Report::Captured(_)) | Err(_) => {
                Err(Error::new(died(words, self.child.wait())))
            }
        }
    }

    /// Limits the size of files that it writes to (`RLIMIT_FSIZE`), of which a capture's is the only one. The hard limit
    /// stays, so that this process may raise the soft one later; the engine's own filter refuses it to the engine.
    fn limit_files(&self, most: Option<u64>) {
        let maximum = getrlimit(Resource::Fsize).maximum;
        let limit = Rlimit {
            current: most.into_iter().chain(maximum).min(),
            maximum,
        };
        if let Err(error) = prlimit(Some(self.child.pid()), Resource::Fsize, limit) {
            tracing::debug!(%error, "the size of files is not limited");
        }
    }

    /// What its workers said since the last call, up to `most` messages.
    fn hear(&mut self, most: usize) -> Vec<Report> {
        let mut heard = Vec::new();
        let mut buffer = vec![0; MAX_LEN];
        for _ in 0..most {
            let message = match child_channel::receive(&self.socket, &mut buffer) {
                Ok(Some(message)) => &buffer[..message.len],
                // One that will never answer any more, and would keep whoever waits for its words awake.
                Ok(None) => {
                    self.end();
                    break;
                }
                Err(_) => break,
            };
            match Report::decode(message) {
                Ok(report) => heard.push(report),
                Err(_) => self.last_words = message.to_vec(),
            }
        }
        heard
    }

    /// Sees to its death, for which it has a moment of its own.
    fn end(&mut self) {
        let until = Instant::now() + GRACE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let child = self.child.fd();
            let mut fds = vec![PollFd::new(&child, PollFlags::IN)];
            fds.extend(
                self.talk
                    .fd()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
            let timeout = Timespec::try_from(left).ok().filter(|_| !left.is_zero());
            let ready = timeout.and_then(|timeout| poll(&mut fds, Some(&timeout)).ok());
            if ready.is_none_or(|ready| ready == 0) {
                return self.child.kill();
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            self.talk.pass_on();
        }
    }

    /// Call it when it is dead.
    fn autopsy(&mut self) -> Death {
        // Whoever waits for its answers will ask the next one.
        drop(self.hear(MOST_LEFT));
        self.talk.pass_on_all();
        match self.child.wait() {
            0 => Death::Ended,
            status => Death::Died(died(&self.last_words, status)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of the socket asks it to end, and to say what it counted.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.end();
        let _ = self.child.wait();
    }
}

/// The sockets of published ports are the dead engine's, too: what it did to them must not outlive it.
fn reopen_ports(published: &[Published], sockets: &[impl AsFd]) {
    for (port, socket) in published.iter().zip(sockets) {
        if port.protocol != Protocol::Tcp {
            continue;
        }
        let host = port.host;
        match listen_again(socket) {
            Ok(false) => {}
            Ok(true) => tracing::warn!("the port {host}/tcp, which the engine had shut down, is open again"),
            Err(error) => tracing::warn!("the port {host}/tcp cannot be opened again: {error}"),
        }
    }
}

/// Notes published ports for the next engine.
fn change_ports(
    published: &mut Vec<Published>,
    sockets: &mut Vec<Arc<OwnedFd>>,
    places: &mut Places,
    doors: &[Door],
) {
    for door in doors {
        let port = door.published();
        let key = (port.protocol, port.host);
        match (door, places.get(&key).copied()) {
            (Door::Open(port, socket), None) => {
                places.insert(key, published.len());
                sockets.push(socket.clone().into_inner());
                published.push(*port);
            }
            (Door::Lead(port), Some(place)) => published[place] = *port,
            (Door::Close(_), Some(place)) => {
                places.remove(&key);
                published.swap_remove(place);
                sockets.swap_remove(place);
                if let Some(moved) = published.get(place) {
                    places.insert((moved.protocol, moved.host), place);
                }
            }
            (Door::Open(..), Some(_)) | (Door::Lead(_) | Door::Close(_), None) | (Door::Lost(_), _) => {}
        }
    }
}

/// How an engine ended.
enum Death {
    /// Of its own accord, as its link is gone.
    Ended,
    /// Otherwise; the text says how.
    Died(String),
}

fn died(words: &[u8], status: u8) -> String {
    if let Some(words) = words.strip_prefix(LAST_WORDS) {
        return format!("the engine: {}", one_line(&String::from_utf8_lossy(words)));
    }
    match status {
        129.. => format!("the engine was killed by signal {}", status - 128),
        status => format!("the engine died with status {status}"),
    }
}

/// The engine's life. In a pid namespace of its own it is process 1, which no signal ends but SIGKILL and its own faults.
fn become_engine(
    setup: &mut Setup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    sandbox: Sandbox,
    disabled: &Disabled,
    socket: &OwnedFd,
) -> u8 {
    // SAFETY: a child of one thread has one, and what the supervisor has read of its environment it has copied.
    unsafe { environment::forget() };
    let _ = rustix::thread::set_name(c"pontoon-engine");
    // A capture that meets its limit ends with an error instead.
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    panics::log_them();
    match prepare(setup, ports, attachment, socket) {
        Ok(Own {
            setup,
            attachment,
            supervisor,
            voice,
        }) => match pontoon_runtime::run(setup, attachment, sandbox, disabled, supervisor) {
            Ok(()) => 0,
            Err(error) => {
                let mut words = LAST_WORDS.to_vec();
                words.extend(error.to_string().bytes().take(LINE - LAST_WORDS.len()));
                let _ = seqpacket::send(&voice, &words, &[]);
                1
            }
        },
        Err(error) => {
            tracing::error!(%error, "engine");
            1
        }
    }
}

/// What is the engine's own.
struct Own {
    setup: Setup,
    attachment: Attachment,
    /// Its end of the channel.
    supervisor: OwnedFd,
    /// The same, for the last words.
    voice: OwnedFd,
}

/// Lets go of everything that was the supervisor's; returns what is the engine's own.
fn prepare(
    setup: &mut Setup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    socket: &OwnedFd,
) -> io::Result<Own> {
    // This dies with the supervisor. Where that is dead already, its end of the channel is closed, too.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // There can be nearly as many published ports as descriptors: they are not copied, and before the rest is, the
    // supervisor's own make room.
    let mut setup = setup.take();
    setup.published = ports.iter().map(spawn::take_over).collect();
    let originals = attachment.descriptors().into_iter().chain([socket.as_fd()]);
    let keep: Vec<_> = setup.descriptors().chain(originals).collect();
    spawn::close_all_but(&keep)?;
    let own = Own {
        setup,
        attachment: attachment.try_clone()?,
        supervisor: socket.try_clone()?,
        voice: socket.try_clone()?,
    };
    let copies = own.attachment.descriptors().into_iter();
    let copies = copies.chain([own.supervisor.as_fd(), own.voice.as_fd()]);
    let keep: Vec<_> = own.setup.descriptors().chain(copies).collect();
    spawn::close_all_but(&keep)?;
    stdio::leave_to_the_command()?;
    Ok(own)
}

#[cfg(test)]
mod tests;
