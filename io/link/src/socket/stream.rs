//! The stream link: each frame behind its length, 32 bits in big endian, on a SOCK_STREAM socket.
//!
//! QEMU's `-netdev stream`, libkrun and passt's clients use it.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use pontoon_engine::Frame;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use super::header_buffers::{HeaderBuffers, Places};
use super::{Framing, MAX_FRAME, SocketHalf};
use crate::{BURST, Disconnected, Receive, ReceivedBurst, Rest, StopAt};

/// Frames behind their lengths.
#[derive(Debug)]
pub struct Stream;

/// Bytes of a length.
const PREFIX: usize = 4;

/// Bytes that are read at once: what the kernel's default buffer of a Unix socket holds.
const BUFFER: usize = 256 << 10;

impl Framing for Stream {
    type Receiver = StreamReceiver;

    const PREFIX: usize = PREFIX;

    fn send(socket: BorrowedFd<'_>, runs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(socket, runs, &mut SendAncillaryBuffer::default(), flags)
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct StreamReceiver {
    socket: Option<Arc<OwnedFd>>,
    buffer: Box<[u8]>,
    /// The range of the buffer that was read from the socket and not yet passed to the engine.
    unread: Range<usize>,
    /// The last read took all that was there.
    drained: bool,
    headers: HeaderBuffers,
}

impl Default for StreamReceiver {
    fn default() -> Self {
        Self {
            socket: None,
            buffer: vec![0; BUFFER].into(),
            unread: 0..0,
            drained: false,
            headers: HeaderBuffers::default(),
        }
    }
}

impl SocketHalf for StreamReceiver {
    fn set_socket(&mut self, guest: Option<Arc<OwnedFd>>) {
        self.socket = guest;
        self.unread = 0..0;
        self.drained = false;
    }
}

impl Receive for StreamReceiver {
    fn receive(&mut self, max: usize, _: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
        let mut burst = ReceivedBurst {
            frames: 0,
            malformed: 0,
            rest: Rest::Drained,
        };
        if self.socket.is_none() {
            return burst;
        }
        let mut places = Places::new();
        let taken = self.take(max, &mut places, &mut burst.malformed).and_then(|()| {
            if places.is_empty() {
                self.read()?;
                self.take(max, &mut places, &mut burst.malformed)?;
            }
            Ok(())
        });
        burst.frames = self.headers.hand_on(&mut self.buffer, &places, sink);
        burst.rest = match taken {
            Err(how) if places.is_empty() => Rest::Disconnected(how),
            // The kernel does not report a frame that was read already, or the end.
            Err(_) => Rest::More,
            Ok(()) if self.drained && !self.has_whole() => Rest::Drained,
            Ok(()) => Rest::More,
        };
        burst
    }
}

impl StreamReceiver {
    /// Takes up to `max` whole frames out of what was read.
    ///
    /// # Errors
    /// The next bytes are no frame, so that the position of the next frame is unknown.
    fn take(&mut self, max: usize, places: &mut Places, malformed: &mut u64) -> Result<(), Disconnected> {
        while places.len() < max.min(BURST) {
            match self.length() {
                // Counted like any frame without an Ethernet header.
                Some(0) => {
                    *malformed += 1;
                    self.unread.start += PREFIX;
                }
                Some(len) if len > MAX_FRAME => {
                    return Err(Disconnected::Protocol("a frame of more than 64 KiB"));
                }
                Some(len) if self.unread.len() >= PREFIX + len => {
                    let begin = self.unread.start + PREFIX;
                    places.push(begin..begin + len);
                    self.unread.start = begin + len;
                }
                Some(_) | None => break,
            }
        }
        Ok(())
    }

    /// The next frame's length, if that was read.
    fn length(&self) -> Option<usize> {
        let prefix = self.buffer[self.unread.clone()].first_chunk::<PREFIX>()?;
        usize::try_from(u32::from_be_bytes(*prefix)).ok()
    }

    /// Returns true if the next frame was read in whole, or cannot be valid.
    fn has_whole(&self) -> bool {
        self.length()
            .is_some_and(|len| len > MAX_FRAME || self.unread.len() >= PREFIX + len)
    }

    /// Reads more, behind the beginning of a frame if there is one.
    fn read(&mut self) -> Result<(), Disconnected> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let room = &mut self.buffer[self.unread.end..];
        let len = room.len();
        match recv(socket, room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Disconnected::Closed),
            Ok((_, read)) => {
                self.unread.end += read;
                self.drained = read < len;
            }
            Err(Errno::AGAIN) => self.drained = true,
            Err(Errno::INTR) => self.drained = false,
            Err(error) => return Err(Disconnected::Connection(error)),
        }
        Ok(())
    }
}
