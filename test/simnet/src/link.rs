//! The engine's end of the simulated network: takes frames, refuses some, checks all.

use core::time::Duration;

use pontoon_engine::link::{Room, Transmit, TransmitError};
use pontoon_engine::{Instant, Limits};
use pontoon_wire::vnet::{Offload, Segmentation};
use vm_memory::VolatileSlice;

use crate::frames::ETHERNET;
use crate::rng::Rng;

/// Behaviour of the link.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Limits of its frames.
    pub limits: Limits,
    /// Of 1,000 calls, so many are refused for want of room.
    pub refusals: u32,
    /// Of 1,000 calls, so many have a frame rejected: it is not taken, and nobody says when another would be.
    pub rejections: u32,
    /// Frames that it holds before a burst is on its way.
    pub depth: usize,
    /// Time that it stays without room.
    pub pause: Duration,
}

/// The sending half of the simulated link.
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
    /// Since time was last told.
    refused_now: u32,
    wrong: Vec<String>,
}

impl SimLink {
    /// A link with room.
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

    /// Tells the time.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        self.refused_now = 0;
    }

    /// Takes the frames that the engine has sent.
    pub fn take(&mut self) -> Vec<(Offload, Vec<u8>)> {
        core::mem::take(&mut self.out)
    }

    /// When there is room again, after a refusal.
    #[must_use]
    pub fn ready_at(&self) -> Option<Instant> {
        self.ready_at
    }

    /// Takes the event that the link has room again; returns true once for each.
    pub fn became_ready(&mut self, now: Instant) -> bool {
        let ready = self.ready_at.is_some_and(|at| at <= now);
        if ready {
            self.ready_at = None;
        }
        ready
    }

    /// Has no room for so long.
    pub fn fill(&mut self, time: Duration) {
        self.ready_at = Some(self.now + time);
    }

    /// Calls that were refused for want of room.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Frames that were rejected.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Returns the engine's violations of the link's rules.
    #[must_use]
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    fn full(&mut self) -> bool {
        let full = self.ready_at.is_some()
            || self.out.len() >= self.plan.depth
            || self.rng.chance(self.plan.refusals);
        if full {
            self.refused += 1;
            self.refused_now += 1;
            assert!(
                self.refused_now < MOST_REFUSALS,
                "{MOST_REFUSALS} refusals in one turn: a busy loop"
            );
            let pause = self.plan.pause;
            self.ready_at.get_or_insert(self.now + pause);
        }
        full
    }

    fn rejects(&mut self) -> bool {
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
        if self.full() {
            return Err(TransmitError::Full);
        }
        if self.rejects() {
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
        if self.full() {
            return None;
        }
        let most = frames.min(self.plan.depth - self.out.len());
        let frames = if self.rng.chance(200) {
            self.rng.size(1..=most)
        } else {
            most
        };
        // A slice of nothing is none.
        let payload = payload.max(1);
        // What was there before is not zero: a frame committed past what was filled shows.
        self.memory.clear();
        self.memory.resize(frames * payload, 0xdb);
        let reject = self.rejects().then(|| self.rng.size(0..=frames - 1));
        let mut slices = Vec::new();
        let mut starts = Vec::new();
        for mut rest in self.memory.chunks_mut(payload) {
            starts.push(slices.len());
            // A guest's buffers may be smaller than a frame.
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

/// Reserved frames.
#[derive(Debug)]
pub struct SimRoom<'a> {
    /// Bytes of each frame's headers, and of its payload.
    head: usize,
    payload: usize,
    slices: Vec<VolatileSlice<'a>>,
    /// Index of each frame's first slice, and the end of the last one's.
    starts: Vec<usize>,
    /// Frames committed.
    used: usize,
    /// The commit that will be refused.
    refuse: Option<usize>,
    /// The commit that will be rejected.
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

/// Refusals in one turn that are no accident.
const MOST_REFUSALS: u32 = 10_000;
