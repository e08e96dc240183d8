//! Whether a source of frames is heard.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::RETRY;
use crate::host::event::{Edge, Epoll};

/// What hears a descriptor that is level triggered: frames that may not be taken yet would end each sleep as it begins.
#[derive(Debug, Default)]
pub(super) struct Ear {
    shut: bool,
}

impl Ear {
    /// Hears `source` while its worker sleeps, if that waits for `frames`. How long it may sleep, at most.
    pub(super) fn sleep(&mut self, source: impl AsFd, epoll: &Epoll, frames: bool) -> Option<Duration> {
        match (frames, self.shut) {
            (false, false) => {
                // Registered for nothing, it would still tell of an error or the end.
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

    /// Whether there are frames, or no more to come, that nothing tells of: a worker may have too much to do to sleep.
    pub(super) fn misses(&self, source: impl AsFd) -> bool {
        self.shut && is_now(source, PollFlags::IN)
    }
}

/// Whether a descriptor is in such a state, or has no more to tell.
pub(super) fn is_now(source: impl AsFd, state: PollFlags) -> bool {
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&source, state)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}
