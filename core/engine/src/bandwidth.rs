//! The guest's bandwidth limit: bits per second in each direction, for all workers together.
//!
//! Each direction is a token bucket, stored as the time at which all traffic so far is within the rate (virtual scheduling,
//! ITU-T I.371). Traffic is counted after it was sent and may exceed the tokens; the next frame waits longer then. So no
//! frame is too large, and no frame is dropped: the guest's frames wait in the link, and the host's data in its sockets.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use crate::Instant;

/// A guest's bandwidth limit. Clones share it.
#[derive(Clone, Debug)]
pub struct Bandwidth(Arc<Ways>);

#[derive(Debug)]
struct Ways {
    up: Bucket,
    down: Bucket,
}

impl Bandwidth {
    /// Returns a limit of `rate` bits per second in each direction.
    #[must_use]
    pub fn new(rate: NonZeroU64) -> Self {
        Self(Arc::new(Ways {
            up: Bucket::new(rate),
            down: Bucket::new(rate),
        }))
    }
}

/// One worker's access to the guest's bandwidth limit, if there is one.
#[derive(Debug)]
pub(crate) struct Throttle {
    bandwidth: Option<Bandwidth>,
    /// The times until which frames from the guest and data for the guest wait.
    up: Option<Instant>,
    down: Option<Instant>,
}

/// The wait of data for the guest, after [`Throttle::end_waits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DownWait {
    /// It has ended now.
    Ended,
    /// There is none, or it has not ended.
    Unchanged,
}

impl Throttle {
    pub(crate) fn new(bandwidth: Option<Bandwidth>) -> Self {
        Self {
            bandwidth,
            up: None,
            down: None,
        }
    }

    /// Returns the bytes that the guest may send now; if 0, its frames wait.
    pub(crate) fn up(&mut self, now: Instant) -> u64 {
        match &self.bandwidth {
            Some(Bandwidth(ways)) => ways.up.ask(&mut self.up, now),
            None => u64::MAX,
        }
    }

    /// Returns the bytes that may be sent to the guest now; if 0, they wait.
    pub(crate) fn down(&mut self, now: Instant) -> u64 {
        match &self.bandwidth {
            Some(Bandwidth(ways)) => ways.down.ask(&mut self.down, now),
            None => u64::MAX,
        }
    }

    /// Returns the MTU for TCP segments on a link with MTU `mtu`. At a low rate it is smaller, as large segments would arrive
    /// too rarely: the guest acknowledges every second one (RFC 9293 section 3.8.6.3), and until then they fill the host's
    /// socket.
    pub(crate) fn mtu(&self, mtu: usize) -> usize {
        match &self.bandwidth {
            Some(Bandwidth(ways)) => mtu.min(ways.down.worth(SEGMENT).max(ETHERNET_MTU)),
            None => mtu,
        }
    }

    /// Counts frames of these lengths from the guest.
    pub(crate) fn sent_up(&self, lens: impl Iterator<Item = usize>, now: Instant) {
        if let Some(Bandwidth(ways)) = &self.bandwidth {
            ways.up.spend(lens.sum(), now);
        }
    }

    /// Counts bytes that were sent to the guest.
    pub(crate) fn sent_down(&self, len: usize, now: Instant) {
        if let Some(Bandwidth(ways)) = &self.bandwidth {
            ways.down.spend(len, now);
        }
    }

    /// Returns the time at which the next wait ends.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.up.into_iter().chain(self.down).min()
    }

    /// Ends the waits that have expired.
    pub(crate) fn end_waits(&mut self, now: Instant) -> DownWait {
        let is_over = |at: &mut Instant| *at <= now;
        self.up.take_if(is_over);
        match self.down.take_if(is_over) {
            Some(_) => DownWait::Ended,
            None => DownWait::Unchanged,
        }
    }
}

#[derive(Debug)]
struct Bucket {
    /// Bits per second.
    rate: NonZeroU64,
    /// The time at which all traffic so far is within the rate.
    paid: AtomicU64,
}

impl Bucket {
    fn new(rate: NonZeroU64) -> Self {
        Self {
            rate,
            paid: AtomicU64::new(0),
        }
    }

    /// Returns the bytes that are permitted now. If there are none, `wait` is set to the end of a common wait, so that the
    /// worker does not wake up for each frame.
    fn ask(&self, wait: &mut Option<Instant>, now: Instant) -> u64 {
        if wait.is_some_and(|at| now < at) {
            return 0;
        }
        let paid = Instant(self.paid.load(Ordering::Relaxed));
        let left = (now + DEPTH).since(if paid < now { now } else { paid });
        if left.is_zero() {
            *wait = Some(Instant(paid.0 - nanos(DEPTH)) + PAUSE);
            return 0;
        }
        u64::try_from(self.worth(left)).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the bytes of a duration at the rate.
    fn worth(&self, time: Duration) -> usize {
        let bytes = u128::from(nanos(time)) * u128::from(self.rate.get()) / BIT_NANOS;
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn spend(&self, bytes: usize, now: Instant) {
        let cost = bytes as u128 * BIT_NANOS / u128::from(self.rate.get());
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let next = |paid: u64| Some(paid.max(now.0).saturating_add(cost));
        let _ = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The time of a byte at one bit a second, in nanoseconds.
const BIT_NANOS: u128 = 8_000_000_000;

/// The duration whose bytes are the largest burst.
const DEPTH: Duration = Duration::from_millis(20);

/// The longest time of one segment, where it is larger than Ethernet's.
const SEGMENT: Duration = Duration::from_millis(4);
const ETHERNET_MTU: usize = 1500;

/// The time for which tokens are gathered before any traffic passes again: at 1 Gbit/s and an MTU of 1,500 a wake-up is
/// worth 170 segments.
const PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// 8 Mbit/s: a byte takes a microsecond.
    fn throttle() -> Throttle {
        Throttle::new(Some(Bandwidth::new(NonZeroU64::new(8_000_000).unwrap())))
    }

    #[test]
    fn idle_bucket_is_filled_up_to_its_depth() {
        let mut throttle = throttle();
        for now in [100, 900].map(|ms| Instant(ms * MS)) {
            assert_eq!((throttle.up(now), throttle.down(now)), (20_000, 20_000));
            throttle.sent_up([15_000, 1_000].into_iter(), now);
            assert_eq!((throttle.up(now), throttle.down(now)), (4_000, 20_000));
            assert_eq!(throttle.next(), None);
        }
    }

    #[test]
    fn bytes_above_the_rate_delay_the_next_ones() {
        let mut throttle = throttle();
        let at = |micros: u64| Instant(100 * MS + micros * 1_000);
        throttle.sent_down(70_000, at(0));
        assert_eq!(throttle.down(at(0)), 0);
        // 50 ms are owed, and 2 ms are gathered.
        assert_eq!(throttle.next(), Some(at(52_000)));
        assert_eq!(throttle.end_waits(at(51_999)), DownWait::Unchanged);
        assert_eq!(throttle.down(at(51_999)), 0);
        assert_eq!(throttle.down(at(52_000)), 2_000);
        // The wait ends, although bytes were permitted before.
        assert_eq!(throttle.end_waits(at(52_000)), DownWait::Ended);
        assert_eq!(throttle.next(), None);
    }

    #[test]
    fn workers_share_one_limit() {
        let mut one = throttle();
        let mut other = Throttle::new(one.bandwidth.clone());
        let now = Instant(100 * MS);
        one.sent_up([20_000].into_iter(), now);
        assert_eq!((one.up(now), other.up(now), other.down(now)), (0, 0, 20_000));
    }

    #[test]
    fn rate_is_met_over_a_minute() {
        for rate in [64_000, 10_000_000, 40_000_000_000] {
            let mut throttle = Throttle::new(Some(Bandwidth::new(NonZeroU64::new(rate).unwrap())));
            let (mut now, mut sent) = (Instant(100 * MS), 0);
            let end = now + Duration::from_secs(60);
            while now < end {
                match throttle.down(now) {
                    0 => {
                        now = throttle.next().unwrap();
                        throttle.end_waits(now);
                    }
                    _ => {
                        throttle.sent_down(65_535, now);
                        sent += 65_535;
                    }
                }
            }
            let most = rate * 60 / 8;
            assert!(
                (most * 99 / 100..=most * 101 / 100 + 65_535).contains(&sent),
                "{sent} at {rate}"
            );
        }
    }

    #[test]
    fn low_rate_lowers_the_mtu_of_segments() {
        let mtu = |rate, mtu| Throttle::new(NonZeroU64::new(rate).map(Bandwidth::new)).mtu(mtu);
        assert_eq!(mtu(1_000_000, 65_520), 1500);
        assert_eq!(mtu(20_000_000, 65_520), 10_000);
        assert_eq!(mtu(20_000_000, 1280), 1280);
        assert_eq!(mtu(1_000_000_000, 65_520), 65_520);
    }

    #[test]
    fn no_limit_causes_no_wait() {
        let mut throttle = Throttle::new(None);
        throttle.sent_up([1 << 30].into_iter(), Instant(0));
        assert_eq!(
            (throttle.up(Instant(0)), throttle.down(Instant(0))),
            (u64::MAX, u64::MAX)
        );
    }
}
