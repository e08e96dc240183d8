//! Latency of datagrams.

use std::net::{SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pontoon_sys::batch::Batch;
use pontoon_sys::udp::{self, Ancillary};
use rustix::net::sockopt;
use rustix::process::setpriority_process;

use super::sink::receiver;
use super::topology::RelayNetwork;

/// A receiver beside the first sink that reads the datagrams' timestamps. It reads seldom and at the lowest priority,
/// as it shares the relays' CPU. The timestamps are the kernel's, so it does not matter when they are read.
pub(super) struct LatencyReceiver {
    thread: JoinHandle<Result<Vec<u64>>>,
    done: Arc<AtomicBool>,
}

/// Number of datagrams of one receive.
const BATCH: usize = 64;

/// Bytes of the receive buffer.
const BUFFER: usize = 4 << 20;

/// Time between two reads of all that is queued.
const PAUSE: Duration = Duration::from_millis(4);

impl LatencyReceiver {
    pub(super) fn start(network: &RelayNetwork, group: SocketAddrV4) -> Result<Self> {
        let socket = network.first_sink().enter(|| {
            let socket = receiver(group)?;
            sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
            udp::enable_timestamps(&socket)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })?;
        let done = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&done);
        let thread = std::thread::spawn(move || receive(&socket, &until));
        Ok(Self { thread, done })
    }

    /// Returns the 50th, 99th and 99.9th percentile, in microseconds.
    pub(super) fn finish(self) -> Result<[f64; 3]> {
        self.done.store(true, Ordering::Relaxed);
        let times = self.thread.join();
        let mut times = times.unwrap_or_else(|_| bail!("a thread panicked"))?;
        times.sort_unstable();
        let most = times.len().checked_sub(1).context("no datagram arrived")?;
        let at = |share: f64| times[(most as f64 * share) as usize] as f64 / 1000.0;
        Ok([at(0.5), at(0.99), at(0.999)])
    }
}

fn receive(socket: &UdpSocket, done: &AtomicBool) -> Result<Vec<u64>> {
    // On Linux this affects the calling thread only.
    setpriority_process(None, LOWEST_PRIORITY)?;
    let mut batch = Batch::new(BATCH, 64);
    let mut times = Vec::new();
    loop {
        let ends = done.load(Ordering::Relaxed);
        let count = match batch.receive(socket) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN) if ends => return Ok(times),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for index in 0..count {
            let (bytes, control) = batch.message(index);
            let sent = bytes.first_chunk().map(|stamp| u64::from_le_bytes(*stamp));
            let arrived = Ancillary::decode(control).at;
            if let (Some(sent), Some(arrived)) = (sent, arrived) {
                let arrived = u64::try_from(arrived.as_nanos()).unwrap_or_default();
                times.push(arrived.saturating_sub(sent));
            }
        }
    }
}

/// The largest nice value (setpriority(2)).
const LOWEST_PRIORITY: i32 = 19;
