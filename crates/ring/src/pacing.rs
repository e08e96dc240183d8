//! How one side waits for the other.
//!
//! Waking a sleeping thread costs as much as the rest of a round trip. So `hybrid` looks around for a moment before it
//! sleeps, for as long as that pays: NAPI's idea in user space.

use core::time::Duration;

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Sleep at once.
    Event,
    /// Look around while that pays, then sleep.
    Hybrid,
    /// Never sleep.
    Poll,
}

/// How long to look around before sleeping: about what it costs to be woken.
pub const WINDOW: Duration = Duration::from_micros(50);

/// A wait that looking around would have ended, had nobody slept: waking up takes up to as long again.
const SHORT: Duration = Duration::from_micros(100);

/// Of the last eight waits this many have to have been short for the next to be worth a look around.
const ENOUGH: u32 = 4;

/// A memory of the last eight waits.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// The newest is the lowest bit; a set bit is a short one.
    short: u8,
}

impl Waits {
    /// As if all had been short.
    #[must_use]
    pub const fn new() -> Self {
        Self { short: u8::MAX }
    }

    /// Whether looking around would have ended a wait of this length.
    #[must_use]
    pub fn is_short(waited: Duration) -> bool {
        waited < SHORT
    }

    /// A wait is over.
    pub fn note(&mut self, short: bool) {
        self.short = self.short << 1 | u8::from(short);
    }

    /// Whether the next wait is worth a look around.
    #[must_use]
    pub fn pays(self) -> bool {
        self.short.count_ones() >= ENOUGH
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self::new()
    }
}
