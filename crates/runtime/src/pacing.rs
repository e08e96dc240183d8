//! How a worker waits.
//!
//! Waking a sleeping thread costs as much as the rest of a round trip, so that `hybrid` looks around for a moment before
//! it sleeps. Its manners: only where another CPU can do the work that is waited for, only right after a short turn of
//! work, and at most a fifth of the time unless it pays.

use std::time::Duration;

use pontoon_engine::Instant;

/// How a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Sleep at once.
    Event,
    /// Spin while it pays, then sleep.
    Hybrid,
    /// Never sleep.
    Poll,
}

/// How long to look around after the last work.
const WINDOW: Duration = Duration::from_micros(50);

/// Over this long ...
const PERIOD: Duration = Duration::from_millis(100);

/// ... at most this is spun away,
const ALLOWANCE: Duration = Duration::from_millis(20);

/// unless each of the last eight spins found work.
const ALL_HIT: u8 = u8::MAX;

/// What to do until there is work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Look again at once.
    No,
    /// Sleep until something happens.
    Sleep,
}

/// One worker's pacing.
#[derive(Debug)]
pub(crate) struct Pacer {
    pacing: Pacing,
    /// When a spin under way began.
    spinning: Option<Instant>,
    /// What came of the last eight spins, newest in the lowest bit; a set bit is a hit.
    hits: u8,
    period: Instant,
    /// Spun since `period` began.
    spun: Duration,
}

impl Pacer {
    /// `cpus` is how many may run us at one time: with fewer than 2, spinning would take the CPU from the very work
    /// that is waited for.
    #[must_use]
    pub(crate) fn new(pacing: Pacing, cpus: f64, now: Instant) -> Self {
        let pacing = match pacing {
            Pacing::Hybrid if cpus < 2.0 => Pacing::Event,
            pacing => pacing,
        };
        Self {
            pacing,
            spinning: None,
            hits: 0,
            period: now,
            spun: Duration::ZERO,
        }
    }

    /// How to wait after a turn that found nothing to do at `now`.
    pub(crate) fn idle(&mut self, now: Instant) -> Wait {
        match self.pacing {
            Pacing::Poll => Wait::No,
            Pacing::Event => Wait::Sleep,
            Pacing::Hybrid => self.look_on(now),
        }
    }

    /// How to wait after a turn that worked from `begin` to `end`.
    pub(crate) fn worked(&mut self, begin: Instant, end: Instant) -> Wait {
        match self.pacing {
            Pacing::Poll => Wait::No,
            Pacing::Event => Wait::Sleep,
            Pacing::Hybrid => {
                if let Some(began) = self.spinning {
                    self.end(began, begin, true);
                }
                // Bulk: a wake-up is little beside such a turn, and the sender and the receiver need the CPUs. With BBR at
                // both ends, TCP up went from 17.0 to 20.0 Gbit/s (medians of 9 interleaved, 2 cores, 2026-11-21); round
                // trips stayed as they were.
                if end.since(begin) > WINDOW {
                    return Wait::Sleep;
                }
                self.look_around(end)
            }
        }
    }

    /// Begins a spin, where that is allowed.
    fn look_around(&mut self, now: Instant) -> Wait {
        if now.since(self.period) >= PERIOD {
            self.period = now;
            self.spun = Duration::ZERO;
        }
        if self.spun >= ALLOWANCE && self.hits != ALL_HIT {
            return Wait::Sleep;
        }
        self.spinning = Some(now);
        Wait::No
    }

    /// Goes on with a spin that is under way. Without one, the worker was woken for nothing of ours, say a timer.
    fn look_on(&mut self, now: Instant) -> Wait {
        let Some(began) = self.spinning else {
            return Wait::Sleep;
        };
        if now.since(began) < WINDOW {
            return Wait::No;
        }
        self.end(began, now, false);
        Wait::Sleep
    }

    fn end(&mut self, began: Instant, now: Instant, hit: bool) {
        self.spinning = None;
        self.spun += now.since(began);
        self.hits = self.hits << 1 | u8::from(hit);
    }
}

#[cfg(test)]
mod tests;
