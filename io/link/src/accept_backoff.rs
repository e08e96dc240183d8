//! The pause after accept(2) has failed.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tracing::warn;

use pontoon_event::{Edge, Epoll};

/// The pause. Descriptors or memory may be short for longer, and without a pause each attempt would follow the one before
/// at once.
const PAUSE: Duration = Duration::from_millis(100);

/// State of a listener whose backlog may hold guests that no event will report: it is edge triggered, and they have been
/// reported already.
#[derive(Debug, Default)]
pub(super) struct AcceptBackoff {
    until: Option<Instant>,
    /// The failure was logged.
    logged: bool,
}

impl AcceptBackoff {
    /// Begins a pause after accept(2) has failed.
    pub(super) fn begin(&mut self, error: Errno) {
        self.until = Some(Instant::now() + PAUSE);
        if !std::mem::replace(&mut self.logged, true) {
            warn!("cannot accept a guest's connection: {error}; retrying");
        }
    }

    /// Ends the pause: the backlog is empty.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Returns the longest time for which the worker may sleep. At its end the listener is registered again, so that
    /// [`Edge::Control`] reports guests in its backlog.
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
            Err(_) => Some(PAUSE),
        }
    }
}
