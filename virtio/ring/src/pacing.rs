//! Waiting: sleeping, busy polling, or both.
//!
//! Waking a sleeping thread costs as much as the rest of a round trip. `Hybrid` therefore polls for a moment before it
//! sleeps, as long as recent waits were short; NAPI does the same in the kernel.

use core::time::Duration;

/// The way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Sleep at once.
    Event,
    /// Poll while recent waits were short, then sleep.
    Hybrid,
    /// Never sleep.
    Poll,
}

/// Time to poll before sleeping: about the cost of a wake-up.
pub const BUSY_POLL: Duration = Duration::from_micros(50);

/// Limit of a short wait. A wait that polling would have ended takes up to 50 us longer with a sleep, because of the
/// wake-up.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// Number of the last eight waits that must have been short for polling to be worthwhile.
const MIN_SHORT: u32 = 4;

/// A history of the last eight waits.
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

    /// Returns whether polling would have ended a wait of this length.
    #[must_use]
    pub fn is_short(waited: Duration) -> bool {
        waited < SHORT_WAIT
    }

    /// Records a finished wait.
    pub fn record(&mut self, short: bool) {
        self.short = self.short << 1 | u8::from(short);
    }

    /// Returns whether the next wait should begin with polling.
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
