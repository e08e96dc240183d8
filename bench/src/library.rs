//! `pontoon-bench library`: a program that embeds the library, for measurements beside the command `pontoon`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use pontoon::{FramePort, Guest, NetDevice, Network, NetworkBuilder, QueueConfig};
use pontoon_sys::seqpacket;
use pontoon_sys::tun::VNET_HDR_LEN;
use pontoon_vm_peer::vhost_user::{GuestQueues, Queue, bridge_queues, configure_tap};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args;
use crate::tap_guest::{ALL, queues};

/// The function of the library by which the program serves its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LibraryGuest {
    /// `Guest::tap`.
    Tap,
    /// `Guest::vhost_user`.
    VhostUser,
    /// `Guest::stream`.
    Stream,
    /// `Guest::packet`.
    Packet,
    /// `NetworkBuilder::device`. This process has the driver's side, too, which carries the frames of a tap.
    Device,
    /// `NetworkBuilder::frames`. This process carries the frames of a tap.
    Frames,
}

/// Limit on flows: that of the command in an environment with enough descriptors.
const FLOWS: u32 = 131_072;

/// VIRTIO_NET_F_CSUM (virtio 1.2, section 5.1.3).
const CSUM: u64 = 1;

/// Length of the longest frame in bytes, with its virtio-net header.
const MAX_FRAME: usize = FramePort::HEADER_LEN + 18 + 65_535;

/// Serves a guest until the network ends.
///
/// # Errors
/// The network does not start, or has ended.
pub(crate) fn run(arguments: &args::Library) -> Result<()> {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: most,
            maximum: most,
        },
    )?;
    let mut options = Network::builder()
        .ipv4_subnet("10.0.2.0/24")?
        .host_loopback_at_gateway()
        .mtu(arguments.mtu)
        .max_flows(FLOWS);
    if let Some(port) = arguments.publish {
        options = options.publish(&format!("127.0.0.1:{port}:{port}"))?;
    }
    let listener = |kind| listen_at(&arguments.socket, kind);
    match arguments.guest {
        LibraryGuest::Stream => serve(options.attach(Guest::stream(listener(SocketType::STREAM)?)?)?),
        LibraryGuest::Packet => serve(options.attach(Guest::packet(listener(SocketType::SEQPACKET)?)?)?),
        LibraryGuest::VhostUser => {
            serve(options.attach(Guest::vhost_user(listener(SocketType::STREAM)?, 1)?)?)
        }
        LibraryGuest::Tap => serve(options.attach(Guest::tap(receive_tap(&arguments.socket)?)?)?),
        LibraryGuest::Device => serve_device(options, &receive_tap(&arguments.socket)?),
        LibraryGuest::Frames => serve_frames(options, &receive_tap(&arguments.socket)?),
    }
}

fn listen_at(path: &Path, kind: SocketType) -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?).context("cannot bind the guest's socket")?;
    listen(&socket, 1)?;
    Ok(socket)
}

/// Waits for a guest, which sends the descriptor of its tap.
fn receive_tap(path: &Path) -> Result<OwnedFd> {
    let listener = listen_at(path, SocketType::SEQPACKET)?;
    let guest = accept_with(&listener, SocketFlags::CLOEXEC)?;
    let message = seqpacket::receive(&guest, &mut [0])?.context("the guest sent no tap")?;
    message
        .descriptors
        .into_iter()
        .next()
        .context("the guest sent no tap")
}

/// Waits until a network with a thread ends.
fn serve(mut network: Network) -> Result<()> {
    loop {
        wait(network.as_fd(), PollFlags::IN)?;
        network.dispatch()?;
    }
}

fn serve_device(options: NetworkBuilder, tap: &OwnedFd) -> Result<()> {
    let (network, mut device) = options.device()?;
    let features = device.features() & ALL;
    let queues = GuestQueues::allocate(features, &queues(features))?;
    let mut pairs = queues.pairs;
    activate(
        &mut device,
        features,
        &queues.memory,
        &pairs[0].rx.queue,
        &pairs[0].tx.queue,
    )?;
    for pair in &mut pairs {
        pair.rx.refill(usize::MAX)?;
    }
    thread::spawn(move || serve(network));
    Ok(bridge_queues(
        tap,
        features,
        pairs,
        || true,
        &AtomicBool::new(false),
    )?)
}

fn activate(
    device: &mut NetDevice,
    features: u64,
    memory: &pontoon::GuestMemoryMmap,
    receive: &Queue,
    transmit: &Queue,
) -> Result<()> {
    let config = |queue: &Queue| -> io::Result<QueueConfig> {
        let layout = queue.layout();
        let [kick, call] = queue.descriptors()?;
        Ok(QueueConfig {
            size: layout.size,
            descriptors: layout.descriptors,
            available: layout.available,
            used: layout.used,
            kick,
            call,
        })
    };
    let queues = [config(receive)?, config(transmit)?];
    Ok(device.activate(memory, features, queues)?)
}

fn serve_frames(options: NetworkBuilder, tap: &OwnedFd) -> Result<()> {
    // As over a socket, the guest leaves checksums to the link, and does not leave segmentation.
    configure_tap(tap.as_fd(), VNET_HDR_LEN as usize, CSUM)?;
    let (network, port) = options.frames()?;
    let socket = port.as_fd().try_clone_to_owned()?;
    let port = &Mutex::new(port);
    thread::spawn(move || serve(network));
    thread::scope(|scope| {
        let up = scope.spawn(|| copy_up(tap, port, &socket));
        let down = copy_down(tap, port, &socket);
        let up = up
            .join()
            .map_err(|_| anyhow!("the thread for frames of the guest panicked"))?;
        down.and(up)
    })
}

/// Copies frames from the tap to the library.
fn copy_up(tap: &OwnedFd, port: &Mutex<FramePort>, socket: &OwnedFd) -> Result<()> {
    let mut frame = vec![0; MAX_FRAME];
    loop {
        let len = match rustix::io::read(tap, &mut frame) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::IO) => {
                wait(tap.as_fd(), PollFlags::IN)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        while let Err(error) = lock(port).write_frame(&frame[..len]) {
            match error.kind() {
                io::ErrorKind::WouldBlock => wait(socket.as_fd(), PollFlags::OUT)?,
                _ => return Err(error.into()),
            }
        }
    }
}

/// Copies frames from the library to the tap.
fn copy_down(tap: &OwnedFd, port: &Mutex<FramePort>, socket: &OwnedFd) -> Result<()> {
    let mut frame = vec![0; lock(port).buffer_len()];
    loop {
        let read = lock(port).read_frame(&mut frame);
        let len = match read {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(socket.as_fd(), PollFlags::IN)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        match rustix::io::write(tap, &frame[..len]) {
            // EIO: the interface is down, and the frame is lost.
            Ok(_) | Err(Errno::IO) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn lock(port: &Mutex<FramePort>) -> std::sync::MutexGuard<'_, FramePort> {
    port.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(descriptor: BorrowedFd<'_>, flags: PollFlags) -> Result<()> {
    let mut polled = [PollFd::from_borrowed_fd(descriptor, flags)];
    rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
    Ok(())
}
