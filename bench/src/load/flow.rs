//! A TCP connection with bulk data: one thread transfers, another observes the progress.

use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blake3::Hash;

use crate::job::JobMessage;

/// Interval at which the observer polls. It polls at both ends of a measurement only, and the bytes
/// transferred meanwhile are counted.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// A TCP connection on which one thread sends or receives while another observes the progress.
pub(crate) struct BulkFlow {
    pub(crate) socket: TcpStream,
    moved: AtomicU64,
    ended: OnceLock<Result<Hash, JobMessage>>,
}

impl BulkFlow {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            moved: AtomicU64::new(0),
            ended: OnceLock::new(),
        }
    }

    /// Returns the number of bytes that were sent, or received and verified.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    pub(crate) fn set_moved(&self, position: u64) {
        self.moved.store(position, Ordering::Relaxed);
    }

    /// Records the result of the transfer. Only the first result is kept: later errors are its consequences.
    pub(crate) fn end(&self, how: Result<Hash, JobMessage>) {
        let _ = self.ended.set(how);
    }

    /// Shuts the connection down, which wakes the threads that block on it.
    pub(crate) fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Waits until the transfer has ended or made progress. Returns the hash of its bytes, or `None` if it
    /// has not ended.
    ///
    /// # Errors
    /// The transfer's error, or `Stalled` after `timeout`.
    pub(crate) fn hash(&self, timeout: Duration) -> Result<Option<Hash>, JobMessage> {
        let (before, since) = (self.moved(), Instant::now());
        loop {
            std::thread::sleep(POLL_INTERVAL);
            if let Some(how) = self.ended.get() {
                return how.clone().map(Some);
            }
            if self.moved() != before {
                return Ok(None);
            }
            if since.elapsed() > timeout {
                return Err(JobMessage::Stalled { at_byte: before });
            }
        }
    }

    fn failure(&self) -> Result<(), JobMessage> {
        match self.ended.get() {
            Some(Err(message)) => Err(message.clone()),
            _ => Ok(()),
        }
    }
}

/// Waits until each of `flows` has made progress since the call, and returns the sum of their transferred
/// bytes. So one stopped stream is an error instead of a lower average.
///
/// # Errors
/// The error of a flow, or `Stalled` after `timeout`.
pub(crate) fn all_moved<'a>(
    flows: impl Iterator<Item = &'a BulkFlow> + Clone,
    timeout: Duration,
) -> Result<u64, JobMessage> {
    let began = Instant::now();
    let before: Vec<u64> = flows.clone().map(BulkFlow::moved).collect();
    for (flow, before) in flows.clone().zip(before) {
        while flow.moved() == before {
            flow.failure()?;
            if began.elapsed() > timeout {
                return Err(JobMessage::Stalled { at_byte: before });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    flows.clone().try_for_each(BulkFlow::failure)?;
    Ok(flows.map(BulkFlow::moved).sum())
}
