//! A bulk connection under watch.

use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blake3::Hash;

use crate::job::Message;

/// How often a watcher looks. Only at the two ends of a measurement, and what goes on meanwhile counts.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// A connection that one thread moves bytes over while another watches.
pub(crate) struct Flow {
    pub(crate) socket: TcpStream,
    moved: AtomicU64,
    ended: OnceLock<Result<Hash, Message>>,
}

impl Flow {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            moved: AtomicU64::new(0),
            ended: OnceLock::new(),
        }
    }

    /// Bytes sent, or received and found right.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    pub(crate) fn set_moved(&self, position: u64) {
        self.moved.store(position, Ordering::Relaxed);
    }

    /// Says how it ended. Only the first counts: what follows is its consequence.
    pub(crate) fn end(&self, how: Result<Hash, Message>) {
        let _ = self.ended.set(how);
    }

    /// Wakes whoever waits for this connection.
    pub(crate) fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Waits until it has ended or moved: its hash, or none where there is more to come.
    ///
    /// # Errors
    /// How it failed, or `Stalled` after `timeout`.
    pub(crate) fn hash(&self, timeout: Duration) -> Result<Option<Hash>, Message> {
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
                return Err(Message::Stalled { at_byte: before });
            }
        }
    }

    fn failure(&self) -> Result<(), Message> {
        match self.ended.get() {
            Some(Err(message)) => Err(message.clone()),
            _ => Ok(()),
        }
    }
}

/// Waits until each of `flows` has moved since now, and returns how many bytes all have moved by then. A stream that has
/// stopped is found that way, not averaged away.
///
/// # Errors
/// How one failed, or `Stalled` after `timeout`.
pub(crate) fn all_moved<'a>(
    flows: impl Iterator<Item = &'a Flow> + Clone,
    timeout: Duration,
) -> Result<u64, Message> {
    let began = Instant::now();
    let before: Vec<u64> = flows.clone().map(Flow::moved).collect();
    for (flow, before) in flows.clone().zip(before) {
        while flow.moved() == before {
            flow.failure()?;
            if began.elapsed() > timeout {
                return Err(Message::Stalled { at_byte: before });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    flows.clone().try_for_each(Flow::failure)?;
    Ok(flows.map(Flow::moved).sum())
}
