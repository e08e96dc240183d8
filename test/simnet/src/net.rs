//! The simulated network between guest and engine: each direction is a [`Pipe`]; [`offload`] merges and splits
//! segments.

pub mod offload;

use core::time::Duration;

use pontoon_engine::Instant;

use crate::clock::EventQueue;
use crate::frames::Packet;
use crate::rng::Rng;
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::Offload;

/// Random impairments of one direction. Probabilities are per mille of the frames.
#[derive(Clone, Debug, Default)]
pub struct Impairment {
    /// Probability that a frame is lost.
    pub loss: u32,
    /// Probability that a burst of losses begins, of up to [`Self::burst_len`] frames.
    pub burst: u32,
    /// Largest number of frames in a burst of losses.
    pub burst_len: u64,
    /// Probability that a frame is duplicated.
    pub duplicate: u32,
    /// Probability that a frame is delayed by up to [`Self::hold`], so that later frames overtake it.
    pub reorder: u32,
    /// Longest additional delay of a reordered frame.
    pub hold: Duration,
    /// Delay of every frame from one end of the pipe to the other.
    pub delay: Duration,
    /// Arrival times are rounded up to multiples of this time, so that frames arrive in batches; zero disables the
    /// rounding.
    pub grain: Duration,
}

/// The decision of a [`Filter`] about one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    /// The frame is passed on, subject to the random impairments.
    Pass,
    /// The network loses the frame.
    Drop,
    /// The frame is delayed by this time, in order with the other frames.
    Hold(Duration),
}

/// A function of a test that decides about each frame, before the random impairments.
pub type Filter = Box<dyn FnMut(&Packet) -> FilterVerdict + Send>;

/// One direction of the simulated network, from guest to engine or from engine to guest.
pub struct Pipe {
    /// Random impairments of the pipe's frames.
    pub impairment: Impairment,
    /// Filter of the test, which decides before the random impairments.
    pub filter: Option<Filter>,
    /// Number of frames that were lost.
    pub lost: u64,
    /// Number of lost frames with RST. After such a loss one end may not know that the connection has ended.
    pub lost_resets: u64,
    rng: Rng,
    agenda: EventQueue<Vec<u8>>,
    burst_left: u64,
    burst_until: Instant,
}

impl Pipe {
    /// Returns a direction of the network without frames.
    #[must_use]
    pub fn new(impairment: Impairment, rng: Rng) -> Self {
        Self {
            impairment,
            filter: None,
            lost: 0,
            lost_resets: 0,
            rng,
            agenda: EventQueue::default(),
            burst_left: 0,
            burst_until: Instant(0),
        }
    }

    /// Sends a frame that contains one packet with a complete checksum.
    pub fn send(&mut self, frame: Vec<u8>, now: Instant) {
        let verdict = match &mut self.filter {
            Some(filter) => Packet::parse(Offload::NONE, &frame)
                .map_or(FilterVerdict::Pass, |(_, packet)| filter(&packet)),
            None => FilterVerdict::Pass,
        };
        let hold = match verdict {
            FilterVerdict::Pass => None,
            FilterVerdict::Drop => return self.lose(&frame),
            FilterVerdict::Hold(time) => Some(time),
        };
        if hold.is_none() && self.chance_of_loss(now) {
            return self.lose(&frame);
        }
        if self.rng.chance(self.impairment.duplicate) {
            let again = self.arrival(now) + self.rng.micros(0..=self.impairment.hold.as_micros() as u64);
            self.agenda.push(again, frame.clone());
        }
        let mut at = self.arrival(now);
        if let Some(hold) = hold {
            at += hold;
        } else if self.rng.chance(self.impairment.reorder) {
            at += self.rng.micros(0..=self.impairment.hold.as_micros() as u64);
        }
        self.agenda.push(at, frame);
    }

    /// Returns the time at which the next frame arrives at the end of the pipe.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.agenda.next()
    }

    /// Removes and returns the next frame if it has arrived at `now`.
    pub fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.agenda.pop(now)
    }

    fn chance_of_loss(&mut self, now: Instant) -> bool {
        if self.burst_left > 0 && now < self.burst_until {
            self.burst_left -= 1;
            return true;
        }
        if self.rng.chance(self.impairment.burst) {
            self.burst_left = self.rng.within(0..=self.impairment.burst_len.max(1) - 1);
            self.burst_until = now + BURST;
            return true;
        }
        self.rng.chance(self.impairment.loss)
    }

    fn lose(&mut self, frame: &[u8]) {
        self.lost += 1;
        if let Ok((_, Packet::Tcp(segment))) = Packet::parse(Offload::NONE, frame)
            && segment.flags.has(Flags::RST)
        {
            self.lost_resets += 1;
        }
    }

    fn arrival(&self, now: Instant) -> Instant {
        let at = now + self.impairment.delay;
        match self.impairment.grain.as_nanos() as u64 {
            0 => at,
            grain => Instant(at.0.div_ceil(grain) * grain),
        }
    }
}

impl core::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pipe")
            .field("impairment", &self.impairment)
            .field("lost", &self.lost)
            .field("under way", &self.agenda.len())
            .finish()
    }
}

/// Longest duration of a burst of losses. A longer burst would drop every retransmission of an idle connection.
const BURST: Duration = Duration::from_millis(20);
