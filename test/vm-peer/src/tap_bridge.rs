//! Copies frames between a tap and a socket, as a hypervisor does for the interface of its guest. The namespace of
//! the tap represents the guest, and runs at native speed. Faults can be injected.

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

/// The framing of the socket: a stream or messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Each frame is preceded by its length.
    Stream,
    /// A message socket on which each frame is one message.
    Packet,
}

/// Length of the length field before each frame of a stream, in bytes.
const PREFIX: usize = 4;

/// Length of the longest frame in bytes.
const MAX_FRAME: usize = 18 + 65_535;

/// Length of the longest header on a tap in bytes: `virtio_net_hdr_mrg_rxbuf`.
const MAX_HEADER: usize = 12;

/// Timeout of a wait for frames, after which the stop flag is checked.
const PAUSE: Duration = Duration::from_millis(5);

/// The two ends between which frames are copied: a tap and a socket.
struct TapSocketPair<'l> {
    tap: BorrowedFd<'l>,
    /// Length of the `virtio_net_hdr` before each frame on the tap, in bytes.
    header: usize,
    socket: BorrowedFd<'l>,
    framing: Framing,
}

/// Copies frames between `tap` and `socket` until `stop` is set or the socket is closed, with the faults `faults` for
/// the two directions.
///
/// The tap must be non-blocking, and have IFF_VNET_HDR with headers of `header` bytes. Frames to the socket have no offload
/// metadata: if the tap offloads segmentation, they are as long as segments before it.
/// Frames from the socket are written without offload metadata, so the kernel verifies their checksums. The socket is
/// shut down at the end.
///
/// # Errors
/// The tap cannot be read or written, or the socket sent an invalid frame length.
///
/// # Panics
/// `header` is larger than `virtio_net_hdr_mrg_rxbuf`.
pub fn run(
    tap: impl AsFd,
    header: usize,
    socket: impl AsFd,
    framing: Framing,
    [up, down]: &mut [FaultInjector; 2],
    stop: &AtomicBool,
) -> io::Result<()> {
    assert!(header <= MAX_HEADER, "a header of {header} bytes");
    let link = &TapSocketPair {
        tap: tap.as_fd(),
        header,
        socket: socket.as_fd(),
        framing,
    };
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let upward = scope.spawn(|| link.copy_up(up, over));
        let downward = link.copy_down(down, [over, stop]);
        // The shutdown ends a blocking write of the other direction.
        over.store(true, Ordering::Relaxed);
        let _ = shutdown(link.socket, Shutdown::Both);
        downward.and(upward.join().expect("the upward thread does not panic"))
    })
}

impl TapSocketPair<'_> {
    /// Copies frames from the tap to the socket until the socket is closed.
    fn copy_up(&self, faults: &mut FaultInjector, over: &AtomicBool) -> io::Result<()> {
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
                // EIO: the interface is down.
                Err(Errno::IO) => {
                    thread::sleep(PAUSE);
                    Ok(())
                }
                Err(error) => return Err(error.into()),
            };
            if passed.is_err() {
                // The socket is closed, which ends the other direction as well.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies frames from the socket to the tap until the socket is closed or one of `ends` is set.
    fn copy_down(&self, faults: &mut FaultInjector, ends: [&AtomicBool; 2]) -> io::Result<()> {
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
            // EIO: the interface is down, and the frame is lost.
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

/// Waits until `source` is readable, at most [`PAUSE`].
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
