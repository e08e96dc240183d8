//! The sender: datagrams at a constant rate.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pontoon_sys::udp;
use rustix::time::{ClockId, clock_gettime};

/// The TTL of datagrams.
pub(super) const HOPS: u32 = 32;

/// The number of datagrams of a call, and of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Frames {
    /// One call for each.
    Single,
    /// This number in a call, which the kernel segments before the link.
    Segmented(u32),
    /// This number in a call, which stay in one frame (GSO).
    Coalesced(u32),
}

/// The load of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendPlan {
    /// Datagrams per second.
    pub(super) rate: u32,
    /// Bytes of the longest datagram.
    pub(super) size: u16,
    /// The number of senders, which send in turn; their datagrams have different lengths.
    pub(super) flows: u16,
    pub(super) frames: Frames,
    pub(super) time: Duration,
}

/// The datagrams that were sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentDatagrams {
    pub(super) datagrams: u64,
    pub(super) time: Duration,
}

/// The delay that a late sender makes up for.
const MAX_BACKLOG: Duration = Duration::from_millis(10);

/// The number of different lengths of datagrams.
const SIZES: u16 = 8;

/// Sends from the caller's namespace, busy waiting on `cpu` between calls.
pub(super) fn send(to: SocketAddr, plan: SendPlan, cpu: usize) -> Result<SentDatagrams> {
    super::pin_to_cpu(cpu)?;
    let together = match plan.frames {
        Frames::Single => 1,
        Frames::Segmented(count) | Frames::Coalesced(count) => count,
    };
    let mut flows = (0..plan.flows)
        .map(|number| SenderFlow::new(to, plan.size - plan.size / SIZES * (number % SIZES), together))
        .collect::<Result<Vec<_>>>()?;
    let pause = Duration::from_secs_f64(f64::from(together) / f64::from(plan.rate));
    let begin = Instant::now();
    let (mut next, mut datagrams) = (begin, 0);
    loop {
        for flow in &mut flows {
            loop {
                let now = Instant::now();
                if now - begin >= plan.time {
                    return Ok(SentDatagrams {
                        datagrams,
                        time: now - begin,
                    });
                }
                if now >= next {
                    next = if now - next > MAX_BACKLOG {
                        now
                    } else {
                        next + pause
                    };
                    break;
                }
                std::hint::spin_loop();
            }
            flow.send()?;
            datagrams += u64::from(together);
        }
    }
}

/// A sender with datagrams of one length.
struct SenderFlow {
    socket: UdpSocket,
    size: usize,
    bytes: Vec<u8>,
}

impl SenderFlow {
    fn new(to: SocketAddr, size: u16, together: u32) -> Result<Self> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_multicast_ttl_v4(HOPS)?;
        socket
            .connect(to)
            .with_context(|| format!("cannot send to {to}"))?;
        if together > 1 {
            udp::set_segment(&socket, size).context("no UDP_SEGMENT")?;
        }
        let size = usize::from(size);
        Ok(Self {
            socket,
            size,
            bytes: vec![0; size * together as usize],
        })
    }

    fn send(&mut self) -> Result<()> {
        let now = stamp().to_le_bytes();
        for datagram in self.bytes.chunks_exact_mut(self.size) {
            datagram[..8].copy_from_slice(&now);
        }
        self.socket.send(&self.bytes).context("cannot send")?;
        Ok(())
    }
}

/// Returns nanoseconds of the clock that the kernel uses for timestamps.
fn stamp() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}
