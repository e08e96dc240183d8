//! The stream link: on a SOCK_STREAM socket each frame follows its length, 32 bits in big endian.
//!
//! QEMU's `-netdev stream`, libkrun and the clients of passt use this protocol.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use pontoon_engine::Frame;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use super::header_buffers::{FrameRanges, HeaderBuffers};
use super::{Framing, MAX_FRAME, SocketHalf};
use crate::{BURST, Disconnected, Receive, ReceivedBurst, Rest, StopAt};

/// Framing by lengths: each frame follows its length.
#[derive(Debug)]
pub struct Stream;

/// Size of a frame's length in bytes.
const PREFIX: usize = 4;

/// Size of the receive buffer in bytes: the content of a Unix socket's default buffer.
const BUFFER: usize = 256 << 10;

impl Framing for Stream {
    type Receiver = StreamReceiver;

    const PREFIX: usize = PREFIX;

    fn send(socket: BorrowedFd<'_>, runs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(socket, runs, &mut SendAncillaryBuffer::default(), flags)
    }
}

/// The half of a stream link that receives frames.
#[derive(Debug)]
pub struct StreamReceiver {
    socket: Option<Arc<OwnedFd>>,
    buffer: Box<[u8]>,
    /// Range of the buffer that was read from the socket and not passed to the engine yet.
    unread: Range<usize>,
    /// True if the last read has emptied the socket.
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
        let mut places = FrameRanges::new();
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
            // The next call reports the error: epoll reports neither frames that were read already nor the end again.
            Err(_) => Rest::More,
            Ok(()) if self.drained && !self.has_whole() => Rest::Drained,
            Ok(()) => Rest::More,
        };
        burst
    }
}

impl StreamReceiver {
    /// Removes up to `max` complete frames from the bytes that were read, and stores their ranges in `places`.
    ///
    /// # Errors
    /// The next length is invalid, so that the position of the next frame is unknown.
    fn take(
        &mut self,
        max: usize,
        places: &mut FrameRanges,
        malformed: &mut u64,
    ) -> Result<(), Disconnected> {
        while places.len() < max.min(BURST) {
            match self.length() {
                // A frame of length 0 is counted as malformed, like any frame without an Ethernet header.
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

    /// Returns the length of the next frame; `None` if it was not read completely yet.
    fn length(&self) -> Option<usize> {
        let prefix = self.buffer[self.unread.clone()].first_chunk::<PREFIX>()?;
        usize::try_from(u32::from_be_bytes(*prefix)).ok()
    }

    /// Returns true if the next frame was read completely, or its length is invalid.
    fn has_whole(&self) -> bool {
        self.length()
            .is_some_and(|len| len > MAX_FRAME || self.unread.len() >= PREFIX + len)
    }

    /// Reads from the socket, behind an incomplete frame in the buffer if there is one.
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
