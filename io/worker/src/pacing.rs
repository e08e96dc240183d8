//! Decides whether a worker that has no work polls or sleeps.
//!
//! Waking a sleeping thread costs as much as the rest of a round trip, so that `hybrid` polls for a moment before it
//! sleeps. It polls only if another CPU can do the work that is waited for, only right after a short turn of work, only
//! while most waits after such work are short, and at most a fifth of the time without finding work.

use std::time::Duration;

use pontoon_engine::Instant;
pub use pontoon_ring::pacing::Pacing;
use pontoon_ring::pacing::{BUSY_POLL, WaitHistory};
use tracing::debug;

use crate::cpus;

/// Returns the pacing that is possible for `workers` threads of a process that may use as many CPUs as the caller. It
/// must be called outside of the sandbox, whose cgroup namespace hides the quota (cgroup_namespaces(7)).
#[must_use]
pub fn here(wanted: Pacing, workers: u8) -> Pacing {
    // While one worker spins, the others and their peers need CPUs too.
    let cpus = cpus::available() - f64::from(workers.saturating_sub(1));
    let pacing = on(wanted, cpus);
    if pacing != wanted {
        debug!("no spinning: {cpus} CPUs for a worker and its peers");
    }
    pacing
}

/// With fewer than 2 CPUs, spinning would take the CPU from the very work that is waited for.
fn on(wanted: Pacing, cpus: f64) -> Pacing {
    match wanted {
        Pacing::Hybrid if cpus < 2.0 => Pacing::Event,
        pacing => pacing,
    }
}

/// The period to which [`ALLOWANCE`] applies.
const PERIOD: Duration = Duration::from_millis(100);

/// The longest time of polling without finding work in a [`PERIOD`].
const ALLOWANCE: Duration = Duration::from_millis(20);

/// The method of waiting until there is work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Poll again at once.
    No,
    /// Sleep until an event or a timer.
    Sleep,
}

/// The side from which the work of a turn came. The host replies to a guest soon, while a guest may pause between requests:
/// a client that sends a hundred requests a second gets its replies at once, and no worker polls between its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// From the guest's frames, wherever else as well.
    Guest,
    /// From sockets, or another worker.
    Host,
}

/// One worker's pacing.
#[derive(Debug)]
pub(crate) struct Pacer {
    pacing: Pacing,
    /// The wait under way.
    waiting: Option<SpinWait>,
    /// After work of each side. (With one ration for all spins, a single miss meant sleeping for up to 80 ms: the 99th
    /// percentile of round trips was 117 us and is 59. Medians of 9 interleaved, 2026-11-21.)
    waits: [WaitHistory; 2],
    period: Instant,
    /// The time of polling without finding work since `period` began.
    spun: Duration,
}

/// A wait for work.
#[derive(Clone, Copy, Debug)]
struct SpinWait {
    /// The side of the last work.
    after: Side,
    since: Instant,
    spin: Spin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spin {
    None,
    UnderWay,
    InVain,
}

impl Pacer {
    #[must_use]
    pub(crate) fn new(pacing: Pacing, now: Instant) -> Self {
        Self {
            pacing,
            waiting: None,
            waits: [WaitHistory::new(); 2],
            period: now,
            spun: Duration::ZERO,
        }
    }

    /// Returns the method of waiting after a turn without work at `now`.
    pub(crate) fn idle(&mut self, now: Instant) -> Wait {
        match self.pacing {
            Pacing::Poll => Wait::No,
            Pacing::Event => Wait::Sleep,
            Pacing::Hybrid => self.look_on(now),
        }
    }

    /// There is more to do, and nothing to wait for.
    pub(crate) fn busy(&mut self) -> Wait {
        self.waiting = None;
        Wait::No
    }

    /// Returns the method of waiting after a turn that found the link full: the guest, which has to empty it, needs the
    /// CPU. (Polling meanwhile, TCP down to a machine without offloads at MTU 1500 went at 2,930 Mbit/s; it goes at
    /// 3,760. Medians of 3 interleaved, 2026-11-21.)
    pub(crate) fn blocked(&mut self) -> Wait {
        self.waiting = None;
        match self.pacing {
            Pacing::Poll => Wait::No,
            Pacing::Hybrid | Pacing::Event => Wait::Sleep,
        }
    }

    /// Returns the method of waiting after a turn that worked from `begin` to `end` on input from the side `from`.
    pub(crate) fn worked(&mut self, from: Side, begin: Instant, end: Instant) -> Wait {
        match self.pacing {
            Pacing::Poll => Wait::No,
            Pacing::Event => Wait::Sleep,
            Pacing::Hybrid => {
                if let Some(over) = self.waiting {
                    let is_short =
                        over.spin != Spin::InVain && WaitHistory::is_short(begin.since(over.since));
                    self.waits[over.after as usize].record(is_short);
                }
                // Bulk: a wake-up is little beside such a turn, and the sender and the receiver need the CPUs. With BBR
                // at both ends, TCP up went from 17.0 to 20.0 Gbit/s (medians of 9 interleaved, 2 cores, 2026-11-21);
                // round trips stayed as they were.
                let is_bulk = end.since(begin) > BUSY_POLL;
                if !is_bulk {
                    self.update_period(end);
                }
                let (spin, wait) = match !is_bulk && self.pays(from) {
                    true => (Spin::UnderWay, Wait::No),
                    false => (Spin::None, Wait::Sleep),
                };
                self.waiting = Some(SpinWait {
                    after: from,
                    since: end,
                    spin,
                });
                wait
            }
        }
    }

    /// Begins a new period if the last one is over.
    fn update_period(&mut self, now: Instant) {
        if now.since(self.period) >= PERIOD {
            self.period = now;
            self.spun = Duration::ZERO;
        }
    }

    /// Returns true if polling is worthwhile after work of the side `from`.
    fn pays(&self, from: Side) -> bool {
        self.spun < ALLOWANCE && self.waits[from as usize].should_busy_poll()
    }

    /// Continues a spin that is under way. Without one, the worker was woken by something that is not work, such as a timer.
    fn look_on(&mut self, now: Instant) -> Wait {
        match &mut self.waiting {
            Some(waiting) if waiting.spin == Spin::UnderWay => {
                let so_far = now.since(waiting.since);
                if so_far < BUSY_POLL {
                    return Wait::No;
                }
                waiting.spin = Spin::InVain;
                self.spun += so_far;
                Wait::Sleep
            }
            _ => Wait::Sleep,
        }
    }
}

#[cfg(test)]
mod tests;
