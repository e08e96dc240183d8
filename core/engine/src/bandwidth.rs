//! The guest's bandwidth limit (`--max-bandwidth`): bits per second in each direction, for all workers together.
//!
//! Each direction is a token bucket, stored as the time at which all traffic so far conforms to the rate (virtual
//! scheduling, ITU-T I.371). Traffic is counted after it was sent and may exceed the tokens; the next frame waits
//! longer then. Therefore no frame is too large, and no frame is dropped: frames of the guest wait in the link, and
//! data for the guest waits in the host sockets. Of the answers of the engine itself, those that may be larger
//! than the guest's packet or that a guest can do without for a while (router advertisements, DHCP, ICMP errors, echo
//! replies, DNS errors) are dropped and counted while the traffic exceeds the rate for longer than `ANSWERS`. ARP
//! replies, neighbor advertisements and TCP segments without data are always sent, and counted against the rate.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use crate::Instant;
use crate::state::{Reader, StateError, Writer};

/// The bandwidth limit of a guest. Clones share the token buckets, so that one limit applies to all workers.
#[derive(Clone, Debug)]
pub struct Bandwidth(Arc<TokenBuckets>);

/// The token buckets of both directions: from the guest (`up`) and to the guest (`down`).
#[derive(Debug)]
struct TokenBuckets {
    up: TokenBucket,
    down: TokenBucket,
}

impl Bandwidth {
    /// Creates a limit of `rate` bits per second in each direction.
    #[must_use]
    pub fn new(rate: NonZeroU64) -> Self {
        Self(Arc::new(TokenBuckets {
            up: TokenBucket::new(rate),
            down: TokenBucket::new(rate),
        }))
    }
}

/// One worker's view of the guest's bandwidth limit, if there is a limit: the shared token buckets, and the times until
/// which this worker waits.
#[derive(Debug)]
pub(crate) struct Throttle {
    bandwidth: Option<Bandwidth>,
    /// Times until which frames from the guest (`up`) and data for the guest (`down`) wait for tokens; `None` if they
    /// do not wait.
    up: Option<Instant>,
    down: Option<Instant>,
    /// Bytes sent to the guest that are not subtracted from the tokens yet.
    unsettled: usize,
    /// Bytes sent to the guest since the start of the worker.
    total_down: u64,
    /// Time of the current turn.
    now: Instant,
}

/// State of the wait of data for the guest, as [`Throttle::end_waits`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DownWait {
    /// The wait has ended in this call.
    Ended,
    /// There is no wait, or it has not ended yet.
    Unchanged,
}

impl Throttle {
    pub(crate) fn new(bandwidth: Option<Bandwidth>) -> Self {
        Self {
            bandwidth,
            up: None,
            down: None,
            unsettled: 0,
            total_down: 0,
            now: Instant(0),
        }
    }

    /// Appends the times until which this worker waits, and the tokens of all workers.
    pub(crate) fn save(&self, to: &mut Writer<'_>) {
        let Self {
            bandwidth,
            up,
            down,
            unsettled,
            total_down,
            now,
        } = self;
        to.put(&bandwidth.as_ref().map(|Bandwidth(ways)| [ways.up.paid(), ways.down.paid()]));
        to.put(up);
        to.put(down);
        to.put(unsettled);
        to.put(total_down);
        to.put(now);
    }

    pub(crate) fn load(&mut self, from: &mut Reader<'_>) -> Result<(), StateError> {
        let paid: Option<[Instant; 2]> = from.get()?;
        if let (Some([up, down]), Some(Bandwidth(ways))) = (paid, &self.bandwidth) {
            ways.up.paid.fetch_max(up.0, Ordering::Relaxed);
            ways.down.paid.fetch_max(down.0, Ordering::Relaxed);
        }
        self.up = from.get()?;
        self.down = from.get()?;
        self.unsettled = from.get()?;
        self.total_down = from.get()?;
        self.now = from.get()?;
        Ok(())
    }

    /// Returns true if there is a limit.
    pub(crate) const fn is_limited(&self) -> bool {
        self.bandwidth.is_some()
    }

    /// Returns the number of bytes that the guest may send now; if it is 0, frames from the guest wait.
    pub(crate) fn up(&mut self, now: Instant) -> u64 {
        match &self.bandwidth {
            Some(Bandwidth(ways)) => ways.up.ask(&mut self.up, now),
            None => u64::MAX,
        }
    }

    /// Returns the number of bytes that may be sent to the guest now; if it is 0, data for the guest waits.
    pub(crate) fn down(&mut self, now: Instant) -> u64 {
        self.settle(now);
        match &self.bandwidth {
            Some(Bandwidth(ways)) => ways.down.ask(&mut self.down, now),
            None => u64::MAX,
        }
    }

    /// Returns the MTU for TCP segments to the guest on a link with MTU `mtu`. At a low rate it is smaller than that of
    /// the link, because large segments would arrive too rarely: the guest acknowledges every second segment (RFC 9293
    /// section 3.8.6.3), and unacknowledged data fills the host socket's receive buffer.
    pub(crate) fn mtu(&self, mtu: usize) -> usize {
        match &self.bandwidth {
            Some(Bandwidth(ways)) => mtu.min(ways.down.worth(SEGMENT).max(ETHERNET_MTU)),
            None => mtu,
        }
    }

    /// Subtracts frames from the guest, with lengths `lens` in bytes, from the tokens.
    pub(crate) fn sent_up(&self, lens: impl Iterator<Item = usize>, now: Instant) {
        if let Some(Bandwidth(ways)) = &self.bandwidth {
            ways.up.spend(lens.sum(), now);
        }
    }

    /// Counts `len` bytes that were sent to the guest. [`Self::settle`] subtracts them from the tokens.
    pub(crate) const fn sent_down(&mut self, len: usize) {
        self.unsettled = self.unsettled.saturating_add(len);
        self.total_down = self.total_down.saturating_add(len as u64);
    }

    /// Returns the number of bytes that this worker has sent to the guest.
    pub(crate) const fn total_down(&self) -> u64 {
        self.total_down
    }

    /// Sets the time of the current turn, for [`Self::admits_answer`].
    pub(crate) const fn begin_turn(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns true if an answer of the engine itself may be sent to the guest in this turn: if the traffic to the guest
    /// exceeds the rate by no more than [`ANSWERS`].
    pub(crate) fn admits_answer(&mut self) -> bool {
        self.settle(self.now);
        match &self.bandwidth {
            Some(Bandwidth(ways)) => ways.down.excess(self.now) < ANSWERS,
            None => true,
        }
    }

    /// Subtracts the bytes that were sent to the guest since the previous call from the tokens.
    pub(crate) fn settle(&mut self, now: Instant) {
        let bytes = core::mem::take(&mut self.unsettled);
        if let Some(Bandwidth(ways)) = self.bandwidth.as_ref().filter(|_| bytes > 0) {
            ways.down.spend(bytes, now);
        }
    }

    /// Returns the time at which the next wait ends; `None` if neither direction waits.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.up.into_iter().chain(self.down).min()
    }

    /// Ends the waits of both directions that have expired.
    pub(crate) fn end_waits(&mut self, now: Instant) -> DownWait {
        let is_over = |at: &mut Instant| *at <= now;
        self.up.take_if(is_over);
        match self.down.take_if(is_over) {
            Some(_) => DownWait::Ended,
            None => DownWait::Unchanged,
        }
    }
}

/// Token bucket of one direction, shared by all workers.
#[derive(Debug)]
struct TokenBucket {
    /// Rate in bits per second.
    rate: NonZeroU64,
    /// Time at which all traffic so far conforms to the rate, in nanoseconds; in the future if traffic has exceeded the
    /// rate.
    paid: AtomicU64,
}

impl TokenBucket {
    fn new(rate: NonZeroU64) -> Self {
        Self {
            rate,
            paid: AtomicU64::new(0),
        }
    }

    fn paid(&self) -> Instant {
        Instant(self.paid.load(Ordering::Relaxed))
    }

    /// Returns the number of bytes that may be sent now. If it is 0, `wait` is set to a time at which several frames
    /// may be sent, so that the worker does not wake up for each frame.
    fn ask(&self, wait: &mut Option<Instant>, now: Instant) -> u64 {
        if wait.is_some_and(|at| now < at) {
            return 0;
        }
        let paid = self.paid();
        let left = (now + DEPTH).since(if paid < now { now } else { paid });
        if left.is_zero() {
            *wait = Some(Instant(paid.0 - nanos(DEPTH)) + PAUSE);
            return 0;
        }
        u64::try_from(self.worth(left)).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the time after which the traffic so far conforms to the rate and the bucket's depth.
    fn excess(&self, now: Instant) -> Duration {
        let paid = self.paid();
        paid.since(now + DEPTH)
    }

    /// Returns the number of bytes that the rate permits in the duration `time`.
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

/// Nanoseconds that a byte takes at a rate of one bit per second.
const BIT_NANOS: u128 = 8_000_000_000;

/// Size of the token bucket, as a duration: a burst may contain the bytes that the rate permits in this time.
const DEPTH: Duration = Duration::from_millis(20);

/// Time by which traffic to the guest may exceed the rate while answers of the engine itself are sent: one segment of
/// 1,500 bytes at 64 kbit/s, so that a download does not prevent a guest from renewing its DHCP lease.
const ANSWERS: Duration = Duration::from_millis(250);

/// Maximum time that the rate permits for one segment, unless the segment fits Ethernet's MTU of 1,500 bytes.
const SEGMENT: Duration = Duration::from_millis(4);
const ETHERNET_MTU: usize = 1500;

/// Time for which tokens accumulate before traffic may be sent again: at 1 Gbit/s, 170 segments of 1,500 bytes for each
/// wake-up.
const PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns a limit of 8 Mbit/s, at which a byte takes one microsecond.
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
        throttle.sent_down(70_000);
        assert_eq!(throttle.down(at(0)), 0);
        // The excess takes 50 ms, and tokens accumulate for 2 ms.
        assert_eq!(throttle.next(), Some(at(52_000)));
        assert_eq!(throttle.end_waits(at(51_999)), DownWait::Unchanged);
        assert_eq!(throttle.down(at(51_999)), 0);
        assert_eq!(throttle.down(at(52_000)), 2_000);
        // The wait ends, although the previous call permitted bytes.
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
                        throttle.sent_down(65_535);
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
