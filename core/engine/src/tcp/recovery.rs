//! Loss recovery for data to the guest: the ranges that the guest has not received, and the time of the next
//! retransmission.
//!
//! Every byte that is not acknowledged is still in the host socket's receive queue, so a retransmission is another
//! peek. A hole below enough selectively acknowledged data is lost (RFC 6675); without SACK, three duplicate
//! acknowledgements indicate a loss (RFC 5681). An unacknowledged tail is probed after two round trips (RFC 8985
//! section 7). After the retransmission timeout everything is sent again from the oldest byte, with slow start (RFC
//! 6298, RFC 5681 section 3.1).

use core::time::Duration;

use arrayvec::ArrayVec;

use super::connection::HostToGuest;
use super::seq::{Seq, absorb};
use crate::Instant;
use crate::state::{record, record_enum};

/// Maximum number of selectively acknowledged ranges that are stored; later SACK blocks report the others again.
const RUNS: usize = 8;
/// Number of segments or duplicate acknowledgements that may be due to reordering instead of a loss (RFC 5681 section
/// 3.2).
const REORDERING: u32 = 3;
/// Minimum time before a tail loss probe (RFC 8985 section 7.2).
const PROBE_FLOOR: Duration = Duration::from_millis(10);

/// The kinds of transmission that the retransmission timer causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryKind {
    /// Tail loss probe, which detects a loss of the last segments before the retransmission timeout (RFC 8985 section
    /// 7).
    Probe,
    /// Retransmission timeout (RFC 6298).
    Timeout,
    /// Probe of the guest's closed window (RFC 9293 section 3.8.6.1).
    Persist,
}

record_enum! { RetryKind { 0 = Probe, 1 = Timeout, 2 = Persist } }

/// Loss recovery state of one connection's data to the guest.
#[derive(Debug)]
pub(super) struct LossRecovery {
    /// Selectively acknowledged ranges, in ascending order without overlaps, all after `una`.
    sacked: ArrayVec<(Seq, Seq), RUNS>,
    /// Sequence number whose acknowledgement ends the recovery; `None` outside of recovery.
    until: Option<Seq>,
    /// Sequence number before which all holes have been retransmitted.
    resent: Seq,
    /// `max` at the time when the oldest hole was retransmitted. If later data is acknowledged and the hole is not,
    /// that retransmission is lost.
    marker: Seq,
    duplicates: u32,
    /// True if a tail loss probe was sent since the guest last acknowledged new data.
    pub(super) probed: bool,
    /// Congestion window in bytes: the limit on data in flight after a retransmission timeout; otherwise unlimited.
    pub(super) cwnd: u32,
    pub(super) retry: Option<(Instant, RetryKind)>,
    /// Number of probes of the closed window since the last segment from the guest.
    pub(super) unanswered: u8,
}

record! { LossRecovery {
    sacked, until, resent, marker, duplicates, probed, cwnd, retry, unanswered,
} }

impl LossRecovery {
    pub(super) const fn new(iss: Seq) -> Self {
        Self {
            sacked: ArrayVec::new_const(),
            until: None,
            resent: iss,
            marker: iss,
            duplicates: 0,
            probed: false,
            cwnd: u32::MAX,
            retry: None,
            unanswered: 0,
        }
    }

    /// Returns true if the ranges are in ascending order, and within the data from `una` to `max`.
    pub(super) fn is_sound(&self, una: Seq, max: Seq) -> bool {
        let mut end = una;
        self.sacked.iter().all(|&(begin, next)| {
            let is_next = !begin.before(end) && begin.before(next) && !next.after(max);
            end = next;
            is_next
        })
    }

    /// Stores the guest's SACK blocks, as far as they are within the data in flight.
    fn note(&mut self, una: Seq, max: Seq, blocks: &[Option<(u32, u32)>]) {
        for &(begin, end) in blocks.iter().flatten() {
            let (begin, end) = (Seq(begin).latest(una), Seq(end));
            if !begin.before(end) || end.after(max) {
                continue;
            }
            let run = absorb(&mut self.sacked, (begin, end));
            let at = self.sacked.partition_point(|&(b, _)| b.before(run.0));
            if !self.sacked.is_full() {
                self.sacked.insert(at, run);
            }
        }
    }

    /// Returns the end of the highest selectively acknowledged range.
    fn highest(&self) -> Option<Seq> {
        self.sacked.last().map(|&(_, end)| end)
    }

    /// Returns the first hole that was not retransmitted, as its begin and end.
    pub(super) fn hole(&self, una: Seq) -> Option<(Seq, Seq)> {
        let mut from = self.resent.latest(una);
        for &(begin, end) in &self.sacked {
            if from.before(begin) {
                return Some((from, begin));
            }
            from = from.latest(end);
        }
        None
    }

    pub(super) const fn is_recovering(&self) -> bool {
        self.until.is_some()
    }
}

impl HostToGuest {
    /// Handles an acknowledgement of new data up to `ack`.
    pub(super) fn acknowledged(&mut self, ack: Seq, now: Instant) {
        let mut bytes = ack.past(self.una);
        let recovery = &mut self.recovery;
        recovery.cwnd = recovery.cwnd.saturating_add(bytes);
        if self.fin.is_some_and(|fin| ack.after(fin)) {
            self.closed = true;
            bytes -= 1;
        }
        self.discard += bytes;
        self.una = ack;
        self.nxt = self.nxt.latest(ack);
        self.rtt.acknowledged(ack, now);
        recovery.duplicates = 0;
        recovery.probed = false;
        recovery.retry = None;
        recovery.sacked.retain(|&mut (_, end)| end.after(ack));
        if let Some(until) = recovery.until {
            if ack.before(until) {
                // A partial acknowledgement without SACK: the next segment is lost too (RFC 6582 section 3.2).
                if !self.sack {
                    recovery.resent = ack;
                }
            } else {
                recovery.until = None;
                recovery.cwnd = u32::MAX;
            }
        }
    }

    /// Handles a duplicate acknowledgement while data is in flight. `bare` is true if the segment has no data and does
    /// not change the window.
    pub(super) fn repeated(&mut self, blocks: &[Option<(u32, u32)>], bare: bool) {
        self.recovery.note(self.una, self.max, blocks);
        if bare {
            self.recovery.duplicates += 1;
        }
    }

    /// Stores the SACK blocks of an acknowledgement of new data.
    pub(super) fn selectively(&mut self, blocks: &[Option<(u32, u32)>]) {
        self.recovery.note(self.una, self.max, blocks);
    }

    /// Enters recovery if data is lost; during recovery, detects lost retransmissions.
    pub(super) fn detect_loss(&mut self) {
        let threshold = REORDERING * self.mss;
        let recovery = &mut self.recovery;
        let highest = recovery.highest();
        if recovery.until.is_some() {
            // Data that was first sent after the oldest hole's retransmission has arrived, and the retransmission has
            // not.
            if highest.is_some_and(|end| end.past(recovery.marker) >= threshold) {
                recovery.resent = self.una;
                recovery.marker = self.max;
            }
            return;
        }
        let evidence = highest.is_some_and(|end| end.past(self.una) > threshold)
            || recovery.duplicates >= REORDERING
            // A hole that has existed for more than two round trips is not due to reordering.
            || (recovery.probed && highest.is_some());
        if evidence {
            recovery.until = Some(self.max);
            recovery.resent = self.una;
            recovery.marker = self.max;
            self.rtt.resent();
        }
    }

    /// Returns the next range to retransmit as begin and length: a hole below selectively acknowledged data, or the
    /// oldest segment if the guest sends no SACK.
    pub(super) fn lost(&self) -> Option<(Seq, u32)> {
        if !self.recovery.is_recovering() || self.recovery.cwnd != u32::MAX {
            return None;
        }
        let end = self.data_end();
        let (from, to) = match self.recovery.hole(self.una) {
            Some(hole) => hole,
            None if self.recovery.resent == self.una && self.recovery.sacked.is_empty() => {
                (self.una, self.una + self.mss)
            }
            None => return None,
        };
        let len = to.earliest(end).past(from);
        (len > 0).then_some((from, len))
    }

    /// Records the retransmission of `len` bytes from `from` on.
    pub(super) fn sent_again(&mut self, from: Seq, len: u32) {
        self.recovery.resent = from + len;
        self.rtt.resent();
    }

    /// Treats everything in flight as lost after a retransmission timeout: transmission continues at the oldest byte,
    /// at first with one segment.
    pub(super) fn go_back(&mut self) {
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
        self.rtt.resent();
        let recovery = &mut self.recovery;
        // RFC 2018 section 8: the guest may discard data that it has only selectively acknowledged.
        recovery.sacked.clear();
        recovery.duplicates = 0;
        recovery.until = Some(self.max);
        recovery.cwnd = self.mss;
        self.nxt = self.una;
    }

    /// Handles the reopening of the guest's closed window: the guest has answered the probes, so their backoff ends.
    pub(super) fn reopened(&mut self) {
        self.rtt.backoff = 0;
        self.recovery.retry = None;
    }

    /// Arms the timer for the next retransmission, tail loss probe or window probe.
    pub(super) fn arm_retry(&mut self, blocked: bool, now: Instant) {
        let in_flight = self.max.past(self.una);
        let kind = match self.recovery.retry {
            Some((_, RetryKind::Persist)) if in_flight == 0 && blocked => return,
            // An acknowledgement of new data clears the timer, so there is data in flight here.
            Some((_, RetryKind::Probe | RetryKind::Timeout)) => return,
            _ if in_flight > self.mss && !self.recovery.is_recovering() && self.rtt.backoff == 0 => {
                RetryKind::Probe
            }
            _ if in_flight > 0 => RetryKind::Timeout,
            _ if blocked => RetryKind::Persist,
            _ => {
                self.recovery.retry = None;
                return;
            }
        };
        let timeout = self.rtt.timeout();
        let (kind, after) = match (kind, self.rtt.smoothed()) {
            (RetryKind::Probe, Some(srtt)) => (RetryKind::Probe, (srtt * 2).max(PROBE_FLOOR).min(timeout)),
            (RetryKind::Probe, None) => (RetryKind::Timeout, timeout),
            (kind, _) => (kind, timeout),
        };
        self.recovery.retry = Some((now + after, kind));
    }
}
