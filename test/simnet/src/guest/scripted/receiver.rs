//! The receiving half of a scripted connection: received data, gaps, and acknowledgements with SACK blocks.

use crate::pattern;

/// The receiving half of a scripted connection. Offsets count the bytes of the engine's stream from 0.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    /// Sequence number of the stream's first byte (RFC 9293, IRS + 1).
    pub(super) first: u32,
    stream: u64,
    /// Offset up to which all data was received (RFC 9293, RCV.NXT).
    pub(super) next: u64,
    /// Ranges of received data beyond `next`, ascending and disjoint.
    runs: Vec<(u64, u64)>,
    /// Start of the range that grew last, whose SACK block is sent first (RFC 2018 section 4).
    latest: u64,
    /// Offset of the stream's end, if its FIN was received.
    end: Option<u64>,
    /// Number of bytes that the application has read.
    pub(super) taken: u64,
    size: u64,
    shift: u8,
    /// Offset of the rightmost window edge that was advertised.
    edge: u64,
}

/// The result of receiving a segment's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveResult {
    /// The segment had no data.
    Nothing,
    /// The data was in order, so its acknowledgement may be delayed.
    InOrder,
    /// The data was out of order, filled a gap or was a duplicate, so it must be acknowledged at once.
    AtOnce,
}

impl ReceiveHalf {
    pub(super) fn new(first: u32, stream: u64, size: u64, shift: u8) -> Self {
        Self {
            first,
            stream,
            next: 0,
            runs: Vec::new(),
            latest: 0,
            end: None,
            taken: 0,
            size,
            shift,
            edge: 0,
        }
    }

    /// Returns the stream offset of a sequence number; negative before the start of the stream.
    pub(super) fn offset(&self, seq: u32) -> i64 {
        let base = self.first.wrapping_add(self.next as u32);
        self.next as i64 + i64::from(seq.wrapping_sub(base) as i32)
    }

    /// Returns the acknowledgement number to send.
    pub(super) fn ack(&self) -> u32 {
        self.first
            .wrapping_add(self.next as u32)
            .wrapping_add(u32::from(self.ended()))
    }

    /// Returns true if all data up to the FIN was received.
    pub(super) fn ended(&self) -> bool {
        self.end == Some(self.next)
    }

    pub(super) fn has_gap(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Processes a segment's data, and the FIN after it if `fin` is true.
    pub(super) fn take(&mut self, seq: u32, data: &[u8], fin: bool) -> Result<ReceiveResult, String> {
        let begin = self.offset(seq);
        let end = begin + data.len() as i64;
        if begin < 0 && !data.is_empty() {
            return Err(format!("data {} bytes before the stream", -begin));
        }
        if let Some(at) = pattern::mismatch(self.stream, begin.max(0) as u64, data) {
            return Err(format!("byte {at} is wrong"));
        }
        let (begin, end) = (begin.max(0) as u64, end.max(0) as u64);
        if fin {
            if self.end.is_some_and(|known| known != end) {
                return Err(format!("the stream ends at {end} now, not at {:?}", self.end));
            }
            self.end = Some(end);
        }
        if !data.is_empty() && self.end.is_some_and(|known| known < end) {
            return Err(format!("data to {end} beyond the end at {:?}", self.end));
        }
        if data.is_empty() {
            return Ok(if fin {
                ReceiveResult::AtOnce
            } else {
                ReceiveResult::Nothing
            });
        }
        let end = end.min(self.edge);
        let in_order = begin == self.next && !self.has_gap();
        if begin <= self.next {
            self.next = self.next.max(end);
        } else if begin < end {
            self.latest = begin;
            self.runs.push((begin, end));
        }
        self.settle();
        Ok(if in_order {
            ReceiveResult::InOrder
        } else {
            ReceiveResult::AtOnce
        })
    }

    fn settle(&mut self) {
        self.runs.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for &(begin, end) in &self.runs {
            match merged.last_mut() {
                _ if begin <= self.next => self.next = self.next.max(end),
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((begin, end)),
            }
        }
        self.runs = merged;
    }

    /// Drops all data beyond `next`, which was reported by SACK but not acknowledged.
    pub(super) fn renege(&mut self) {
        self.runs.clear();
    }

    /// Returns the SACK blocks to send, the most recent one first.
    pub(super) fn blocks(&self) -> Vec<(u32, u32)> {
        let mut runs = self.runs.clone();
        runs.sort_by_key(|&(begin, end)| !(begin <= self.latest && self.latest < end));
        let seq = |offset: u64| self.first.wrapping_add(offset as u32);
        runs.iter()
            .take(4)
            .map(|&(begin, end)| (seq(begin), seq(end)))
            .collect()
    }

    /// Moves the right edge of the window as far as the buffer permits, for a segment that advertises it.
    pub(super) fn open(&mut self, scaled: bool) {
        let shift = if scaled { self.shift } else { 0 };
        let room = (self.taken + self.size).saturating_sub(self.next);
        let field = (room >> shift).min(0xffff);
        self.edge = self.edge.max(self.next + (field << shift));
    }

    /// Returns the value of the window field for the current edge. With a coarse scale it may be rounded down.
    pub(super) fn window(&self, scaled: bool) -> u16 {
        let shift = if scaled { self.shift } else { 0 };
        ((self.edge - self.next) >> shift).min(0xffff) as u16
    }

    /// Returns true if reading has freed so much of the buffer that a window update should be sent.
    pub(super) fn wants_update(&self) -> bool {
        let open = self.edge.saturating_sub(self.next);
        let could = (self.taken + self.size)
            .saturating_sub(self.next)
            .min(0xffff << self.shift);
        open < self.size / 2 && could >= open + self.size / 4
    }
}
