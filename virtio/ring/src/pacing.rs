//! Methods of waiting for the peer: sleeping, busy polling, or both.
//!
//! Waking a sleeping thread takes as long as the rest of a round trip. `Hybrid` therefore polls for a moment before it
//! sleeps, as long as recent waits were short; NAPI does the same in the kernel.

use core::time::Duration;

/// Method by which a worker waits for input (`--io`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Sleep at once until an event arrives, without polling.
    Event,
    /// Poll before sleeping, if most recent waits were short.
    Hybrid,
    /// Poll without limit, and never sleep.
    Poll,
}

/// Time for which `Hybrid` polls before it sleeps: about the duration of a wake-up.
pub const BUSY_POLL: Duration = Duration::from_micros(50);

/// Upper limit of a short wait. With a sleep, a wait that polling would have ended takes up to 50 us longer because of
/// the wake-up.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// Number of short waits among the last eight from which on polling is worthwhile.
const MIN_SHORT: u32 = 4;

/// History of the last eight waits, which decides whether the next wait begins with polling.
#[derive(Clone, Copy, Debug)]
pub struct WaitHistory {
    /// One bit per wait, the newest in the lowest bit; set for a short wait.
    short: u8,
}

impl WaitHistory {
    /// Creates a history in which all waits were short.
    #[must_use]
    pub const fn new() -> Self {
        Self { short: u8::MAX }
    }

    /// Returns true if polling would have ended a wait of this duration.
    #[must_use]
    pub fn is_short(waited: Duration) -> bool {
        waited < SHORT_WAIT
    }

    /// Records whether a wait that has ended was short.
    pub fn record(&mut self, short: bool) {
        self.short = self.short << 1 | u8::from(short);
    }

    /// Returns true if the next wait should begin with polling.
    #[must_use]
    pub fn should_busy_poll(self) -> bool {
        self.short.count_ones() >= MIN_SHORT
    }
}

impl Default for WaitHistory {
    fn default() -> Self {
        Self::new()
    }
}
