//! The context of every protocol's handler: the host, the link, the shared state, the time.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pontoon_wire::{Mac, emit};
use rand_chacha::ChaCha12Rng;

use crate::bandwidth::Throttle;
use crate::config::Config;
use crate::counters::Counters;
use crate::flow_rate::{self, Admission};
use crate::histogram::Histograms;
use crate::ledger::{Ends, Ledger};
use crate::path_mtu::NarrowPaths;
use crate::policy::{Owned, Policy};
use crate::pool::Pool;
use crate::siblings::{ClientShare, FlowKey, Origin, PortClients, Siblings};
use crate::timer::Wheel;
use crate::{FlowId, Frame, Instant, Kind, WorkerId};

/// State shared by the protocols of one worker.
#[derive(Debug)]
pub struct Net {
    /// The configuration.
    pub config: Config,
    /// The egress policy.
    pub policy: Policy,
    /// The counters.
    pub counters: Counters,
    /// The measurements.
    pub histograms: Histograms,
    /// Memory for data that the host does not accept yet.
    pub pool: Pool,
    /// Memory of the host in the receive queues of stalled TCP connections.
    pub(crate) stalled_bytes: u64,
    /// The number of flows of all kinds in this worker.
    pub flows: u32,
    /// The number of flows that clients of published TCP ports opened. With several workers, [`Siblings`] counts them.
    clients: PortClients,
    /// UDP ports of the host that endpoints of this worker hold: IPv4, IPv6.
    ports: [u32; 2],
    /// Datagram flows of this worker that may be evicted.
    evictable: u32,
    /// Evictable flows whose slots have been promised to other flows: [`Self::reclaim`].
    pub(crate) reclaimed: u32,
    /// The theoretical start time of the last flow, had all been spaced evenly: [`flow_rate`].
    pub flow_due: Instant,
    /// The bandwidth limiter.
    pub(crate) throttle: Throttle,
    /// Destinations for which datagrams were too big for the host's interface.
    pub(crate) narrow: NarrowPaths,
    /// Every timer.
    pub timers: Wheel,
    /// Randomness: ports, ids, secrets.
    pub random: ChaCha12Rng,
    /// The worker of this engine.
    pub worker: WorkerId,
    /// The other workers, if there are any.
    pub(crate) siblings: Option<Box<dyn Siblings>>,
    /// The record of connections.
    pub(crate) ledger: Option<Box<dyn Ledger>>,
    /// Connections of an earlier engine for which the guest was not probed yet.
    pub(crate) orphans: Vec<Ends>,
    /// The origin of the current packet.
    pub(crate) origin: Origin,
    /// The guest's Ethernet address, learned from its frames.
    pub guest_mac: Mac,
    /// The link's MTU: bytes of an IP packet.
    pub mtu: usize,
    /// Flows with more to do now, which have used up their quantum.
    pub ready: VecDeque<FlowId>,
    /// Flows that wait for room on the link.
    pub parked: Vec<FlowId>,
    /// Flows with a delayed acknowledgement.
    pub delayed_acks: Vec<FlowId>,
    /// The time at which these acknowledgements are sent.
    pub delayed_ack_at: Option<Instant>,
    /// The current flow, which is reset if the handler panics.
    pub current_flow: Option<FlowId>,
}

/// The worker that handles a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routed {
    /// This worker.
    Here,
    /// Another worker; this one is finished with the frame.
    HandedOver,
}

/// The result of making room for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// A flow has been evicted, or its slot promised.
    Evicted,
    /// There is no flow that may be evicted.
    NoneLeft,
}

/// The result of a handler that [`Ctx::catch_panic`] has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Completion {
    /// It has returned.
    Returned,
    /// It has panicked.
    Panicked,
}

/// The longest delay of an acknowledgement, unless the worker sleeps earlier: the time for which a worker polls before it
/// sleeps. RFC 9293 section 3.8.6.3 would allow 500 ms, with which a guest's Nagle algorithm stalls.
const DELAYED_ACK: Duration = Duration::from_micros(50);

impl Net {
    /// Returns the state of a worker without flows.
    #[must_use]
    pub fn new(mut config: Config, worker: WorkerId, random: ChaCha12Rng, now: Instant) -> Self {
        let policy = Policy {
            addresses: config.addresses,
            host_loopback: config.host_loopback.clone(),
            host_addresses: config.host_addresses,
            metadata: config.metadata,
            owned: Owned::default(),
            // Addresses of a domain are dropped with the last rule that names it.
            egress: core::mem::take(&mut config.egress),
        };
        Self {
            policy,
            counters: Counters::default(),
            histograms: Histograms::default(),
            pool: Pool::default(),
            stalled_bytes: 0,
            flows: 0,
            clients: PortClients::default(),
            ports: [0; 2],
            evictable: 0,
            reclaimed: 0,
            flow_due: now,
            throttle: Throttle::new(config.bandwidth.take()),
            narrow: NarrowPaths::default(),
            timers: Wheel::default(),
            random,
            worker,
            siblings: None,
            ledger: None,
            orphans: Vec::new(),
            origin: Origin::Link,
            guest_mac: config.guest_mac,
            mtu: usize::from(config.mtu),
            ready: VecDeque::new(),
            parked: Vec::new(),
            delayed_acks: Vec::new(),
            delayed_ack_at: None,
            current_flow: None,
            config,
        }
    }

    /// Admits one more flow under `--max-flows` and `--max-flow-rate`, and counts it against the rate or counts the
    /// refusal. [`Self::opened`] counts the flow itself.
    pub fn admit(&mut self, now: Instant) -> Admission {
        let admission = match self.is_full() {
            true => Admission::Refused,
            false => self.count_against_rate(now),
        };
        self.counters.flows_refused += u64::from(admission == Admission::Refused);
        admission
    }

    /// Admits one more flow under `--max-flow-rate`, and counts it against the rate.
    pub(crate) fn count_against_rate(&mut self, now: Instant) -> Admission {
        let Some(rate) = self.config.max_flow_rate else {
            return Admission::Admitted;
        };
        if let Some(siblings) = &self.siblings {
            return siblings.count_against_rate(rate, now);
        }
        flow_rate::admit(&mut self.flow_due, rate, now)
    }

    /// Returns true if there are as many flows as `--max-flows` allows, including those of other workers: one worker may
    /// accept all clients of a published port, so that a share for each worker would refuse clients although there is room.
    /// Workers that open flows at the same time may each exceed the limit by one.
    pub(crate) fn is_full(&self) -> bool {
        let flows = self
            .siblings
            .as_ref()
            .map_or(self.flows, |siblings| siblings.flows());
        flows.saturating_sub(self.reclaimed) >= self.config.max_flows
    }

    /// Promises the slot of the idlest datagram flow to another flow. The datagram flow is evicted after the handler of
    /// the current frame or event has returned, as that handler has no access to it.
    pub(crate) fn reclaim(&mut self) -> Eviction {
        if self.reclaimed == self.evictable {
            return Eviction::NoneLeft;
        }
        self.reclaimed += 1;
        Eviction::Evicted
    }

    /// Counts a flow that may be evicted.
    pub(crate) fn became_evictable(&mut self) {
        self.set_evictable(self.evictable + 1);
    }

    /// Counts the end of a flow that could be evicted.
    pub(crate) fn was_evictable(&mut self) {
        self.set_evictable(self.evictable - 1);
    }

    fn set_evictable(&mut self, flows: u32) {
        self.evictable = flows;
        if let Some(siblings) = &self.siblings {
            siblings.set_evictable(flows);
        }
    }

    /// Hands a frame that opens a flow over to a worker that can evict a flow for it, if there are as many flows as
    /// `--max-flows` allows and this worker has none to evict. `Here`: this worker opens or refuses the flow.
    pub(crate) fn hand_over_to_evict(&mut self, frame: &Frame<'_>) -> Routed {
        if self.origin == Origin::Peer || self.evictable > 0 || !self.is_full() {
            return Routed::Here;
        }
        match self
            .siblings
            .as_ref()
            .and_then(|siblings| siblings.most_evictable())
        {
            Some(other) => self.hand_over(other, frame),
            None => Routed::Here,
        }
    }

    /// Returns true if the UDP endpoints of all workers hold as many ports of the host in this family as
    /// `--max-udp-ports` allows.
    pub(crate) fn is_out_of_ports(&self, family_of: IpAddr) -> bool {
        let own = self.ports[usize::from(family_of.is_ipv6())];
        let ports = self
            .siblings
            .as_ref()
            .map_or(own, |siblings| siblings.ports(family_of));
        ports >= self.config.max_udp_ports
    }

    /// Counts a port of the host that a UDP endpoint holds.
    pub(crate) fn port_taken(&mut self, family_of: IpAddr) {
        self.ports[usize::from(family_of.is_ipv6())] += 1;
        if let Some(siblings) = &self.siblings {
            siblings.port_taken(family_of);
        }
    }

    /// Counts a port that a UDP endpoint has released.
    pub(crate) fn port_freed(&mut self, family_of: IpAddr) {
        self.ports[usize::from(family_of.is_ipv6())] -= 1;
        if let Some(siblings) = &self.siblings {
            siblings.port_freed(family_of);
        }
    }

    /// Counts a flow that got a slot.
    pub(crate) fn opened(&mut self) {
        self.flows += 1;
        if let Some(siblings) = &self.siblings {
            siblings.opened();
        }
    }

    /// Counts a flow whose slot was freed.
    pub(crate) fn closed(&mut self) {
        self.flows -= 1;
        if let Some(siblings) = &self.siblings {
            siblings.closed();
        }
    }

    /// Returns the share of `--max-flows` that keeps a further client of the published TCP port with this
    /// `Published::share_key` out: three fourths for clients of one port, which leaves flows to other ports, or seven
    /// eighths for those of all ports, which leaves flows to the guest's own connections.
    pub(crate) fn full_share(&self, port: u32) -> Option<ClientShare> {
        let (clients, all) = match &self.siblings {
            Some(siblings) => (siblings.clients(port), siblings.all_clients()),
            None => (self.clients.count(port), self.clients.total()),
        };
        let most = self.config.max_flows;
        if clients >= most - most / 4 {
            Some(ClientShare::Port(port))
        } else if all >= most - most / 8 {
            Some(ClientShare::AllPorts)
        } else {
            None
        }
    }

    /// Counts a client of the published TCP port with this key that got a slot.
    pub(crate) fn client_opened(&mut self, port: u32) {
        match &self.siblings {
            Some(siblings) => siblings.client_opened(port),
            None => self.clients.add(port),
        }
    }

    /// Counts a client whose slot was freed.
    pub(crate) fn client_closed(&mut self, port: u32) {
        match &self.siblings {
            Some(siblings) => siblings.client_closed(port),
            None => self.clients.remove(port),
        }
    }

    /// Claims a flow for this worker.
    ///
    /// # Errors
    /// The returned worker owns it.
    pub(crate) fn claim(&self, key: &FlowKey) -> Result<(), WorkerId> {
        self.siblings
            .as_ref()
            .map_or(Ok(()), |siblings| siblings.claim(key))
    }

    /// Claims a flow for this worker, also if another owns it.
    pub(crate) fn seize(&self, key: &FlowKey) {
        if let Some(siblings) = &self.siblings {
            siblings.seize(key);
        }
    }

    /// Releases the claim on a flow of this worker that has ended or was not opened.
    pub(crate) fn release(&self, key: &FlowKey) {
        if let Some(siblings) = &self.siblings {
            siblings.release(key);
        }
    }

    /// Hands a frame of a flow that is not in this worker's tables over to the worker that owns the flow, if there is one.
    pub(crate) fn hand_over_to_owner(&mut self, key: &FlowKey, frame: &Frame<'_>) -> Routed {
        match self.siblings.as_ref().and_then(|siblings| siblings.owner(key)) {
            Some(owner) => self.hand_over(owner, frame),
            None => Routed::Here,
        }
    }

    /// Hands a frame over to `owner`, unless that is this worker. A frame that cannot be handed over is dropped, and
    /// counted.
    pub(crate) fn hand_over(&mut self, owner: WorkerId, frame: &Frame<'_>) -> Routed {
        let Some(siblings) = self.siblings.as_ref().filter(|_| owner != self.worker) else {
            return Routed::Here;
        };
        let handed = match self.origin {
            Origin::Link => siblings.hand_over(owner, frame, false),
            Origin::Fragments => siblings.hand_over(owner, frame, true),
            // The flow has ended here and begun in another worker meanwhile.
            Origin::Peer => false,
        };
        self.counters.handed_over += u64::from(handed);
        self.counters.hand_overs_lost += u64::from(!handed);
        Routed::HandedOver
    }

    /// Records the guest's Ethernet address, the source of its last frame.
    pub(crate) fn learn_guest_mac(&mut self, mac: Mac) {
        if self.guest_mac != mac {
            self.guest_mac = mac;
            if let Some(siblings) = &self.siblings {
                siblings.guest_moved(mac);
            }
            if let Some(ledger) = &self.ledger {
                ledger.guest_moved(mac);
            }
        }
    }

    /// Returns the id of a flow of this worker.
    pub(crate) fn flow(&self, kind: Kind, index: u32, generation: u16) -> FlowId {
        FlowId {
            kind,
            worker: self.worker,
            index,
            generation,
        }
    }

    /// Adds `flow` to those with a delayed acknowledgement.
    pub fn delay_ack(&mut self, flow: FlowId, now: Instant) {
        self.delayed_acks.push(flow);
        self.delayed_ack_at.get_or_insert(now + DELAYED_ACK);
    }

    /// Returns the Ethernet addresses of a frame to the guest.
    #[must_use]
    pub fn ether(&self) -> emit::Ether {
        emit::Ether {
            source: self.config.our_mac,
            destination: self.guest_mac,
        }
    }
}

/// The context of a handler.
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

impl<H, T> Ctx<'_, H, T> {
    /// Runs a handler of one flow, frame or event, and counts a panic. State that is inconsistent after a panic belongs to
    /// the flow, which the caller closes.
    pub(crate) fn catch_panic(&mut self, handle: impl FnOnce(&mut Self)) -> Completion {
        match catch_unwind(AssertUnwindSafe(|| handle(self))) {
            Ok(()) => Completion::Returned,
            Err(_) => {
                self.net.counters.panics += 1;
                Completion::Panicked
            }
        }
    }
}
