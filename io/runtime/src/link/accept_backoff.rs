//! How a listener that cannot be accepted from rests.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tracing::warn;

use crate::host::event::{Edge, Epoll};

/// How long to leave it alone: descriptors or memory may be short for longer, and it would be told of at once.
const REST: Duration = Duration::from_millis(100);

/// Whether guests may wait at a listener that nothing will tell of: it is edge triggered, and they are no news.
#[derive(Debug, Default)]
pub(super) struct AcceptBackoff {
    until: Option<Instant>,
    /// That it cannot be accepted from has been said.
    said: bool,
}

impl AcceptBackoff {
    /// Nobody could be accepted: looks again after a rest.
    pub(super) fn begin(&mut self, error: Errno) {
        self.until = Some(Instant::now() + REST);
        if !std::mem::replace(&mut self.said, true) {
            warn!("cannot take a guest's connection: {error}; it is tried again");
        }
    }

    /// Nobody is left to be accepted.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// How long whoever is about to sleep may. After that, [`Edge::Control`] tells of who waits.
    pub(super) fn sleep(&mut self, listener: Option<&OwnedFd>, epoll: &Epoll) -> Option<Duration> {
        let (listener, until) = (listener?, self.until?);
        let left = until.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        match epoll.rename(listener, Edge::Control.token()) {
            Ok(()) => {
                self.until = None;
                None
            }
            Err(_) => Some(REST),
        }
    }
}
