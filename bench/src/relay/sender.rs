//! The sender of `pontoon bench relay`: UDP datagrams at a constant rate.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pontoon_sys::udp;
use rustix::time::{ClockId, clock_gettime};

/// TTL of the sent multicast datagrams, more than the number of relays in a chain.
pub(super) const HOPS: u32 = 32;

/// The number of datagrams in one send call, and whether they leave in one frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum SendBatch {
    /// One send call for each datagram.
    Single,
    /// This number of datagrams in one send call; the kernel segments them before the link.
    Segmented(u32),
    /// This number of datagrams in one send call and in one frame (GSO) on the link.
    Coalesced(u32),
}

/// The load of one measurement of a relay: rate, lengths and duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendPlan {
    /// Number of datagrams to send per second.
    pub(super) rate: u32,
    /// UDP payload of the longest datagram, in bytes.
    pub(super) size: u16,
    /// Number of sockets that send in turn; the datagrams of each have another length.
    pub(super) flows: u16,
    pub(super) frames: SendBatch,
    pub(super) time: Duration,
}

/// Number of datagrams that the sender has sent, and the time it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentDatagrams {
    pub(super) datagrams: u64,
    pub(super) time: Duration,
}

/// The largest delay for which a late sender compensates. Compensation of a longer one would be a burst.
const MAX_BACKLOG: Duration = Duration::from_millis(10);

/// Number of different lengths of the datagrams that the sender of `pontoon bench relay` sends.
const SIZES: u16 = 8;

/// Sends to `to` from the caller's network namespace, busy waiting on `cpu` between calls.
pub(super) fn send(to: SocketAddr, plan: SendPlan, cpu: usize) -> Result<SentDatagrams> {
    super::pin_to_cpu(cpu)?;
    let together = match plan.frames {
        SendBatch::Single => 1,
        SendBatch::Segmented(count) | SendBatch::Coalesced(count) => count,
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

/// One socket of the sender, whose datagrams have one length.
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
            udp::set_segment(&socket, size).context("the kernel lacks UDP_SEGMENT")?;
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
        self.socket.send(&self.bytes).context("cannot send datagrams")?;
        Ok(())
    }
}

/// Returns the time of CLOCK_REALTIME, which the kernel uses for receive timestamps, in nanoseconds.
fn stamp() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}
