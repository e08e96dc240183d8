//! Loss recovery: the ranges that the guest lacks, and the time of the next retransmission.
//!
//! Every byte not acknowledged is still in the host socket's receive queue, so a retransmission is another peek. A hole
//! below enough selectively acknowledged data is lost (RFC 6675); without SACK, three duplicate acknowledgements indicate a
//! loss (RFC 5681). An unacknowledged tail is probed after two round trips (RFC 8985 section 7), and after the
//! retransmission timeout everything is sent again from the oldest byte, with slow start (RFC 6298, RFC 5681 section 3.1).

use core::time::Duration;

use arrayvec::ArrayVec;

use super::connection::Down;
use super::seq::{Seq, absorb};
use crate::Instant;

/// Runs of selectively acknowledged data that are stored; later blocks report the others again.
const RUNS: usize = 8;
/// Segments, or duplicate acknowledgements, that may merely be reordering (RFC 5681 section 3.2).
const REORDERING: u32 = 3;
/// A tail-loss probe waits at least this (RFC 8985 section 7.2).
const PROBE_FLOOR: Duration = Duration::from_millis(10);

/// The kind of the next retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Tail loss probe: a loss there is detected before the timeout.
    Probe,
    /// The retransmission timeout.
    Timeout,
    /// Probe of a closed window.
    Persist,
}

/// The sender's state of loss recovery.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Selectively acknowledged runs, ascending and disjoint, all after `una`.
    sacked: ArrayVec<(Seq, Seq), RUNS>,
    /// In recovery until this is acknowledged.
    until: Option<Seq>,
    /// Holes before this have been retransmitted.
    resent: Seq,
    /// `max` when the oldest hole was retransmitted: if data after it is acknowledged and the hole is not, that copy is lost.
    marker: Seq,
    duplicates: u32,
    /// The tail was probed since the guest last acknowledged new data.
    pub(super) probed: bool,
    /// The limit on data in flight; unlimited except after a timeout.
    pub(super) cwnd: u32,
    pub(super) retry: Option<(Instant, Retry)>,
    /// Probes of a closed window since the last segment from the guest.
    pub(super) unanswered: u8,
}

impl Recovery {
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

    /// Records the guest's SACK blocks.
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

    /// The end of the highest run.
    fn highest(&self) -> Option<Seq> {
        self.sacked.last().map(|&(_, end)| end)
    }

    /// Returns the first hole that was not retransmitted: its begin and end.
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

impl Down {
    /// Processes an acknowledgement of new data up to `ack`.
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
                // A partial acknowledgement without SACK: the next segment is missing too (RFC 6582 section 3.2).
                if !self.sack {
                    recovery.resent = ack;
                }
            } else {
                recovery.until = None;
                recovery.cwnd = u32::MAX;
            }
        }
    }

    /// Processes a duplicate acknowledgement while data is in flight. `bare`: it has no data and changes no window.
    pub(super) fn repeated(&mut self, blocks: &[Option<(u32, u32)>], bare: bool) {
        self.recovery.note(self.una, self.max, blocks);
        if bare {
            self.recovery.duplicates += 1;
        }
    }

    /// Processes the SACK blocks of an acknowledgement of new data.
    pub(super) fn selectively(&mut self, blocks: &[Option<(u32, u32)>]) {
        self.recovery.note(self.una, self.max, blocks);
    }

    /// Enters recovery if data is lost, and detects lost retransmissions.
    pub(super) fn detect_loss(&mut self) {
        let threshold = REORDERING * self.mss;
        let recovery = &mut self.recovery;
        let highest = recovery.highest();
        if recovery.until.is_some() {
            // Data first sent after the oldest hole's second copy has arrived, and that copy has not.
            if highest.is_some_and(|end| end.past(recovery.marker) >= threshold) {
                recovery.resent = self.una;
                recovery.marker = self.max;
            }
            return;
        }
        let evidence = highest.is_some_and(|end| end.past(self.una) > threshold)
            || recovery.duplicates >= REORDERING
            // A hole that is older than two round trips is not reordering.
            || (recovery.probed && highest.is_some());
        if evidence {
            recovery.until = Some(self.max);
            recovery.resent = self.una;
            recovery.marker = self.max;
            self.rtt.resent();
        }
    }

    /// Returns the next run to retransmit: a hole below SACKed data, or the oldest segment if the guest sends no SACK.
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

    /// Records the retransmission of a run that begins at `from`.
    pub(super) fn sent_again(&mut self, from: Seq, len: u32) {
        self.recovery.resent = from + len;
        self.rtt.resent();
    }

    /// Marks everything in flight as lost: continues at the oldest byte, with one segment at first.
    pub(super) fn go_back(&mut self) {
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
        self.rtt.resent();
        let recovery = &mut self.recovery;
        // RFC 2018 section 8: the guest may have dropped data that it has acknowledged only selectively.
        recovery.sacked.clear();
        recovery.duplicates = 0;
        recovery.until = Some(self.max);
        recovery.cwnd = self.mss;
        self.nxt = self.una;
    }

    /// Processes the reopening of a closed window: the guest has answered the probes, so their backoff ends.
    pub(super) fn reopened(&mut self) {
        self.rtt.backoff = 0;
        self.recovery.retry = None;
    }

    /// Arms the retry timer.
    pub(super) fn arm_retry(&mut self, blocked: bool, now: Instant) {
        let in_flight = self.max.past(self.una);
        let kind = match self.recovery.retry {
            Some((_, Retry::Persist)) if in_flight == 0 && blocked => return,
            // Cleared by any acknowledgement of new data, so that data is in flight here.
            Some((_, Retry::Probe | Retry::Timeout)) => return,
            _ if in_flight > self.mss && !self.recovery.is_recovering() && self.rtt.backoff == 0 => {
                Retry::Probe
            }
            _ if in_flight > 0 => Retry::Timeout,
            _ if blocked => Retry::Persist,
            _ => {
                self.recovery.retry = None;
                return;
            }
        };
        let timeout = self.rtt.timeout();
        let (kind, after) = match (kind, self.rtt.smoothed()) {
            (Retry::Probe, Some(srtt)) => (Retry::Probe, (srtt * 2).max(PROBE_FLOOR).min(timeout)),
            (Retry::Probe, None) => (Retry::Timeout, timeout),
            (kind, _) => (kind, timeout),
        };
        self.recovery.retry = Some((now + after, kind));
    }
}
