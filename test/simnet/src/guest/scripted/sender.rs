//! The sending half of a scripted connection: data in flight, acknowledgements, and retransmissions.

use core::time::Duration;

use pontoon_engine::Instant;

/// The sending half of a scripted connection. Offsets count the bytes of the guest's stream from 0; the FIN occupies
/// one more.
#[derive(Debug)]
pub(super) struct SendHalf {
    /// Sequence number of the stream's first byte (RFC 9293, ISS + 1).
    pub(super) first: u32,
    /// Offset of the first unacknowledged byte (RFC 9293, SND.UNA).
    pub(super) una: u64,
    /// Offset of the first byte that was never sent (RFC 9293, SND.NXT).
    pub(super) next: u64,
    /// Number of bytes that the application has written.
    pub(super) written: u64,
    /// True if the application has closed its direction: the FIN is at the offset `written`.
    pub(super) closed: bool,
    /// Offset of the right edge of the engine's receive window.
    pub(super) edge: u64,
    /// Ranges that the engine has reported by SACK.
    sacked: Vec<(u64, u64)>,
    repeats: u32,
    /// Offset that must be acknowledged before three duplicate acknowledgements cause another retransmission.
    recover: u64,
    retry_at: Option<Instant>,
    backoff: u32,
}

/// A range of the stream to send: first offset, end offset, and whether the FIN is sent after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamRange {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) fin: bool,
}

impl SendHalf {
    pub(super) fn new(first: u32) -> Self {
        Self {
            first,
            una: 0,
            next: 0,
            written: 0,
            closed: false,
            edge: 0,
            sacked: Vec::new(),
            repeats: 0,
            recover: 0,
            retry_at: None,
            backoff: 0,
        }
    }

    pub(super) fn seq(&self, offset: u64) -> u32 {
        self.first.wrapping_add(offset as u32)
    }

    /// Returns the sequence number of a segment without data: SND.NXT, limited to the right edge of the window,
    /// beyond which the engine would reject the segment.
    pub(super) fn bare_seq(&self) -> u32 {
        self.seq(self.next.min(self.edge.max(self.una)))
    }

    /// Returns the stream offset of an acknowledgement number.
    pub(super) fn offset(&self, ack: u32) -> i64 {
        self.una as i64 + i64::from(ack.wrapping_sub(self.seq(self.una)) as i32)
    }

    /// Returns the offset after the FIN.
    fn end(&self) -> u64 {
        self.written + u64::from(self.closed)
    }

    pub(super) fn fin_acknowledged(&self) -> bool {
        self.closed && self.una == self.end()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.next - self.una
    }

    /// Processes an acknowledgement number, the scaled window and SACK blocks. `bare` is true if the segment has no
    /// data.
    pub(super) fn acknowledged(
        &mut self,
        ack: u32,
        window: u64,
        blocks: &[(u32, u32)],
        bare: bool,
        now: Instant,
    ) -> Result<(), String> {
        let at = self.offset(ack);
        if at > self.next as i64 {
            return Err(format!("acknowledges {at} of {} sent", self.next));
        }
        for &(left, right) in blocks {
            let (left, right) = (self.offset(left), self.offset(right));
            if left >= right || right > self.next as i64 {
                return Err(format!("SACK from {left} to {right} of {} sent", self.next));
            }
            if left > self.una as i64 {
                self.sacked.push((left as u64, right as u64));
            }
        }
        let Ok(at) = u64::try_from(at) else {
            return Ok(());
        };
        let edge = at + window;
        let same_edge = edge <= self.edge;
        self.edge = self.edge.max(edge);
        if at > self.una {
            self.una = at;
            self.repeats = 0;
            self.backoff = 0;
            self.retry_at = None;
        } else if at == self.una && bare && same_edge && self.in_flight() > 0 {
            self.repeats += 1;
        }
        self.sacked.retain(|&(_, right)| right > self.una);
        self.sacked.sort_unstable();
        self.arm(now);
        Ok(())
    }

    /// Returns the next range to send that was not sent before.
    pub(super) fn fresh(&mut self, mss: u64) -> Option<StreamRange> {
        let from = self.next;
        if from >= self.end() {
            return None;
        }
        let to = self.written.min(from + mss).min(self.edge);
        if to < from {
            return None;
        }
        let fin = self.closed && to == self.written;
        if to == from && !fin {
            return None;
        }
        self.next = to + u64::from(fin);
        Some(StreamRange { from, to, fin })
    }

    /// Returns true if [`Self::fresh`] or [`Self::again`] has a range to send.
    pub(super) fn wants_to_send(&self, now: Instant) -> bool {
        let fresh = self.next < self.end() && (self.next < self.edge || self.next == self.written);
        fresh || self.repeats >= 3 || self.retry_at.is_some_and(|at| at <= now)
    }

    /// Returns the range to retransmit: the oldest after three duplicate acknowledgements, or after the timeout.
    pub(super) fn again(&mut self, mss: u64, now: Instant) -> Option<StreamRange> {
        if self.repeats >= 3 && self.una >= self.recover && self.in_flight() > 0 {
            self.recover = self.next;
            self.repeats = 0;
            return Some(self.oldest(mss));
        }
        if self.retry_at? > now {
            return None;
        }
        self.retry_at = None;
        self.backoff += 1;
        self.sacked.clear();
        if self.in_flight() > 0 {
            return Some(self.oldest(mss));
        }
        if self.una < self.end() {
            // The window is closed, and one byte beyond it is a window probe.
            let fin = self.una == self.written;
            let to = self.una + u64::from(!fin);
            self.next = self.una + 1;
            let from = self.una;
            return Some(StreamRange { from, to, fin });
        }
        None
    }

    fn oldest(&self, mss: u64) -> StreamRange {
        let hole = self.sacked.first().map_or(u64::MAX, |&(left, _)| left);
        let to = (self.una + mss).min(self.written).min(self.next).min(hole);
        let fin = self.closed && to == self.written && self.next > self.written;
        let from = self.una.min(to);
        StreamRange { from, to, fin }
    }

    /// Starts the retransmission timer.
    pub(super) fn arm(&mut self, now: Instant) {
        if self.una == self.end() {
            self.retry_at = None;
        } else if self.retry_at.is_none() {
            let wait = (RTO * 2_u32.pow(self.backoff.min(8))).min(LONGEST_RTO);
            self.retry_at = Some(now + wait);
        }
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }
}

const RTO: Duration = Duration::from_millis(250);
const LONGEST_RTO: Duration = Duration::from_secs(20);
