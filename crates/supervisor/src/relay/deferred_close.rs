//! Rings that nobody needs any more.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Whoever is the last to close a ring waits for the kernel, some 20 ms (`synchronize_net` in `packet_release`, Linux
/// net/packet/af_packet.c). Were that a worker, its other rings would overflow: so ours stay open until it has closed its own.
#[derive(Debug, Default)]
pub(super) struct DeferredClose(VecDeque<(Instant, OwnedFd)>);

/// How long a worker may take to close its own; where it takes longer, it has not been working anyway.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

impl DeferredClose {
    /// Closes them later.
    pub(super) fn extend(&mut self, sockets: impl IntoIterator<Item = OwnedFd>) {
        let due = Instant::now() + LONG_ENOUGH;
        self.0.extend(sockets.into_iter().map(|socket| (due, socket)));
    }

    /// When the next one is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.front().map(|(due, _)| *due)
    }

    /// Closes one that is due: between two of them there is time for others.
    pub(super) fn close_due(&mut self) {
        self.0.pop_front_if(|(due, _)| *due <= Instant::now());
    }
}
