//! A thread that carries the frames of a tap over a socket, or to and from virtqueues (vhost-user).

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

/// The protocol by which frames are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A stream socket, with a length before each frame.
    Stream,
    /// A socket with one message for each frame.
    Packet,
    /// vhost-user, with this number of queue pairs, which a virtio driver in this program serves.
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

/// Bytes of the `virtio_net_hdr` before each frame on the tap.
const HEADER: usize = 10;

/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// A tap whose frames are carried by a thread. The thread closes the socket on drop.
pub(crate) struct Carrier {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    /// Carries the frames of `tap` over the socket at `path`. If the other end closes the connection, the thread
    /// connects again.
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

    /// Carries the frames of `tap` over `socket` until the other end closes it.
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
                // The error is only printed: the case fails because of the frames that are missing.
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

/// Connects to the socket at `path`.
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

/// Carries frames between the tap and a message or stream socket until the other end closes it.
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

/// Carries frames between the tap and the virtqueues of a vhost-user connection until the other end closes it.
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
