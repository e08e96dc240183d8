//! The receiving half: received data, holes, and acknowledgements with SACK blocks.

use crate::pattern;

/// Offsets count stream bytes from 0.
#[derive(Debug)]
pub(super) struct Receiver {
    /// Sequence number of the stream's first byte.
    pub(super) first: u32,
    stream: u64,
    /// Everything before this was received.
    pub(super) next: u64,
    /// Runs beyond `next`, ascending and disjoint.
    runs: Vec<(u64, u64)>,
    /// The run that grew last: its block is the first (RFC 2018 section 4).
    latest: u64,
    /// Offset of the stream's end.
    end: Option<u64>,
    /// Bytes read by the application.
    pub(super) taken: u64,
    size: u64,
    shift: u8,
    /// The highest right edge that was advertised.
    edge: u64,
}

/// Result of receiving a segment's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// The segment had no data.
    Nothing,
    /// The data was in order.
    InOrder,
    /// The data was out of order, filled a gap or was a duplicate: it is acknowledged at once.
    AtOnce,
}

impl Receiver {
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

    /// The offset that a sequence number stands for; negative for one before the stream.
    pub(super) fn offset(&self, seq: u32) -> i64 {
        let base = self.first.wrapping_add(self.next as u32);
        self.next as i64 + i64::from(seq.wrapping_sub(base) as i32)
    }

    /// The acknowledgement number.
    pub(super) fn ack(&self) -> u32 {
        self.first
            .wrapping_add(self.next as u32)
            .wrapping_add(u32::from(self.ended()))
    }

    /// Returns true if the whole stream was received.
    pub(super) fn ended(&self) -> bool {
        self.end == Some(self.next)
    }

    pub(super) fn has_gap(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Processes data, and the end of the stream after it.
    pub(super) fn take(&mut self, seq: u32, data: &[u8], fin: bool) -> Result<Took, String> {
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
            return Ok(if fin { Took::AtOnce } else { Took::Nothing });
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
        Ok(if in_order { Took::InOrder } else { Took::AtOnce })
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

    /// Drops data that was acknowledged only selectively.
    pub(super) fn renege(&mut self) {
        self.runs.clear();
    }

    /// Returns SACK blocks, the latest first.
    pub(super) fn blocks(&self) -> Vec<(u32, u32)> {
        let mut runs = self.runs.clone();
        runs.sort_by_key(|&(begin, end)| !(begin <= self.latest && self.latest < end));
        let seq = |offset: u64| self.first.wrapping_add(offset as u32);
        runs.iter()
            .take(4)
            .map(|&(begin, end)| (seq(begin), seq(end)))
            .collect()
    }

    /// Opens the window as far as there is room, for a segment that advertises it.
    pub(super) fn open(&mut self, scaled: bool) {
        let shift = if scaled { self.shift } else { 0 };
        let room = (self.taken + self.size).saturating_sub(self.next);
        let field = (room >> shift).min(0xffff);
        self.edge = self.edge.max(self.next + (field << shift));
    }

    /// The window field, as far as the window has been opened. Coarse scales may take a fraction back.
    pub(super) fn window(&self, scaled: bool) -> u16 {
        let shift = if scaled { self.shift } else { 0 };
        ((self.edge - self.next) >> shift).min(0xffff) as u16
    }

    /// Returns true if reading has opened the window so far that an update should be sent.
    pub(super) fn wants_update(&self) -> bool {
        let open = self.edge.saturating_sub(self.next);
        let could = (self.taken + self.size)
            .saturating_sub(self.next)
            .min(0xffff << self.shift);
        open < self.size / 2 && could >= open + self.size / 4
    }
}
