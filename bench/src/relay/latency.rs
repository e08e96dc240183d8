//! Measures the latency of relayed datagrams.

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

/// A receiver in the namespace of the first sink, which computes the time between the datagrams' send and receive
/// timestamps. It reads every 4 ms at the lowest priority, as it shares the relays' CPU. The kernel records the
/// receive timestamps, so a late read does not change them.
pub(super) struct LatencyReceiver {
    thread: JoinHandle<Result<Vec<u64>>>,
    done: Arc<AtomicBool>,
}

/// Number of datagrams that one recvmmsg(2) receives.
const BATCH: usize = 64;

/// Size of the socket's receive buffer in bytes.
const BUFFER: usize = 4 << 20;

/// Pause between two reads of all queued datagrams.
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

    /// Stops the receiver and returns the 50th, 99th and 99.9th percentile of the latency, in microseconds.
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
    // Linux sets the nice value of the calling thread only.
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

/// The largest nice value (setpriority(2)), which is the lowest priority.
const LOWEST_PRIORITY: i32 = 19;
