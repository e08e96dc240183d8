//! Carries a tap over a socket, frame by frame, as a hypervisor carries a machine's interface: the machine is then the
//! namespace that the tap is in, at native speed. With faults if wanted.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use pontoon_vhost_driver::{Machine, Options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, writev};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, shutdown, socket_with,
};

use crate::faults::{Faults, Faulty};

/// How frames are told apart on the socket, or go without it.
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

/// Bytes of a frame's length in front of it.
const PREFIX: usize = 4;

/// Bytes of the longest frame.
const MAX_FRAME: usize = 18 + 65_535;

/// Bytes of the tap's `virtio_net_hdr`.
const HEADER: usize = 10;

/// How long to look away, while nothing comes: nobody says when it is over.
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
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut faults = [0, 1].map(|direction| Faulty::new(faults, direction));
            while let Some(socket) = next(&told) {
                if let Framing::VhostUser(pairs) = framing {
                    say(carry_queues(&tap, socket, pairs, &told));
                    continue;
                }
                let over = AtomicBool::new(false);
                let [up, down] = &mut faults;
                std::thread::scope(|scope| {
                    scope.spawn(|| say(carry_up(&tap, &socket, framing, up, &over)));
                    say(carry_down(&tap, &socket, framing, down, [&over, &told]));
                    // For a writer that waits for room.
                    over.store(true, Ordering::Relaxed);
                    let _ = shutdown(&socket, Shutdown::Both);
                });
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

/// What went wrong goes to the case's log; the case itself then lacks what was not carried.
fn say(result: Result<()>) {
    if let Err(error) = result {
        eprintln!("carrier: {error:#}");
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
    Ok(pontoon_vhost_driver::carry(tap, &machine, pairs, stop)?)
}

/// From the tap to the socket, until the socket is closed.
fn carry_up(
    tap: &OwnedFd,
    socket: &OwnedFd,
    framing: Framing,
    faults: &mut Faulty,
    over: &AtomicBool,
) -> Result<()> {
    let mut buffer = vec![0; PREFIX + MAX_FRAME];
    let mut header = [0; HEADER];
    let put = |bytes: &[u8]| send_all(socket, bytes);
    while !over.load(Ordering::Relaxed) {
        let mut parts = [
            IoSliceMut::new(&mut header),
            IoSliceMut::new(&mut buffer[PREFIX..]),
        ];
        let passed = match readv(tap, &mut parts) {
            Ok(len) => {
                ensure!(len > HEADER, "a read of {len} bytes");
                let len = len - HEADER;
                let begin = match framing {
                    Framing::Stream => {
                        buffer[..PREFIX].copy_from_slice(&(len as u32).to_be_bytes());
                        0
                    }
                    Framing::Packet | Framing::VhostUser(_) => PREFIX,
                };
                faults.pass(&buffer[begin..PREFIX + len], put)
            }
            Err(Errno::AGAIN) => {
                wait(tap)?;
                faults.release(put)
            }
            // The interface is down.
            Err(Errno::IO) => {
                std::thread::sleep(PAUSE);
                Ok(())
            }
            Err(error) => bail!("reading from the tap: {error}"),
        };
        if passed.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// From the socket to the tap, until the socket is closed or one of `ends` is set.
fn carry_down(
    tap: &OwnedFd,
    socket: &OwnedFd,
    framing: Framing,
    faults: &mut Faulty,
    ends: [&AtomicBool; 2],
) -> Result<()> {
    let mut buffer = vec![0; 4 * MAX_FRAME];
    let mut filled = 0;
    let put = |frame: &[u8]| write_frame(tap, frame);
    while ends.iter().all(|end| !end.load(Ordering::Relaxed)) {
        match recv(socket, &mut buffer[filled..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(()),
            Ok((_, len)) => filled += len,
            Err(Errno::AGAIN) => {
                wait(socket)?;
                faults.release(put)?;
                continue;
            }
            Err(error) => bail!("reading from the socket: {error}"),
        }
        if framing == Framing::Packet {
            faults.pass(&buffer[..filled], put)?;
            filled = 0;
            continue;
        }
        let mut begin = 0;
        while let Some(prefix) = buffer[begin..filled].first_chunk::<PREFIX>() {
            let len = u32::from_be_bytes(*prefix) as usize;
            ensure!((1..=MAX_FRAME).contains(&len), "a frame of {len} bytes");
            let Some(frame) = buffer[begin..filled].get(PREFIX..PREFIX + len) else {
                break;
            };
            faults.pass(frame, put)?;
            begin += PREFIX + len;
        }
        buffer.copy_within(begin..filled, 0);
        filled -= begin;
    }
    Ok(())
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A frame without metadata: the namespace looks at its checksum.
fn write_frame(tap: &OwnedFd, frame: &[u8]) -> Result<()> {
    match writev(tap, &[IoSlice::new(&[0; HEADER]), IoSlice::new(frame)]) {
        // The interface is down.
        Ok(_) | Err(Errno::IO) => Ok(()),
        Err(error) => bail!("the tap refuses a frame of {} bytes: {error}", frame.len()),
    }
}

/// Waits for something to read, or for a moment.
fn wait(source: impl AsFd) -> Result<()> {
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: PAUSE.subsec_nanos().into(),
    };
    let mut fds = [PollFd::new(&source, PollFlags::IN)];
    match poll(&mut fds, Some(&pause)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
