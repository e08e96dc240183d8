//! The simulated network between guest and engine: each direction is a [`Pipe`]; [`offload`] merges and splits.

pub mod offload;

use core::time::Duration;

use pontoon_engine::Instant;

use crate::clock::Agenda;
use crate::frames::Packet;
use crate::rng::Rng;
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::Offload;

/// Impairments of a pipe. Chances are per mille.
#[derive(Clone, Debug, Default)]
pub struct Impairment {
    /// A frame is lost.
    pub loss: u32,
    /// A burst of losses begins (it takes up to [`Self::burst_len`] frames).
    pub burst: u32,
    /// Longest burst of losses.
    pub burst_len: u64,
    /// A frame is duplicated.
    pub duplicate: u32,
    /// A frame is held back, by up to [`Self::hold`].
    pub reorder: u32,
    /// Longest time that a frame is held back.
    pub hold: Duration,
    /// The delay of every frame.
    pub delay: Duration,
    /// Frames arrive at multiples of this, so that they arrive in batches; zero: each at its own time.
    pub grain: Duration,
}

/// Decision of a filter on one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pipe handles it as usual.
    Pass,
    /// It is lost.
    Drop,
    /// It is delayed by this time, and does not overtake other frames.
    Hold(Duration),
}

/// Decides about each frame before the random impairments.
pub type Filter = Box<dyn FnMut(&Packet) -> Verdict + Send>;

/// One direction of the network.
pub struct Pipe {
    /// Impairments of its frames.
    pub impairment: Impairment,
    /// Decides about frames before the random impairments.
    pub filter: Option<Filter>,
    /// Frames lost.
    pub lost: u64,
    /// Frames with RST among them: after one, an end may not know that the connection is over.
    pub lost_resets: u64,
    rng: Rng,
    agenda: Agenda<Vec<u8>>,
    burst_left: u64,
    burst_until: Instant,
}

impl Pipe {
    /// An empty pipe.
    #[must_use]
    pub fn new(impairment: Impairment, rng: Rng) -> Self {
        Self {
            impairment,
            filter: None,
            lost: 0,
            lost_resets: 0,
            rng,
            agenda: Agenda::default(),
            burst_left: 0,
            burst_until: Instant(0),
        }
    }

    /// Sends a frame of one packet with a complete checksum.
    pub fn send(&mut self, frame: Vec<u8>, now: Instant) {
        let verdict = match &mut self.filter {
            Some(filter) => {
                Packet::parse(Offload::NONE, &frame).map_or(Verdict::Pass, |(_, packet)| filter(&packet))
            }
            None => Verdict::Pass,
        };
        let hold = match verdict {
            Verdict::Pass => None,
            Verdict::Drop => return self.lose(&frame),
            Verdict::Hold(time) => Some(time),
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

    /// Returns the time at which the next frame arrives.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.agenda.next()
    }

    /// Removes and returns the next frame that has arrived.
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

/// The longest time of a burst of losses: otherwise it would drop every retransmission of an idle connection.
const BURST: Duration = Duration::from_millis(20);
