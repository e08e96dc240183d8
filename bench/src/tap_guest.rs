//! `pontoon-bench tap-guest`: runs a command in a network namespace whose interface is a tap. A virtio driver carries
//! the tap's frames to the queues of a vhost-user device, or they are sent over a socket, or the backend gets the tap itself.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use pontoon_netns::ip;
use pontoon_sys::seqpacket;
use pontoon_sys::tun::{self, TapOffload, VNET_HDR_LEN};
use pontoon_vm_peer::tap_bridge::{FaultInjector, Faults, Framing};
use pontoon_vm_peer::vhost_user::{Machine, Options, QueuePair};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::args;

/// Time limit for the backend to listen, and then for its answers.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Size of a receive buffer in bytes. It holds any frame, so that a frame is written to the tap in one call.
const BUFFER: u32 = 70_000;

/// Mask of the virtio features that the bare driver accepts: all but checksum and segmentation offload (virtio 1.2,
/// section 5.1.3), and VHOST_F_LOG_ALL.
const BARE: u64 = !(0x1f | 0x7f << 7 | 1 << 26 | 0x7 << 54);

/// Mask of the virtio features that the driver accepts: all but VHOST_F_LOG_ALL.
pub(crate) const ALL: u64 = !(1 << 26);

/// The link that carries the tap's frames to the backend.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum GuestLink {
    /// Virtqueues (vhost-user), with all features that the device offers.
    Driver,
    /// Virtqueues (vhost-user), without checksum and segmentation offload.
    BareDriver,
    /// A stream socket, with partial checksums.
    Stream,
    /// A SOCK_SEQPACKET socket, with partial checksums.
    Packet,
    /// The tap's descriptor, which the backend receives over a SOCK_SEQPACKET socket.
    Tap,
    /// A stream socket on which 1 % of the frames in each direction are lost, 0.5 % duplicated, and 0.5 % reordered.
    LossyStream,
}

/// Makes a tap in the caller's network namespace, connects it to the backend, and runs a command. This process must
/// have CAP_NET_ADMIN in the namespace.
///
/// # Errors
/// No backend listens, or it refuses the driver; the tap cannot be made; the command cannot be run.
pub(crate) fn run(arguments: &args::TapGuest) -> Result<ExitStatus> {
    let segments = match arguments.guest_link {
        GuestLink::Driver | GuestLink::BareDriver | GuestLink::Tap => true,
        GuestLink::Stream | GuestLink::Packet | GuestLink::LossyStream => false,
    };
    let offload = TapOffload {
        vnet_hdr: true,
        tso: segments,
        uso: segments,
    };
    let tap = tun::open("eth0", offload, 1)?.queues.remove(0);
    ip(&format!(
        "link set lo up
         link set eth0 mtu {} txqueuelen 4000 up
         address add 10.0.2.15/24 dev eth0
         route add default via 10.0.2.2",
        arguments.mtu
    ))?;
    let backend = BackendConnection::new(&arguments.socket, arguments.guest_link)?;
    let [program, words @ ..] = &arguments.command[..] else {
        anyhow::bail!("no command was given");
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let carrying = scope.spawn(|| backend.carry(&tap, &over));
        let status = Command::new(program).args(words).status();
        over.store(true, Ordering::Relaxed);
        let carried = carrying
            .join()
            .map_err(|_| anyhow::anyhow!("the thread that carries the tap's frames panicked"))?;
        carried.context("cannot carry the tap's frames")?;
        status.with_context(|| format!("cannot run {}", program.display()))
    })
}

/// Connects to the socket of the backend, and waits until it listens.
fn connect(path: &Path, kind: SocketType) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let begun = Instant::now();
    loop {
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(_) if begun.elapsed() < TIMEOUT => thread::sleep(Duration::from_micros(500)),
            Err(error) => return Err(error).context("the backend does not listen"),
        }
    }
}

/// The running connection between the tap and the backend.
enum BackendConnection {
    Queues(Machine, Vec<QueuePair>),
    Socket(OwnedFd, Framing, Faults),
    /// The backend gets the tap.
    Tap(OwnedFd),
}

impl BackendConnection {
    fn new(path: &Path, guest_link: GuestLink) -> Result<Self> {
        let features = match guest_link {
            GuestLink::Driver => ALL,
            GuestLink::BareDriver => BARE,
            GuestLink::Stream => return Self::socket(path, Framing::Stream, Faults::NONE),
            GuestLink::LossyStream => return Self::socket(path, Framing::Stream, Faults::LOSSY),
            GuestLink::Packet => return Self::socket(path, Framing::Packet, Faults::NONE),
            GuestLink::Tap => return Ok(Self::Tap(connect(path, SocketType::SEQPACKET)?)),
        };
        let stream = UnixStream::from(connect(path, SocketType::STREAM)?);
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (machine, pairs) = Machine::connect(stream, &queues(features))?;
        Ok(Self::Queues(machine, pairs))
    }

    fn socket(path: &Path, framing: Framing, faults: Faults) -> Result<Self> {
        let kind = match framing {
            Framing::Stream => SocketType::STREAM,
            Framing::Packet => SocketType::SEQPACKET,
        };
        Ok(Self::Socket(connect(path, kind)?, framing, faults))
    }

    fn carry(self, tap: &OwnedFd, over: &AtomicBool) -> Result<()> {
        match self {
            Self::Queues(machine, pairs) => Ok(pontoon_vm_peer::vhost_user::bridge_tap(
                tap, &machine, pairs, over,
            )?),
            Self::Socket(socket, framing, faults) => {
                let faults = &mut [0, 1].map(|direction| FaultInjector::new(faults, direction));
                let header = VNET_HDR_LEN as usize;
                Ok(pontoon_vm_peer::tap_bridge::run(
                    tap, header, &socket, framing, faults, over,
                )?)
            }
            Self::Tap(socket) => Ok(seqpacket::send(socket, &[0], &[tap.as_fd()])?),
        }
    }
}

/// Returns the sizes and the features of the driver's queues.
pub(crate) fn queues(features: u64) -> Options {
    Options {
        features,
        pairs: 1,
        queue_size: 256,
        buffer: BUFFER,
    }
}
