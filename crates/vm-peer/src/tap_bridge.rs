//! Carries a tap over a socket, frame by frame, as a hypervisor carries a machine's interface: the machine is then the
//! namespace that the tap is in, at native speed. With faults if wanted.

mod faults;

pub use faults::{FaultInjector, Faults};

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, writev};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

/// How frames are told apart on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Each behind its length.
    Stream,
    /// Each in a message of its own.
    Packet,
}

/// Bytes of a frame's length in front of it.
const PREFIX: usize = 4;

/// Bytes of the longest frame.
const MAX_FRAME: usize = 18 + 65_535;

/// Bytes of the longest header of a tap: `virtio_net_hdr_mrg_rxbuf`.
const MAX_HEADER: usize = 12;

/// How long to look away while nothing comes: nobody says when it is over.
const PAUSE: Duration = Duration::from_millis(5);

/// A tap and a socket, at work.
struct Link<'l> {
    tap: BorrowedFd<'l>,
    /// Bytes in front of each of the tap's frames.
    header: usize,
    socket: BorrowedFd<'l>,
    framing: Framing,
}

/// Carries frames between `tap` and `socket` until `stop` is set or the socket is closed, with faults upwards and downwards.
///
/// The tap has IFF_VNET_HDR with headers of `header` bytes, leaves at most checksums to be completed, and reading from it
/// does not wait. Frames downwards are written without metadata: the namespace looks at their checksums. The socket is
/// shut down at the end.
///
/// # Errors
/// The tap is none, or what came over the socket is no frame.
///
/// # Panics
/// With headers that are longer than a `virtio_net_hdr_mrg_rxbuf`.
pub fn run(
    tap: impl AsFd,
    header: usize,
    socket: impl AsFd,
    framing: Framing,
    [up, down]: &mut [FaultInjector; 2],
    stop: &AtomicBool,
) -> io::Result<()> {
    assert!(header <= MAX_HEADER, "a header of {header} bytes");
    let link = &Link {
        tap: tap.as_fd(),
        header,
        socket: socket.as_fd(),
        framing,
    };
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let carrying = scope.spawn(|| link.carry_up(up, over));
        let carried = link.carry_down(down, [over, stop]);
        // For a writer that waits for room.
        over.store(true, Ordering::Relaxed);
        let _ = shutdown(link.socket, Shutdown::Both);
        carried.and(carrying.join().expect("carrying does not panic"))
    })
}

impl Link<'_> {
    /// From the tap to the socket, until the socket is closed.
    fn carry_up(&self, faults: &mut FaultInjector, over: &AtomicBool) -> io::Result<()> {
        let mut buffer = vec![0; PREFIX + MAX_FRAME];
        let mut header = [0; MAX_HEADER];
        let put = |bytes: &[u8]| send_all(self.socket, bytes);
        while !over.load(Ordering::Relaxed) {
            let mut parts = [
                IoSliceMut::new(&mut header[..self.header]),
                IoSliceMut::new(&mut buffer[PREFIX..]),
            ];
            let passed = match readv(self.tap, &mut parts) {
                Ok(len) => {
                    let len = len - self.header;
                    let begin = match self.framing {
                        Framing::Stream => {
                            buffer[..PREFIX].copy_from_slice(&(len as u32).to_be_bytes());
                            0
                        }
                        Framing::Packet => PREFIX,
                    };
                    faults.forward(&buffer[begin..PREFIX + len], put)
                }
                Err(Errno::AGAIN) => {
                    wait(self.tap)?;
                    faults.flush(put)
                }
                // The interface is down.
                Err(Errno::IO) => {
                    thread::sleep(PAUSE);
                    Ok(())
                }
                Err(error) => return Err(error.into()),
            };
            if passed.is_err() {
                // The socket's end, which the other direction hears of too.
                return Ok(());
            }
        }
        Ok(())
    }

    /// From the socket to the tap, until the socket is closed or one of `ends` is set.
    fn carry_down(&self, faults: &mut FaultInjector, ends: [&AtomicBool; 2]) -> io::Result<()> {
        let mut buffer = vec![0; 4 * MAX_FRAME];
        let mut filled = 0;
        let put = |frame: &[u8]| self.write_frame(frame);
        while ends.iter().all(|end| !end.load(Ordering::Relaxed)) {
            match recv(self.socket, &mut buffer[filled..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(()),
                Ok((_, len)) => filled += len,
                Err(Errno::AGAIN) => {
                    wait(self.socket)?;
                    faults.flush(put)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            if self.framing == Framing::Packet {
                faults.forward(&buffer[..filled], put)?;
                filled = 0;
                continue;
            }
            let mut begin = 0;
            while let Some(prefix) = buffer[begin..filled].first_chunk::<PREFIX>() {
                let len = u32::from_be_bytes(*prefix) as usize;
                if !(1..=MAX_FRAME).contains(&len) {
                    return Err(io::Error::other(format!("a frame of {len} bytes")));
                }
                let Some(frame) = buffer[begin..filled].get(PREFIX..PREFIX + len) else {
                    break;
                };
                faults.forward(frame, put)?;
                begin += PREFIX + len;
            }
            buffer.copy_within(begin..filled, 0);
            filled -= begin;
        }
        Ok(())
    }

    fn write_frame(&self, frame: &[u8]) -> io::Result<()> {
        let header = &[0; MAX_HEADER][..self.header];
        match writev(self.tap, &[IoSlice::new(header), IoSlice::new(frame)]) {
            // The interface is down.
            Ok(_) | Err(Errno::IO) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn send_all(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits for something to read, or for a moment.
fn wait(source: BorrowedFd<'_>) -> io::Result<()> {
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
