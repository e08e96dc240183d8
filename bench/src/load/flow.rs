//! A bulk connection that another thread observes.

use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blake3::Hash;

use crate::job::JobMessage;

/// Interval of the observer's polls. It polls at both ends of a measurement only, and bytes moved meanwhile count.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// A connection over which one thread moves bytes while another observes it.
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

    /// The number of bytes sent, or received and verified.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    pub(crate) fn set_moved(&self, position: u64) {
        self.moved.store(position, Ordering::Relaxed);
    }

    /// Records the result. Only the first counts: later ones are its consequences.
    pub(crate) fn end(&self, how: Result<Hash, JobMessage>) {
        let _ = self.ended.set(how);
    }

    /// Shuts the connection down, which wakes the threads that wait for it.
    pub(crate) fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Waits until the flow has ended or made progress. Returns its hash, or `None` if it has not ended.
    ///
    /// # Errors
    /// The flow's error, or `Stalled` after `timeout`.
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

/// Waits until each of `flows` has made progress, and returns the sum of the bytes that all have moved by then. So a
/// stream that has stopped is an error and does not vanish in an average.
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
