//! A tap carried over a socket, or joined to queues in memory, in a thread.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use pontoon_vm_peer::tap_bridge::{FaultInjector, Faults, Framing as Frames};
use pontoon_vm_peer::vhost_user::{Machine, Options};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Framing on the socket, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Each behind its length.
    Stream,
    /// Each in a message of its own.
    Packet,
    /// In so many pairs of queues in memory, which a driver at native speed works on.
    VhostUser(usize),
}

impl Framing {
    pub(crate) const ALL: [Self; 3] = [Self::Stream, Self::Packet, Self::VhostUser(1)];

    pub(crate) fn socket_type(self) -> SocketType {
        match self {
            Self::Stream | Self::VhostUser(_) => SocketType::STREAM,
            Self::Packet => SocketType::SEQPACKET,
        }
    }
}

impl fmt::Display for Framing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Stream => "stream",
            Self::Packet => "packet",
            Self::VhostUser(_) => "vhost-user",
        })
    }
}

/// Bytes of the tap's `virtio_net_hdr`.
const HEADER: usize = 10;

/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// A tap that is being carried. Dropped, it lets go of the socket.
pub(crate) struct Carrier {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    /// Carries `tap` over the socket of that path: over one connection after the other, if it is closed there.
    pub(crate) fn to_path(tap: OwnedFd, path: PathBuf, framing: Framing, faults: Faults) -> Self {
        Self::start(tap, framing, faults, move |stop| {
            loop {
                if stop.load(Ordering::Relaxed) {
                    return None;
                }
                match dial(&path, framing) {
                    Ok(socket) => return Some(socket),
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        })
    }

    /// Carries `tap` over this socket, until it is closed.
    pub(crate) fn to_socket(tap: OwnedFd, socket: OwnedFd, framing: Framing) -> Self {
        let mut socket = Some(socket);
        Self::start(tap, framing, Faults::NONE, move |_| socket.take())
    }

    fn start(
        tap: OwnedFd,
        framing: Framing,
        faults: Faults,
        mut next: impl FnMut(&AtomicBool) -> Option<OwnedFd> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut faults = [0, 1].map(|direction| FaultInjector::new(faults, direction));
            while let Some(socket) = next(&is_stopped) {
                let carried = match framing {
                    Framing::Stream => messages(&tap, &socket, Frames::Stream, &mut faults, &is_stopped),
                    Framing::Packet => messages(&tap, &socket, Frames::Packet, &mut faults, &is_stopped),
                    Framing::VhostUser(pairs) => carry_queues(&tap, socket, pairs, &is_stopped),
                };
                // The case itself then lacks what was not carried.
                if let Err(error) = carried {
                    eprintln!("carrier: {error:#}");
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connects to the socket of that path.
pub(crate) fn dial(path: &Path, framing: Framing) -> Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::UNIX,
        framing.socket_type(),
        SocketFlags::CLOEXEC,
        None,
    )?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Between the tap and the other end of the socket, until that is closed.
fn messages(
    tap: &OwnedFd,
    socket: &OwnedFd,
    frames: Frames,
    faults: &mut [FaultInjector; 2],
    stop: &AtomicBool,
) -> Result<()> {
    Ok(pontoon_vm_peer::tap_bridge::run(
        tap, HEADER, socket, frames, faults, stop,
    )?)
}

/// Between the tap and a machine's queues, until the socket is closed.
fn carry_queues(tap: &OwnedFd, socket: OwnedFd, pairs: usize, stop: &AtomicBool) -> Result<()> {
    let socket = UnixStream::from(socket);
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let options = Options {
        features: u64::MAX,
        pairs,
        queue_size: 256,
        buffer: 70_000,
    };
    let (machine, pairs) = Machine::connect(socket, &options)?;
    Ok(pontoon_vm_peer::vhost_user::bridge_tap(
        tap, &machine, pairs, stop,
    )?)
}
