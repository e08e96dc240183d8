//! How often the engine may die, and how long it may fail to start, before it is not worth another try; and how often
//! another process may.

use std::time::{Duration, Instant};

/// When engines died.
#[derive(Debug, Default)]
pub(crate) struct Deaths(Vec<Instant>);

impl Deaths {
    /// The time in which [`Self::MOST`] deaths are too many.
    pub(crate) const WITHIN: Duration = Duration::from_secs(10);

    /// One that dies at once each time would take the machine's CPU for nothing.
    const MOST: usize = 3;

    /// Notes a death. Whether it is one too many.
    pub(crate) fn too_many(&mut self, now: Instant) -> bool {
        self.note(now);
        self.0.len() >= Self::MOST
    }

    /// Notes a death, where none is too many. How long a successor has to wait: not at all after so many, and then longer
    /// each time. Whoever makes them die is guessing, and is not to guess often.
    pub(crate) fn pause(&mut self, now: Instant) -> Duration {
        self.note(now);
        match self.0.len().checked_sub(Self::MOST + 1) {
            None => Duration::ZERO,
            Some(more) => Self::WITHIN
                .min(Self::SHORTEST * 2_u32.saturating_pow(u32::try_from(more).unwrap_or(u32::MAX))),
        }
    }

    /// The first pause.
    const SHORTEST: Duration = Duration::from_millis(100);

    fn note(&mut self, now: Instant) {
        self.0.retain(|then| now.duration_since(*then) < Self::WITHIN);
        self.0.push(now);
    }
}

/// Attempts to start an engine in a dead one's place, all of which have failed. They are no deaths: what the host refuses
/// now, it may grant soon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempts {
    first: Instant,
    next: Instant,
}

impl Attempts {
    /// What the host is short of does not come back sooner.
    const PAUSE: Duration = Duration::from_millis(50);

    /// None yet: the first one is due.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            first: now,
            next: now,
        }
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Whether none has failed yet.
    pub(crate) fn is_first(&self) -> bool {
        self.next == self.first
    }

    /// Notes that one has failed. Whether they have for too long.
    pub(crate) fn too_long(&mut self, now: Instant) -> bool {
        self.next = now + Self::PAUSE;
        now.duration_since(self.first) >= Deaths::WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_in_ten_seconds_is_too_many() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deaths = Deaths::default();
        let verdicts = [0, 9, 10, 19, 20, 21].map(|seconds| deaths.too_many(at(seconds)));
        assert_eq!(verdicts, [false, false, false, false, false, true]);
    }

    #[test]
    fn the_more_die_the_longer_is_the_wait() {
        let mut deaths = Deaths::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = deaths.pause(now);
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses, [0, 0, 0, 100, 200, 400, 800, 1600]);
        for _ in 0..100 {
            assert!(deaths.pause(now) <= Deaths::WITHIN);
        }
        assert_eq!(deaths.pause(now + Deaths::WITHIN), Duration::ZERO);
    }

    #[test]
    fn attempts_may_fail_for_ten_seconds() {
        let start = Instant::now();
        let mut attempts = Attempts::new(start);
        assert!(attempts.is_first());
        assert_eq!(attempts.next(), start);
        assert!(!attempts.too_long(start));
        assert!(!attempts.is_first());
        assert_eq!(attempts.next(), start + Attempts::PAUSE);
        assert!(!attempts.too_long(start + Deaths::WITHIN - Attempts::PAUSE));
        assert!(attempts.too_long(start + Deaths::WITHIN));
    }
}
