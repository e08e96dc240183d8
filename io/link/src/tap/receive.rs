//! Receiving of frames from the guest by reading a queue of the tap.

use std::os::fd::{AsFd, BorrowedFd};

use arrayvec::ArrayVec;
use pontoon_engine::Frame;
use pontoon_sys::message;
use pontoon_wire::frame::{self, Body, Flags, HEAD, Transport};
use pontoon_wire::vnet::{self, Offload};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::QueueFd;
use crate::{BURST, Disconnected, Receive, ReceivedBurst, Rest, StopAt};

/// Bytes of the receive buffer for one frame: more than `virtio_net_hdr`, Ethernet header with a VLAN tag, and the
/// largest IP packet.
const STRIDE: usize = 66 << 10;

/// Length in bytes up to which a TCP message is considered a request, whose sender probably waits for a response;
/// longer ones are part of a stream.
const SHORT: usize = 4096;

/// Number of consecutive failed reads, with unknown errors, after which the interface is considered deleted.
const MOST_FAILURES: u32 = 1000;

/// The half of a tap link that receives frames.
#[derive(Debug)]
pub struct TapReceiver {
    queue: QueueFd,
    header_len: usize,
    frames: Vec<u8>,
    headers: Box<[[u8; vnet::LEN + HEAD]; BURST]>,
    /// Number of consecutive reads that have failed.
    failures: u32,
}

impl TapReceiver {
    pub(super) fn new(queue: QueueFd, vnet_hdr: bool) -> Self {
        Self {
            queue,
            header_len: if vnet_hdr { vnet::LEN } else { 0 },
            frames: vec![0; BURST * STRIDE],
            headers: Box::new([[0; vnet::LEN + HEAD]; BURST]),
            failures: 0,
        }
    }
}

impl Receive for TapReceiver {
    fn receive(&mut self, max: usize, stop_at: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
        let mut taken = ArrayVec::<ReadFrame<'_>, BURST>::new();
        let mut malformed = 0;
        let mut rest = Rest::More;
        let buffers = self.frames.chunks_exact_mut(STRIDE).zip(self.headers.iter_mut());
        for (buffer, head) in buffers.take(max) {
            let buffer = VolatileSlice::from(buffer);
            match message::read(&self.queue, &buffer) {
                Ok(len) => match ReadFrame::new(&buffer, len, head, self.header_len) {
                    Some(frame) => {
                        let last = stop_at == StopAt::Request && frame.awaits_response();
                        taken.push(frame);
                        if last {
                            rest = Rest::Drained;
                            break;
                        }
                    }
                    None => malformed += 1,
                },
                Err(Errno::AGAIN) => {
                    rest = Rest::Drained;
                    break;
                }
                Err(Errno::INTR) => {}
                // The tap is detached or being removed (`tun_get`, `tun_ring_recv`). Other errors may be temporary.
                Err(error @ (Errno::BADFD | Errno::FAULT | Errno::BADF)) => {
                    rest = Rest::Disconnected(Disconnected::Interface(error));
                    break;
                }
                Err(error) => {
                    self.failures += 1;
                    rest = match self.failures {
                        MOST_FAILURES.. => Rest::Disconnected(Disconnected::Interface(error)),
                        _ => Rest::Drained,
                    };
                    break;
                }
            }
        }
        if !taken.is_empty() {
            self.failures = 0;
        }
        let frames: ArrayVec<Frame<'_>, BURST> = taken.iter().map(ReadFrame::frame).collect();
        if !frames.is_empty() {
            sink(&frames);
        }
        ReceivedBurst {
            frames: frames.len(),
            malformed,
            rest,
        }
    }
}

impl AsFd for TapReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// A frame that was read from the tap.
struct ReadFrame<'a> {
    offload: Offload,
    head: &'a [u8],
    whole: VolatileSlice<'a>,
}

impl<'a> ReadFrame<'a> {
    /// Parses the offload metadata in front of the `len` bytes that were read into `buffer`, and copies the frame's
    /// headers.
    fn new(
        buffer: &VolatileSlice<'a>,
        len: usize,
        head: &'a mut [u8; vnet::LEN + HEAD],
        header_len: usize,
    ) -> Option<Self> {
        let copied = buffer.copy_to(&mut head[..len.min(header_len + HEAD)]);
        let head = &head[..copied];
        let offload = if header_len > 0 {
            vnet::parse(head).ok()?.0
        } else {
            Offload::NONE
        };
        let whole = buffer.subslice(header_len, len.checked_sub(header_len)?).ok()?;
        Some(Self {
            offload,
            head: &head[header_len..],
            whole,
        })
    }

    /// Returns true if the frame opens a TCP connection (SYN), or ends a short TCP message (PSH), so that its sender
    /// probably waits for a response.
    fn awaits_response(&self) -> bool {
        let Ok(frame::ParsedFrame {
            body: Body::Ip(_, Transport::Tcp(segment)),
            ..
        }) = frame::parse(self.head, self.whole.len())
        else {
            return false;
        };
        segment.flags.has(Flags::SYN) || (segment.flags.has(Flags::PSH) && segment.payload_len <= SHORT)
    }

    fn frame(&self) -> Frame<'_> {
        Frame {
            offload: self.offload,
            head: self.head,
            parts: std::slice::from_ref(&self.whole),
            len: self.whole.len(),
        }
    }
}
