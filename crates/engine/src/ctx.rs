//! What every protocol's handler is given: the world, the shared state, the time.

use pontoon_wire::{Mac, emit};
use rand_chacha::ChaCha12Rng;

use crate::config::Config;
use crate::counters::Counters;
use crate::policy::Policy;
use crate::timer::Wheel;
use crate::{FlowId, Instant, WorkerId};

/// State shared by the protocols of one worker.
#[derive(Debug)]
pub struct Net {
    /// What was decided at the start.
    pub config: Config,
    /// Who may be reached.
    pub policy: Policy,
    /// What happened.
    pub counters: Counters,
    /// Every timer.
    pub timers: Wheel,
    /// Randomness: ports, ids, secrets.
    pub random: ChaCha12Rng,
    /// Whose engine this is.
    pub worker: WorkerId,
    /// The guest's Ethernet address, learned from its frames.
    pub guest_mac: Mac,
    /// Flows with more to do now: stopped by their quantum, not by the world.
    pub ready: std::collections::VecDeque<FlowId>,
    /// Flows that wait for room on the link.
    pub parked: Vec<FlowId>,
}

impl Net {
    /// Ethernet addresses of a frame to the guest.
    #[must_use]
    pub fn ether(&self) -> emit::Ether {
        emit::Ether {
            source: self.config.our_mac,
            destination: self.guest_mac,
        }
    }
}

/// What a handler works with.
pub struct Ctx<'a, H, T> {
    /// Host sockets.
    pub host: &'a mut H,
    /// The link's sending half.
    pub link: &'a mut T,
    /// Shared state.
    pub net: &'a mut Net,
    /// The time of this turn.
    pub now: Instant,
}
