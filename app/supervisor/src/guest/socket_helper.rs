//! Socket helper: a process in the guest's network namespace that opens sockets there for the engine.
//!
//! A socket belongs to the network namespace in which it was created, and the engine cannot enter that of the guest. The helper
//! is a child of the supervisor, not of the guest's first process, which root inside could trace. It has no capability, is not
//! dumpable, and can do nothing but open sockets and send them to the engine, over a channel for each worker. It neither reads
//! data nor connects. The engine checks what it receives.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use pontoon_process::child::restart_policy::RestartPolicy;
use pontoon_process::child::spawn::{self, Child};
use pontoon_process::child::stdio;
use pontoon_process::error::{Context as _, Error};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::seqpacket;
use pontoon_worker::SocketHelperChannels;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::guest::attach::{self, isolate};
use crate::guest::handshake::FromGuest;
use crate::options::GuestOptions;
use crate::watch::GuestKind;

/// The socket helper of a guest, and the state from which it is started again. Dropping this value ends the process.
#[derive(Debug)]
pub(crate) struct SocketHelper {
    namespace: File,
    /// Cookie of the network namespace.
    cookie: u64,
    workers: u8,
    require_sandbox: bool,
    process: Option<Child>,
    restart_policy: RestartPolicy,
}

impl SocketHelper {
    /// Returns the helper of a guest, which is not started yet. `cookie` is that of the guest's network namespace. Returns `None` if
    /// no port of the guest is published or can be, or if it is no namespace of this host.
    pub(crate) fn for_guest(options: &GuestOptions, guest: &GuestKind, cookie: Option<u64>) -> Option<Self> {
        let publishes = !options.publish.is_empty()
            || options.control.is_some()
            || options.slirp_api.is_some()
            || options.pesto.is_some();
        // Without a cookie (before Linux 5.14) the engine cannot check the sockets.
        let cookie = cookie.filter(|_| publishes && options.splice)?;
        let namespace = guest.network().inspect_err(|error| log_reason(error));
        Some(Self {
            namespace: namespace.ok()??,
            cookie,
            workers: options.workers,
            require_sandbox: options.require_sandbox,
            process: None,
            restart_policy: RestartPolicy::default(),
        })
    }

    /// Starts the process, after it has ended an earlier one, and returns the engine's ends of its channels. Without them, all
    /// clients are forwarded over the link, so an error is logged only.
    pub(crate) fn start(&mut self) -> Option<SocketHelperChannels> {
        self.end();
        match self.try_start() {
            Ok(channels) => Some(channels),
            Err(error) => {
                log_reason(&error);
                None
            }
        }
    }

    /// Starts the process again after it has exited. Returns `None` if it has exited too often.
    pub(crate) fn restart(&mut self, now: Instant) -> Option<SocketHelperChannels> {
        if self.restart_policy.record_exceeds(now) {
            tracing::warn!(
                "the socket helper exited too often: clients on this host are forwarded over the link"
            );
            self.end();
            return None;
        }
        tracing::warn!("the socket helper exited; restarting it");
        self.start()
    }

    /// Returns the pidfd of the process, which is readable when the process has exited.
    #[must_use]
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(Child::fd)
    }

    /// Ends the process.
    pub(crate) fn end(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
            let _ = process.wait();
        }
    }

    fn try_start(&mut self) -> Result<SocketHelperChannels, Error> {
        let disabled = Disabled::from_env().context("cannot read the environment")?;
        let cannot = "cannot make a socket pair";
        let (ours, theirs) = seqpacket::pair().context(cannot)?;
        let mut ends = Vec::new();
        let mut channels = Vec::new();
        for _ in 0..self.workers {
            let (end, engine) = seqpacket::pair_with_untrusted().context(cannot)?;
            rustix::io::ioctl_fionbio(&engine, true).context(cannot)?;
            // The helper does not wait for an engine that does not read.
            rustix::io::ioctl_fionbio(&end, true).context(cannot)?;
            ends.push(end);
            channels.push(Arc::new(engine));
        }
        let process = spawn::fork(|| match self.prepare(&ends, theirs.as_fd(), &disabled) {
            Ok(()) => serve(&ends),
            Err(error) => {
                // The send fails only if the supervisor has exited.
                let _ = FromGuest::Failed(error).send(&theirs);
                1
            }
        });
        let process = process.context("cannot fork the socket helper")?;
        drop((theirs, ends));
        self.process = Some(process);
        let message = FromGuest::receive(&ours).context("cannot receive from the socket helper")?;
        match message {
            Some(FromGuest::Prepared) => Ok(SocketHelperChannels {
                cookie: self.cookie,
                channels,
            }),
            Some(FromGuest::Failed(error)) => {
                self.end();
                Err(error)
            }
            _ => {
                self.end();
                Err(Error::new("the socket helper exited unexpectedly"))
            }
        }
    }

    /// Closes all other descriptors of this process, a child, and enters the network namespace and the sandbox.
    fn prepare(
        &self,
        ends: &[OwnedFd],
        supervisor: BorrowedFd<'_>,
        disabled: &Disabled,
    ) -> Result<(), Error> {
        let _ = rustix::thread::set_name(c"pontoon-sockets");
        let keep = [self.namespace.as_fd(), supervisor].into_iter();
        let keep: Vec<_> = keep.chain(ends.iter().map(AsFd::as_fd)).collect();
        isolate(&keep).context("cannot close inherited file descriptors")?;
        stdio::leave_all_to_the_command().context("cannot open /dev/null")?;
        attach::enter(&self.namespace).context("cannot enter the guest's network namespace")?;
        let keep: Vec<_> = std::iter::once(supervisor)
            .chain(ends.iter().map(AsFd::as_fd))
            .collect();
        spawn::close_all_but(&keep).context("cannot close the namespace")?;
        pontoon_sandbox::helper::enter(disabled, self.require_sandbox, || {
            // The change of the user namespace has cleared the signal. If the supervisor has exited, so has the engine, and the
            // channels are closed.
            Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
        })
        .context("cannot enter the sandbox")?;
        FromGuest::Prepared.send(supervisor).context("no supervisor")
    }
}

/// Logs why there is no helper.
fn log_reason(error: &dyn Display) {
    tracing::info!("clients on this host are forwarded over the link: {error}");
}

impl Drop for SocketHelper {
    fn drop(&mut self) {
        self.end();
    }
}

/// Answers the engine's requests until all channels are closed, and returns the exit status.
fn serve(channels: &[OwnedFd]) -> u8 {
    let mut open: Vec<&OwnedFd> = channels.iter().collect();
    while !open.is_empty() {
        let mut fds: Vec<_> = open.iter().map(|end| PollFd::new(*end, PollFlags::IN)).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return 1,
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        open.retain(|channel| !ready.next().unwrap_or(false) || answer(channel).is_ok());
    }
    0
}

/// Answers one request: an address family, and the number of sockets.
///
/// # Errors
/// The channel is closed, or the request is invalid.
fn answer(channel: &OwnedFd) -> io::Result<()> {
    let mut request = [0; 2];
    let received = match seqpacket::receive(channel, &mut request) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        received => received?,
    };
    let (family, count) = match (received.map(|message| message.len), request) {
        (Some(2), [4, count]) => (AddressFamily::INET, count),
        (Some(2), [6, count]) => (AddressFamily::INET6, count),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let most = usize::from(count).min(seqpacket::MAX_DESCRIPTORS);
    // Without a descriptor or memory, fewer sockets are sent.
    let sockets: Vec<OwnedFd> = (0..most).map_while(|_| open(family).ok()).collect();
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let family = &request[..1];
    match seqpacket::send(channel, family, &sockets) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(error),
        // Too many descriptors are in flight. The engine expects a reply.
        Err(_) => seqpacket::send(channel, family, &[]),
    }
}

/// Opens a socket that is not connected.
fn open(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_oobinline(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    Ok(socket)
}
