//! How an interface waits.

use core::time::Duration;

use pontoon_ring::pacing::{Pacing, WINDOW, Waits};

/// An interface's memory of how long it waited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    pacing: Pacing,
    waits: Waits,
}

/// How long to look around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// For so long, then sleep.
    For(Duration),
    /// Until there is something.
    On,
}

impl Pacer {
    pub(crate) const fn new(pacing: Pacing) -> Self {
        Self {
            pacing,
            waits: Waits::new(),
        }
    }

    /// How long to look around in the wait that begins.
    pub(crate) fn look(&self) -> Look {
        match self.pacing {
            Pacing::Hybrid if self.waits.pays() => Look::For(WINDOW),
            Pacing::Hybrid | Pacing::Event => Look::For(Duration::ZERO),
            Pacing::Poll => Look::On,
        }
    }

    /// A wait is over, after `waited`, because there was something or (not `found`) because its time was up. In the latter
    /// case a short one says nothing about the device.
    pub(crate) fn waited(&mut self, waited: Duration, found: bool) {
        let is_short = Waits::is_short(waited);
        if found || !is_short {
            self.waits.note(is_short);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_micros(10);
    const LONG: Duration = Duration::from_millis(10);

    #[test]
    fn event_never_looks_around_and_poll_always_does() {
        let (event, poll) = (Pacer::new(Pacing::Event), Pacer::new(Pacing::Poll));
        assert_eq!(event.look(), Look::For(Duration::ZERO));
        assert_eq!(poll.look(), Look::On);
    }

    #[test]
    fn hybrid_looks_around_while_waits_are_short() {
        let mut pacer = Pacer::new(Pacing::Hybrid);
        for _ in 0..4 {
            assert_eq!(pacer.look(), Look::For(WINDOW));
            pacer.waited(LONG, true);
        }
        pacer.waited(LONG, true);
        assert_eq!(pacer.look(), Look::For(Duration::ZERO), "it did not pay");
        for _ in 0..4 {
            assert_eq!(pacer.look(), Look::For(Duration::ZERO));
            pacer.waited(MOMENT, true);
        }
        assert_eq!(pacer.look(), Look::For(WINDOW), "it would have paid");
    }

    #[test]
    fn a_deadline_that_was_near_says_nothing() {
        let mut pacer = Pacer::new(Pacing::Hybrid);
        for _ in 0..8 {
            pacer.waited(LONG, false);
        }
        for _ in 0..8 {
            pacer.waited(MOMENT, false);
        }
        assert_eq!(pacer.look(), Look::For(Duration::ZERO));
    }
}
