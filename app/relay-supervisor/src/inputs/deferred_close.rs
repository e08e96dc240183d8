//! Deferred close of packet rings that are no longer used.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Descriptors of packet rings to be closed later. The process that closes the last descriptor of a ring waits about 20 ms
/// for the kernel (`synchronize_net` in `packet_release`, Linux net/packet/af_packet.c). In a worker the other rings would
/// overflow meanwhile, so the supervisor's descriptors stay open until the worker has closed its own.
#[derive(Debug, Default)]
pub(super) struct DeferredClose(VecDeque<(Instant, Arc<OwnedFd>)>);

/// Delay of the close, within which a worker closes its own descriptor. A worker that takes longer is not forwarding
/// anyway.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

impl DeferredClose {
    /// Adds sockets that are to be closed after the delay.
    pub(super) fn extend(&mut self, sockets: impl IntoIterator<Item = Arc<OwnedFd>>) {
        let due = Instant::now() + LONG_ENOUGH;
        self.0.extend(sockets.into_iter().map(|socket| (due, socket)));
    }

    /// Returns the time of the next close.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.front().map(|(due, _)| *due)
    }

    /// Closes one socket that is due. Other events are handled before the next one is closed.
    pub(super) fn close_due(&mut self) {
        self.0.pop_front_if(|(due, _)| *due <= Instant::now());
    }
}
