//! What every protocol's handler is given: the world, the shared state, the time.

use core::time::Duration;
use std::collections::VecDeque;

use pontoon_wire::{Mac, emit};
use rand_chacha::ChaCha12Rng;

use crate::config::Config;
use crate::counters::Counters;
use crate::policy::Policy;
use crate::pool::Pool;
use crate::timer::Wheel;
use crate::{FlowId, Instant, Kind, WorkerId};

/// State shared by the protocols of one worker.
#[derive(Debug)]
pub struct Net {
    /// What was decided at the start.
    pub config: Config,
    /// Who may be reached.
    pub policy: Policy,
    /// What happened.
    pub counters: Counters,
    /// Memory for what the host does not take yet.
    pub pool: Pool,
    /// Flows of every kind that hold a slot.
    pub flows: u32,
    /// New flows that may still be opened in the second that began at `.1`.
    pub allowance: (u32, Instant),
    /// Every timer.
    pub timers: Wheel,
    /// Randomness: ports, ids, secrets.
    pub random: ChaCha12Rng,
    /// Whose engine this is.
    pub worker: WorkerId,
    /// The guest's Ethernet address, learned from its frames.
    pub guest_mac: Mac,
    /// The link's MTU: bytes of an IP packet.
    pub mtu: usize,
    /// Flows with more to do now: stopped by their quantum, not by the world.
    pub ready: VecDeque<FlowId>,
    /// Flows that wait for room on the link.
    pub parked: Vec<FlowId>,
    /// Flows that owe the guest an acknowledgement, which may go with an answer.
    pub owing: Vec<FlowId>,
    /// When these acknowledgements must leave.
    pub owed: Option<Instant>,
}

/// How long an acknowledgement waits for an answer to go with, unless the worker sleeps earlier: as long as a worker looks
/// around for one before it sleeps. RFC 9293 section 3.8.6.3 would allow 500 ms, at which a guest's Nagle algorithm stalls.
const PATIENCE: Duration = Duration::from_micros(50);

impl Net {
    /// The state of a worker with no flows.
    #[must_use]
    pub fn new(config: Config, worker: WorkerId, random: ChaCha12Rng, now: Instant) -> Self {
        let policy = Policy {
            addresses: config.addresses,
            host_loopback: config.host_loopback.clone(),
            host_addresses: config.host_addresses,
            owned: Vec::new(),
        };
        Self {
            policy,
            counters: Counters::default(),
            pool: Pool::default(),
            flows: 0,
            allowance: (config.max_flow_rate.unwrap_or(0), now),
            timers: Wheel::default(),
            random,
            worker,
            guest_mac: config.guest_mac,
            mtu: usize::from(config.mtu),
            ready: VecDeque::new(),
            parked: Vec::new(),
            owing: Vec::new(),
            owed: None,
            config,
        }
    }

    /// Whether one more flow may be opened under `--max-flows` and `--max-flow-rate`. Counts the refusal if not, the new
    /// flow against the rate if so; the flow itself is counted by whoever gives it a slot.
    pub fn admit(&mut self, now: Instant) -> bool {
        if let Some(rate) = self.config.max_flow_rate
            && now.since(self.allowance.1) >= Duration::from_secs(1)
        {
            self.allowance = (rate, now);
        }
        let within_rate = self.config.max_flow_rate.is_none() || self.allowance.0 > 0;
        if self.flows >= self.config.max_flows || !within_rate {
            self.counters.flows_refused += 1;
            return false;
        }
        self.allowance.0 = self.allowance.0.saturating_sub(1);
        true
    }

    /// The name of a flow of this worker's.
    pub(crate) fn flow(&self, kind: Kind, index: u32, generation: u16) -> FlowId {
        FlowId {
            kind,
            worker: self.worker,
            index,
            generation,
        }
    }

    /// Remembers that `flow` owes an acknowledgement.
    pub fn owe(&mut self, flow: FlowId, now: Instant) {
        self.owing.push(flow);
        self.owed.get_or_insert(now + PATIENCE);
    }

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
