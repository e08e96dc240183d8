//! Registration of a descriptor that delivers frames with the worker's epoll instance.

use std::os::fd::AsFd;
use std::time::Duration;

use pontoon_event::{Edge, Epoll};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::RETRY;

/// A level-triggered registration that can be suspended. While the rate limit forbids receiving, pending frames would
/// otherwise end each sleep of the worker at once.
#[derive(Debug, Default)]
pub(super) struct RxInterest {
    shut: bool,
}

impl RxInterest {
    /// Enables the registration of `source` before the worker sleeps if it waits for `frames`, and suspends it
    /// otherwise. Returns the longest time for which the worker may sleep.
    pub(super) fn sleep(&mut self, source: impl AsFd, epoll: &Epoll, frames: bool) -> Option<Duration> {
        match (frames, self.shut) {
            (false, false) => {
                // The registration is removed, because one without events would still report errors and hang-ups.
                epoll.remove(source);
                self.shut = true;
                None
            }
            (true, true) => {
                self.shut = epoll.add_level(source, Edge::Link.token()).is_err();
                self.shut.then_some(RETRY)
            }
            (true, false) | (false, true) => None,
        }
    }

    /// Returns true if the registration is suspended and `source` is readable or at its end. A worker that is too busy
    /// to sleep must poll so, because it gets no event for it.
    pub(super) fn misses(&self, source: impl AsFd) -> bool {
        self.shut && is_now(source, PollFlags::IN)
    }
}

/// Polls a descriptor without waiting. Returns true if it is in `state`, has an error or was hung up.
pub(super) fn is_now(source: impl AsFd, state: PollFlags) -> bool {
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&source, state)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}
