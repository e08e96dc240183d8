//! Decision of a worker without work to spin or to sleep.
//!
//! Waking a sleeping thread takes as long as all other steps of a round trip, so `hybrid` spins for a short time before it
//! sleeps. It spins only if another CPU can do the awaited work, only directly after a short turn of work, only while most
//! waits after such work are short, and at most a fifth of the time without finding work.

use std::time::Duration;

use pontoon_engine::Instant;
pub use pontoon_ring::pacing::Pacing;
use pontoon_ring::pacing::{BUSY_POLL, WaitHistory};
use tracing::debug;

use crate::cpus;

/// Returns the pacing that is possible for `workers` threads of a process that may use as many CPUs as the caller;
/// `wanted`, if there are enough. It must be called outside of the sandbox, whose cgroup namespace hides the CPU quota
/// (cgroup_namespaces(7)).
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

/// Returns the pacing for `cpus` CPUs. With fewer than 2, spinning would occupy the CPU that the awaited work needs.
fn on(wanted: Pacing, cpus: f64) -> Pacing {
    match wanted {
        Pacing::Hybrid if cpus < 2.0 => Pacing::Event,
        pacing => pacing,
    }
}

/// Period to which [`ALLOWANCE`] applies.
const PERIOD: Duration = Duration::from_millis(100);

/// Limit on the time of spinning without finding work in one [`PERIOD`].
const ALLOWANCE: Duration = Duration::from_millis(20);

/// Way in which a worker waits until there is work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Poll the inputs again immediately.
    No,
    /// Sleep until an event or a timer.
    Sleep,
}

/// Side from which the work of a turn came. The pacer distinguishes them because the host replies to a guest soon, while a
/// guest may pause between requests: with a guest that sends a hundred requests per second, workers spin while they wait
/// for replies, and sleep between its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The work included frames of the guest.
    Guest,
    /// The work came only from host sockets or from another worker.
    Host,
}

/// Pacing of one worker: decides after each turn whether the worker spins or sleeps.
#[derive(Debug)]
pub(crate) struct Pacer {
    pacing: Pacing,
    /// Current wait for work, if the worker has none.
    waiting: Option<SpinWait>,
    /// Lengths of recent waits, after work of each side. (With a common allowance for all spins, a single unsuccessful spin
    /// meant sleeping for up to 80 ms: the 99th percentile of round trips was 117 us and is 59. Medians of 9 interleaved,
    /// 2026-11-21.)
    waits: [WaitHistory; 2],
    period: Instant,
    /// Time of spinning without finding work since `period` began.
    spun: Duration,
}

/// Wait for work that has not ended.
#[derive(Clone, Copy, Debug)]
struct SpinWait {
    /// Side of the last work.
    after: Side,
    since: Instant,
    spin: Spin,
}

/// State of a wait: sleeping, spinning, or spinning until the time for it expired without work.
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

    /// Returns how to wait after a turn without work, at the time `now`.
    pub(crate) fn idle(&mut self, now: Instant) -> Wait {
        match self.pacing {
            Pacing::Poll => Wait::No,
            Pacing::Event => Wait::Sleep,
            Pacing::Hybrid => self.look_on(now),
        }
    }

    /// Returns how to wait after a turn that has more work to do: not at all.
    pub(crate) fn busy(&mut self) -> Wait {
        self.waiting = None;
        Wait::No
    }

    /// Returns how to wait after a turn that found the link full: the worker sleeps, because the guest needs the CPU to
    /// empty the link. (With spinning, TCP to a machine without offloads at MTU 1500 had 2,930 Mbit/s; it has 3,760.
    /// Medians of 3 interleaved, 2026-11-21.)
    pub(crate) fn blocked(&mut self) -> Wait {
        self.waiting = None;
        match self.pacing {
            Pacing::Poll => Wait::No,
            Pacing::Hybrid | Pacing::Event => Wait::Sleep,
        }
    }

    /// Returns how to wait after a turn that worked from `begin` to `end`, on input from the side `from`.
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
                // After bulk transfer the worker sleeps: a wake-up costs little compared with such a turn, and the sender
                // and the receiver need the CPUs. With BBR at both ends, TCP up went from 17.0 to 20.0 Gbit/s (medians of 9
                // interleaved, 2 cores, 2026-11-21); round trips were unchanged.
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

    /// Begins a new period if the current one is over.
    fn update_period(&mut self, now: Instant) {
        if now.since(self.period) >= PERIOD {
            self.period = now;
            self.spun = Duration::ZERO;
        }
    }

    /// Returns true if spinning is worthwhile after work of the side `from`.
    fn pays(&self, from: Side) -> bool {
        self.spun < ALLOWANCE && self.waits[from as usize].should_busy_poll()
    }

    /// Continues the current spin. If there is none, the worker was woken by something that is not work, such as a timer.
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
