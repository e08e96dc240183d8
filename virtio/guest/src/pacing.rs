//! Decides how long a wait of the interface polls before it sleeps.

use core::time::Duration;

use pontoon_ring::pacing::{BUSY_POLL, Pacing, WaitHistory};

/// The pacing of an interface, with the history of its waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    pacing: Pacing,
    waits: WaitHistory,
}

/// Time to poll before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollTime {
    /// Poll for this time, then sleep.
    Limited(Duration),
    /// Poll until something is ready.
    Unlimited,
}

impl Pacer {
    pub(crate) const fn new(pacing: Pacing) -> Self {
        Self {
            pacing,
            waits: WaitHistory::new(),
        }
    }

    /// Returns how long to poll in the next wait.
    pub(crate) fn poll_time(&self) -> PollTime {
        match self.pacing {
            Pacing::Hybrid if self.waits.should_busy_poll() => PollTime::Limited(BUSY_POLL),
            Pacing::Hybrid | Pacing::Event => PollTime::Limited(Duration::ZERO),
            Pacing::Poll => PollTime::Unlimited,
        }
    }

    /// Records a wait of length `waited`. It ended because something was ready (`found`) or at its deadline; a short
    /// wait of the latter kind carries no information about the device.
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
            "it did not pay"
        );
        for _ in 0..4 {
            assert_eq!(pacer.poll_time(), PollTime::Limited(Duration::ZERO));
            pacer.record_wait(SHORT, true);
        }
        assert_eq!(
            pacer.poll_time(),
            PollTime::Limited(BUSY_POLL),
            "it would have paid"
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
