//! The engine's link to the simulated network. It checks all frames of the engine, and refuses or rejects some.

use core::time::Duration;

use pontoon_engine::link::{Room, Transmit, TransmitError};
use pontoon_engine::{Instant, Limits};
use pontoon_wire::vnet::{Offload, Segmentation};
use vm_memory::VolatileSlice;

use crate::frames::ETHERNET;
use crate::rng::Rng;

/// Limits and random refusals of the simulated link.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Limits of frames that the link reports to the engine.
    pub limits: Limits,
    /// Number of calls in 1,000 that are refused as if the link were full (an event reports later that it has room).
    pub refusals: u32,
    /// Number of calls in 1,000 whose frame is rejected without an event afterwards.
    pub rejections: u32,
    /// Number of frames that the link accepts within a burst before it is full.
    pub depth: usize,
    /// Time for which the link stays full after a refusal.
    pub pause: Duration,
}

/// The result of [`SimLink::take_room_event`]: whether the link has room again after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomEvent {
    /// The event that the link has room was pending, and was removed.
    Taken,
    /// No event that the link has room was pending.
    NotPending,
}

/// The engine's transmitter on the simulated link.
#[derive(Debug)]
pub struct SimLink {
    plan: LinkPlan,
    rng: Rng,
    now: Instant,
    out: Vec<(Offload, Vec<u8>)>,
    memory: Vec<u8>,
    ready_at: Option<Instant>,
    refused: u64,
    rejected: u64,
    /// Number of refusals since the last call of [`Self::tick`].
    refused_now: u32,
    wrong: Vec<String>,
}

impl SimLink {
    /// Returns a simulated link without frames.
    #[must_use]
    pub fn new(plan: LinkPlan, rng: Rng) -> Self {
        Self {
            plan,
            rng,
            now: Instant(0),
            out: Vec::new(),
            memory: Vec::new(),
            ready_at: None,
            refused: 0,
            rejected: 0,
            refused_now: 0,
            wrong: Vec::new(),
        }
    }

    /// Sets the current virtual time of the link.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        self.refused_now = 0;
    }

    /// Removes and returns the frames that the engine has sent.
    pub fn take(&mut self) -> Vec<(Offload, Vec<u8>)> {
        core::mem::take(&mut self.out)
    }

    /// Returns the time at which the link has room after a refusal.
    #[must_use]
    pub fn ready_at(&self) -> Option<Instant> {
        self.ready_at
    }

    /// Removes the event that the link has room again, if it is pending.
    pub fn take_room_event(&mut self, now: Instant) -> RoomEvent {
        match self.ready_at.take_if(|at| *at <= now) {
            Some(_) => RoomEvent::Taken,
            None => RoomEvent::NotPending,
        }
    }

    /// Refuses all frames for `time`, as if the link were full.
    pub fn fill(&mut self, time: Duration) {
        self.ready_at = Some(self.now + time);
    }

    /// Returns the number of calls that were refused as if the link were full.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the number of frames that were rejected.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Returns descriptions of the engine's violations of the trait `Transmit`.
    #[must_use]
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// Decides at random whether a call is refused, and counts the refusal.
    fn take_room(&mut self) -> Result<(), TransmitError> {
        let full = self.ready_at.is_some()
            || self.out.len() >= self.plan.depth
            || self.rng.chance(self.plan.refusals);
        if !full {
            return Ok(());
        }
        self.refused += 1;
        self.refused_now += 1;
        assert!(
            self.refused_now < MOST_REFUSALS,
            "{MOST_REFUSALS} refusals in one turn: a busy loop"
        );
        let pause = self.plan.pause;
        self.ready_at.get_or_insert(self.now + pause);
        Err(TransmitError::Full)
    }

    fn draw_rejection(&mut self) -> bool {
        self.plan.rejections > 0 && self.rng.chance(self.plan.rejections)
    }
}

impl Transmit for SimLink {
    type Room<'a> = SimRoom<'a>;

    fn limits(&self) -> Limits {
        self.plan.limits
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        let frame = [head, payload].concat();
        check(
            &self.plan.limits,
            offload,
            frame.len(),
            head.len(),
            &mut self.wrong,
        )?;
        self.take_room()?;
        let rejected = self.draw_rejection();
        if rejected {
            self.rejected += 1;
            return Err(TransmitError::Rejected);
        }
        self.out.push((offload, frame));
        Ok(())
    }

    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<SimRoom<'_>> {
        if frames == 0 || payload > 0xffff {
            self.wrong
                .push(format!("reserves {frames} frames of {payload} bytes"));
            return None;
        }
        self.take_room().ok()?;
        let most = frames.min(self.plan.depth - self.out.len());
        let frames = if self.rng.chance(200) {
            self.rng.size(1..=most)
        } else {
            most
        };
        // A slice of length zero would not be added.
        let payload = payload.max(1);
        // The memory is filled with a pattern, so that a commit beyond the written bytes is detected.
        self.memory.clear();
        self.memory.resize(frames * payload, 0xdb);
        let reject = self.draw_rejection().then(|| self.rng.size(0..=frames - 1));
        let mut slices = Vec::new();
        let mut starts = Vec::new();
        for mut rest in self.memory.chunks_mut(payload) {
            starts.push(slices.len());
            // A guest's buffers may be smaller than a frame, so a frame is split over several slices.
            while self.rng.chance(300) && rest.len() > 1 {
                let (slice, later) = rest.split_at_mut(self.rng.size(1..=rest.len() - 1));
                slices.push(VolatileSlice::from(slice));
                rest = later;
            }
            slices.push(VolatileSlice::from(rest));
        }
        starts.push(slices.len());
        Some(SimRoom {
            reject,
            refuse: self
                .rng
                .chance(self.plan.refusals)
                .then(|| self.rng.size(0..=frames - 1)),
            head,
            payload,
            slices,
            starts,
            used: 0,
            out: &mut self.out,
            limits: self.plan.limits,
            wrong: &mut self.wrong,
            ready_at: &mut self.ready_at,
            resume: self.now + self.plan.pause,
            refused: &mut self.refused,
            rejected: &mut self.rejected,
        })
    }

    fn flush(&mut self) {}
}

/// Frames that the engine has reserved on the simulated link and may fill.
#[derive(Debug)]
pub struct SimRoom<'a> {
    /// Number of bytes of each frame's headers.
    head: usize,
    payload: usize,
    slices: Vec<VolatileSlice<'a>>,
    /// Index of the first slice of each frame, and of the end of the last one.
    starts: Vec<usize>,
    /// Number of frames that were committed.
    used: usize,
    /// Index of the commit that will be refused as if the link were full.
    refuse: Option<usize>,
    /// Index of the commit whose frame will be rejected.
    reject: Option<usize>,
    out: &'a mut Vec<(Offload, Vec<u8>)>,
    limits: Limits,
    wrong: &'a mut Vec<String>,
    ready_at: &'a mut Option<Instant>,
    resume: Instant,
    refused: &'a mut u64,
    rejected: &'a mut u64,
}

impl Room for SimRoom<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        &self.slices[self.starts[self.used]..]
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError> {
        if self.used + 1 == self.starts.len() || len > self.payload || head.len() != self.head {
            let head = head.len();
            self.wrong
                .push(format!("commits {head} and {len} bytes beyond what was reserved"));
            return Err(TransmitError::Rejected);
        }
        let mut frame = head.to_vec();
        frame.resize(head.len() + len, 0);
        let mut left = &mut frame[head.len()..];
        for slice in &self.slices[self.starts[self.used]..self.starts[self.used + 1]] {
            let copied = slice.copy_to(left);
            left = &mut left[copied..];
        }
        self.used += 1;
        check(&self.limits, offload, frame.len(), head.len(), self.wrong)?;
        if self.refuse == Some(self.used - 1) {
            *self.refused += 1;
            self.ready_at.get_or_insert(self.resume);
            return Err(TransmitError::Full);
        }
        if self.reject == Some(self.used - 1) {
            *self.rejected += 1;
            return Err(TransmitError::Rejected);
        }
        self.out.push((offload, frame));
        Ok(())
    }
}

fn check(
    limits: &Limits,
    offload: Offload,
    len: usize,
    head: usize,
    wrong: &mut Vec<String>,
) -> Result<(), TransmitError> {
    let packet = len.saturating_sub(ETHERNET);
    let headers = head.saturating_sub(ETHERNET);
    let allowed = match offload.segmentation {
        Segmentation::Whole => packet <= limits.mtu,
        Segmentation::Tcp4 { mss } => {
            limits.tso4 && packet <= limits.max_gso && headers + usize::from(mss) <= limits.mtu
        }
        Segmentation::Tcp6 { mss } => {
            limits.tso6 && packet <= limits.max_gso && headers + usize::from(mss) <= limits.mtu
        }
        Segmentation::Udp { len } => {
            limits.uso && packet <= limits.max_gso && headers + usize::from(len) <= limits.mtu
        }
    };
    if allowed {
        return Ok(());
    }
    wrong.push(format!(
        "sends a packet of {packet} bytes as {offload:?} where {limits:?}"
    ));
    Err(TransmitError::Rejected)
}

/// Number of refusals in one turn of the engine that indicates a busy loop.
const MOST_REFUSALS: u32 = 10_000;
