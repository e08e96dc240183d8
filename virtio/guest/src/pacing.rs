//! Decision how long a wait of the interface polls before it sleeps.

use core::time::Duration;

use pontoon_ring::pacing::{BUSY_POLL, Pacing, WaitHistory};

/// The pacing of an interface, with the history of its waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    pacing: Pacing,
    waits: WaitHistory,
}

/// Time for which a wait polls before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollTime {
    /// Poll for at most this time, then sleep.
    Limited(Duration),
    /// Poll until a frame or room is ready, and never sleep.
    Unlimited,
}

impl Pacer {
    pub(crate) const fn new(pacing: Pacing) -> Self {
        Self {
            pacing,
            waits: WaitHistory::new(),
        }
    }

    /// Returns the duration for which the next wait polls the ring before it sleeps.
    pub(crate) fn poll_time(&self) -> PollTime {
        match self.pacing {
            Pacing::Hybrid if self.waits.should_busy_poll() => PollTime::Limited(BUSY_POLL),
            Pacing::Hybrid | Pacing::Event => PollTime::Limited(Duration::ZERO),
            Pacing::Poll => PollTime::Unlimited,
        }
    }

    /// Records a wait of the duration `waited`. The wait has ended because a frame or room was ready (`found`), or at
    /// its deadline. A short wait that has ended at its deadline is ignored, because it carries no information
    /// about the device.
    pub(crate) fn record_wait(&mut self, waited: Duration, found: bool) {
        let is_short = WaitHistory::is_short(waited);
        if found || !is_short {
            self.waits.record(is_short);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);
    const LONG: Duration = Duration::from_millis(10);

    #[test]
    fn event_never_polls_and_poll_always_polls() {
        let (event, poll) = (Pacer::new(Pacing::Event), Pacer::new(Pacing::Poll));
        assert_eq!(event.poll_time(), PollTime::Limited(Duration::ZERO));
        assert_eq!(poll.poll_time(), PollTime::Unlimited);
    }

    #[test]
    fn hybrid_polls_while_waits_are_short() {
        let mut pacer = Pacer::new(Pacing::Hybrid);
        for _ in 0..4 {
            assert_eq!(pacer.poll_time(), PollTime::Limited(BUSY_POLL));
            pacer.record_wait(LONG, true);
        }
        pacer.record_wait(LONG, true);
        assert_eq!(
            pacer.poll_time(),
            PollTime::Limited(Duration::ZERO),
            "polling did not shorten the wait"
        );
        for _ in 0..4 {
            assert_eq!(pacer.poll_time(), PollTime::Limited(Duration::ZERO));
            pacer.record_wait(SHORT, true);
        }
        assert_eq!(
            pacer.poll_time(),
            PollTime::Limited(BUSY_POLL),
            "polling would have ended the wait"
        );
    }

    #[test]
    fn short_deadlines_are_ignored() {
        let mut pacer = Pacer::new(Pacing::Hybrid);
        for _ in 0..8 {
            pacer.record_wait(LONG, false);
        }
        for _ in 0..8 {
            pacer.record_wait(SHORT, false);
        }
        assert_eq!(pacer.poll_time(), PollTime::Limited(Duration::ZERO));
    }
}
