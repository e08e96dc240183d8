//! Measures the round-trip time to the guest, and computes the retransmission timeout from it (RFC 6298).

use core::time::Duration;

use super::seq::Seq;
use crate::Instant;
use crate::state::record;

/// Minimum retransmission timeout. RFC 6298 recommends one second; links to a guest are local, and Linux uses 200 ms
/// (`TCP_RTO_MIN`).
const FLOOR: Duration = Duration::from_millis(200);
/// Maximum retransmission timeout, including backoff.
const CEILING: Duration = Duration::from_secs(60);

/// Estimator of the round-trip time. One segment is measured at a time; a retransmission ends its measurement (Karn's
/// algorithm).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    /// Smoothed round-trip time and its variation (SRTT, RTTVAR); `None` before the first measurement.
    smoothed: Option<(Duration, Duration)>,
    timing: Option<(Seq, Instant)>,
    /// Number of times that the timeout was doubled since the guest last acknowledged new data.
    pub(super) backoff: u8,
}

record! { Rtt { smoothed, timing, backoff } }

impl Rtt {
    /// Records that data up to `end` is sent for the first time, and measures its round trip unless another measurement
    /// is active.
    pub(super) fn sent(&mut self, end: Seq, now: Instant) {
        if self.timing.is_none() {
            self.timing = Some((end, now));
        }
    }

    /// Ends the current measurement because data is retransmitted, so that an acknowledgement would be ambiguous.
    pub(super) fn resent(&mut self) {
        self.timing = None;
    }

    /// Records that the guest has acknowledged everything before `ack`, which may complete a measurement.
    pub(super) fn acknowledged(&mut self, ack: Seq, now: Instant) {
        self.backoff = 0;
        let Some((end, sent)) = self.timing else { return };
        if ack.before(end) {
            return;
        }
        self.timing = None;
        let sample = now.since(sent);
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((srtt, var)) => ((srtt * 7 + sample) / 8, (var * 3 + srtt.abs_diff(sample)) / 4),
        });
    }

    /// Returns the smoothed round-trip time.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(|(srtt, _)| srtt)
    }

    /// Returns the retransmission timeout, including backoff.
    pub(super) fn timeout(&self) -> Duration {
        let base = self
            .smoothed
            .map_or(FLOOR, |(srtt, var)| (srtt + var * 4).max(FLOOR));
        (base * (1 << self.backoff.min(10))).min(CEILING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn timeout_follows_samples_and_backs_off() {
        let mut rtt = Rtt::default();
        let t0 = Instant::default();
        assert_eq!(rtt.timeout(), MS(200));
        rtt.sent(Seq(10), t0);
        rtt.sent(Seq(20), t0 + MS(50));
        rtt.acknowledged(Seq(5), t0 + MS(90));
        assert_eq!(rtt.smoothed(), None);
        rtt.acknowledged(Seq(10), t0 + MS(100));
        assert_eq!(rtt.smoothed(), Some(MS(100)));
        assert_eq!(rtt.timeout(), MS(300));
        rtt.sent(Seq(30), t0 + MS(100));
        rtt.acknowledged(Seq(30), t0 + MS(280));
        assert_eq!(rtt.smoothed(), Some(MS(110)));
        assert_eq!(rtt.timeout(), MS(110) + (MS(50) * 3 + MS(80)) / 4 * 4);
        rtt.backoff = 3;
        assert_eq!(rtt.timeout(), (MS(110) + (MS(50) * 3 + MS(80)) / 4 * 4) * 8);
        rtt.backoff = 200;
        assert_eq!(rtt.timeout(), CEILING);
    }

    #[test]
    fn retransmitted_segment_gives_no_sample() {
        let mut rtt = Rtt::default();
        rtt.sent(Seq(10), Instant::default());
        rtt.resent();
        rtt.acknowledged(Seq(10), Instant::default() + MS(100));
        assert_eq!(rtt.smoothed(), None);
    }
}
