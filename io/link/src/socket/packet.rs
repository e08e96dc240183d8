//! The packet link: each frame is one message on a SOCK_SEQPACKET or SOCK_DGRAM socket.

use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_engine::Frame;
use pontoon_sys::messages::{self, BatchedMessage};
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use vm_memory::VolatileSlice;

use super::header_buffers::{FrameRanges, HeaderBuffers};
use super::{Framing, MAX_FRAME, SocketHalf};
use crate::{BURST, Disconnected, Receive, ReceivedBurst, Rest, StopAt};

/// Framing by message boundaries: each message is one frame.
#[derive(Debug)]
pub struct Packet;

/// Bytes of the receive buffer for one frame.
const STRIDE: usize = 66 << 10;
const _: () = assert!(STRIDE >= MAX_FRAME);

impl Framing for Packet {
    type Receiver = PacketReceiver;

    const PREFIX: usize = 0;

    fn send(socket: BorrowedFd<'_>, runs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let sent = messages::send(socket, runs)?;
        Ok(runs[..sent].iter().map(|run| run.len()).sum())
    }
}

/// The half of a packet link that receives frames.
#[derive(Debug)]
pub struct PacketReceiver {
    socket: Option<Arc<OwnedFd>>,
    /// True for a SOCK_SEQPACKET socket, on which an empty message is the end of the connection.
    has_end: bool,
    buffer: Box<[u8]>,
    headers: HeaderBuffers,
}

impl Default for PacketReceiver {
    fn default() -> Self {
        Self {
            socket: None,
            has_end: false,
            buffer: vec![0; BURST * STRIDE].into(),
            headers: HeaderBuffers::default(),
        }
    }
}

impl SocketHalf for PacketReceiver {
    fn set_socket(&mut self, guest: Option<Arc<OwnedFd>>) {
        self.has_end = guest
            .as_ref()
            .is_some_and(|socket| sockopt::socket_type(socket) != Ok(SocketType::DGRAM));
        self.socket = guest;
    }
}

impl Receive for PacketReceiver {
    fn receive(&mut self, max: usize, _: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
        let mut burst = ReceivedBurst {
            frames: 0,
            malformed: 0,
            rest: Rest::Drained,
        };
        let Some(socket) = &self.socket else {
            return burst;
        };
        let asked = max.min(BURST);
        let received = match read(socket, &mut self.buffer, asked) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return burst,
            Err(Errno::INTR) => ArrayVec::new(),
            Err(error) => {
                burst.rest = Rest::Disconnected(Disconnected::Connection(error));
                return burst;
            }
        };
        if received.len() == asked || received.is_empty() {
            burst.rest = Rest::More;
        }
        let mut places = FrameRanges::new();
        for (nth, message) in received.iter().enumerate() {
            if message.len == 0 && self.has_end {
                burst.rest = Rest::Disconnected(Disconnected::Closed);
                break;
            }
            if message.len == 0 || message.truncated || message.len > MAX_FRAME {
                burst.malformed += 1;
                continue;
            }
            places.push(nth * STRIDE..nth * STRIDE + message.len);
        }
        burst.frames = self.headers.hand_on(&mut self.buffer, &places, sink);
        burst
    }
}

/// Receives up to `count` messages, each into its own part of the buffer.
fn read(
    socket: &OwnedFd,
    buffer: &mut [u8],
    count: usize,
) -> Result<ArrayVec<BatchedMessage, { messages::MOST }>, Errno> {
    let into: ArrayVec<_, BURST> = buffer
        .chunks_exact_mut(STRIDE)
        .take(count)
        .map(VolatileSlice::from)
        .collect();
    messages::receive(socket, &into)
}
