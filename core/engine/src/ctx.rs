//! The context that every protocol handler of the engine receives: host sockets, link, shared state, and time.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pontoon_wire::{Mac, emit};
use rand_chacha::ChaCha12Rng;

use crate::bandwidth::Throttle;
use crate::config::Config;
use crate::counters::Counters;
use crate::decider::Decisions;
use crate::flow_events::{CloseReason, FlowEvents};
use crate::flow_rate::{self, Admission, FlowOpener};
use crate::histogram::Histograms;
use crate::ledger::{Ends, Ledger};
use crate::path_mtu::NarrowPaths;
use crate::policy::{Owned, Policy};
use crate::pool::Pool;
use crate::siblings::{ClientShare, FlowKey, HandOver, Origin, PortClients, Siblings};
use crate::timer::Wheel;
use crate::{FlowId, Frame, Instant, Kind, WorkerId};

/// State of one worker that its protocols share.
#[derive(Debug)]
pub struct Net {
    /// The engine's configuration.
    pub config: Config,
    /// The egress policy, which decides to which destinations the guest may send.
    pub policy: Policy,
    /// The operator's decider about new flows, with its pending decisions; `None`: the policy alone decides.
    pub(crate) decisions: Option<Box<Decisions>>,
    /// Event counters of this worker.
    pub counters: Counters,
    /// The measurements.
    pub histograms: Histograms,
    /// Buffer pool for TCP data from the guest that host sockets do not accept yet.
    pub pool: Pool,
    /// Bytes of host memory in the receive queues of stalled TCP connections, whose guest does not read.
    pub(crate) stalled_bytes: u64,
    /// Number of TCP connections that wait for a ClientHello that a rule requires.
    pub(crate) proving: u32,
    /// Number of open flows of all kinds in this worker.
    pub flows: u32,
    /// Number of these flows that have two descriptors, because they are connections that do not use the link.
    pub(crate) joined: u32,
    /// Number of open flows of clients of published TCP ports. With several workers, [`Siblings`] counts them instead.
    pub(crate) clients: PortClients,
    /// Number of host UDP ports that the guest's endpoints in this worker hold, for IPv4 and IPv6.
    pub(crate) ports: [u32; 2],
    /// Number of flows of this worker that may be evicted: UDP endpoints and echo ids.
    pub(crate) evictable: u32,
    /// Number of evictable flows whose slots have been promised to other flows by [`Self::reclaim`] and that are not
    /// evicted yet.
    pub(crate) reclaimed: u32,
    /// Theoretical arrival time of the next flow at `--max-flow-rate`, if flows were evenly spaced (module
    /// [`flow_rate`]).
    pub flow_due: Instant,
    /// This worker's view of the bandwidth limit.
    pub(crate) throttle: Throttle,
    /// Path MTUs of destinations for which a datagram exceeded the MTU of the host's interface.
    pub(crate) narrow: NarrowPaths,
    /// Timer wheel with the timers of all flows of this worker.
    pub timers: Wheel,
    /// Random number generator for ports, ids and hash secrets.
    pub random: ChaCha12Rng,
    /// Number of this worker among the engine's workers.
    pub worker: WorkerId,
    /// Connection to the other workers of the engine; `None` with a single worker.
    pub(crate) siblings: Option<Box<dyn Siblings>>,
    /// Ledger of TCP connections, from which a restarted engine can reset them.
    pub(crate) ledger: Option<Box<dyn Ledger>>,
    /// Connections that the ledger lists from an earlier engine process, for which the guest has not been probed yet.
    pub(crate) orphans: Vec<Ends>,
    /// Receiver of the events of flows; `None` if nothing uses them.
    pub(crate) events: Option<Box<dyn FlowEvents>>,
    /// Reason that the closing events of flows have, in place of their own, while flows are closed on request.
    pub(crate) closing_as: Option<CloseReason>,
    /// Origin of the frame that is being handled: this worker's link, or another worker.
    pub(crate) origin: Origin,
    /// The guest's Ethernet address, learned from its frames.
    pub guest_mac: Mac,
    /// MTU of the link: maximum length of an IP packet in bytes.
    pub mtu: usize,
    /// Flows that have used up their quantum and have more data to process now.
    pub ready: VecDeque<FlowId>,
    /// Flows with data for the guest that wait for room on the link or for bandwidth.
    pub parked: Vec<FlowId>,
    /// DNS queries, and connections to the DNS forwarder, whose data for the guest waits for the same reasons. They
    /// continue before the flows of `parked`, as long as `parked_first_lead` permits.
    pub parked_first: Vec<FlowId>,
    /// Number of bytes that flows of `parked_first` have sent to the guest in excess of those of `parked`.
    pub(crate) parked_first_lead: u64,
    /// TCP connections that owe the guest a delayed acknowledgement.
    pub delayed_acks: Vec<FlowId>,
    /// Time at which the delayed acknowledgements are sent.
    pub delayed_ack_at: Option<Instant>,
    /// The flow that is being handled, which is reset if the handler panics.
    pub current_flow: Option<FlowId>,
}

/// The worker that handles a frame which belongs to no flow of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routed {
    /// This worker handles the frame.
    Here,
    /// The frame has been handed over to another worker; this worker does nothing more with it.
    HandedOver,
}

/// Slots under `--max-flows` that a new flow may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// Vacant slots only.
    Vacant,
    /// Vacant slots, or the slot of a flow that can be evicted.
    Evictable,
}

impl Capacity {
    /// Returns [`Self::Evictable`] if a flow can be evicted, or else [`Self::Vacant`].
    pub(crate) const fn new(evictable: bool) -> Self {
        match evictable {
            true => Self::Evictable,
            false => Self::Vacant,
        }
    }
}

/// The result of an attempt to evict a flow in favour of a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// A flow has been evicted, or will be after the current handler has returned.
    Evicted,
    /// This worker has no flow that may be evicted.
    NoneLeft,
}

/// The result of a handler executed by [`Ctx::catch_panic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Completion {
    /// The handler has returned.
    Returned,
    /// The handler has panicked.
    Panicked,
}

/// Value of [`Net::parked_first_lead`] at which flows of [`Net::parked_first`] wait until the other waiting flows have
/// sent as many bytes, so that DNS takes at most half of `--max-bandwidth` from them. It is the size of several usual
/// DNS responses.
pub(crate) const PARKED_FIRST_LEAD: u64 = 4 << 10;

/// Maximum delay of an acknowledgement, unless the worker sleeps earlier; it is the time for which a worker polls
/// before it sleeps. RFC 9293 section 3.8.6.3 permits 500 ms, which would stall a guest that uses Nagle's algorithm.
const DELAYED_ACK: Duration = Duration::from_micros(50);

impl Net {
    /// Creates the state of a worker without flows.
    #[must_use]
    pub fn new(mut config: Config, worker: WorkerId, random: ChaCha12Rng, now: Instant) -> Self {
        let policy = Policy {
            plan: config.plan.clone(),
            host_loopback: config.host_loopback.clone(),
            mapped_host: config.mapped_host.clone(),
            host: config.host,
            host_addresses: config.host_addresses,
            metadata: config.metadata,
            owned: Owned::default(),
            forwards: config.forwards.iter().copied().collect(),
            // The policy holds the rules alone: addresses of a domain are removed with the last rule that names it.
            egress: core::mem::take(&mut config.egress),
            proxy: config.proxy.clone(),
        };
        Self {
            policy,
            decisions: None,
            counters: Counters::default(),
            histograms: Histograms::default(),
            pool: Pool::default(),
            stalled_bytes: 0,
            proving: 0,
            flows: 0,
            joined: 0,
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
            events: None,
            closing_as: None,
            origin: Origin::Link,
            guest_mac: config.guest_mac,
            mtu: usize::from(config.mtu),
            ready: VecDeque::new(),
            parked: Vec::new(),
            parked_first: Vec::new(),
            parked_first_lead: 0,
            delayed_acks: Vec::new(),
            delayed_ack_at: None,
            current_flow: None,
            config,
        }
    }

    /// Returns true if ports of the same address may be treated differently although no rule refuses any: by the decider, or
    /// because some are reached through the upstream proxy.
    pub(crate) fn distinguishes_ports(&self) -> bool {
        self.decisions.is_some() || self.policy.proxy.is_some()
    }

    /// Checks whether `--max-flows` and `--max-flow-rate` admit one more flow. An admitted flow is counted against the
    /// rate, a refusal in the counters. `opened` counts the flow against `--max-flows`.
    ///
    /// With [`Capacity::Evictable`], the caller has to evict a flow if the number of flows has reached `--max-flows`,
    /// but not before this check: a flow that is refused must not end another one.
    pub(crate) fn admit(&mut self, capacity: Capacity, opener: FlowOpener, now: Instant) -> Admission {
        let admission = match capacity == Capacity::Vacant && self.is_full() {
            true => Admission::Refused,
            false => self.count_against_rate(opener, now),
        };
        self.counters.flows_refused += u64::from(admission == Admission::Refused);
        admission
    }

    /// Checks whether `--max-flow-rate` admits one more flow, and counts it against the rate if so.
    fn count_against_rate(&mut self, opener: FlowOpener, now: Instant) -> Admission {
        let Some(rate) = self.config.max_flow_rate else {
            return Admission::Admitted;
        };
        if let Some(siblings) = &self.siblings {
            return siblings.count_against_rate(rate, opener, now);
        }
        flow_rate::admit(&mut self.flow_due, rate, opener, now)
    }

    /// Returns true if the number of flows of all workers has reached `--max-flows`. The limit is not divided between
    /// workers, because one worker may accept all clients of a published port and would refuse clients although there
    /// is room. Workers that open flows at the same time may each exceed the limit by one.
    pub(crate) fn is_full(&self) -> bool {
        self.slots_in_use() >= self.config.max_flows
    }

    /// Returns true if fewer than half of `--max-flows` are in use, so that a client of a published port may have two descriptors.
    /// Beyond that, clients use the link, which takes one descriptor for each.
    pub(crate) fn has_room_to_join(&self) -> bool {
        self.slots_in_use() < self.config.max_flows / 2
    }

    fn slots_in_use(&self) -> u32 {
        let flows = self
            .siblings
            .as_ref()
            .map_or(self.flows + self.joined, |siblings| siblings.flows());
        flows.saturating_sub(self.reclaimed)
    }

    /// Returns true if [`Self::reclaim`] would promise a slot.
    pub(crate) const fn can_reclaim(&self) -> bool {
        self.reclaimed < self.evictable
    }

    /// Promises the slot of the idlest UDP endpoint or echo id to a new flow. It is evicted after the handler of the
    /// current frame or event has returned, because that handler cannot access it.
    pub(crate) fn reclaim(&mut self) -> Eviction {
        if !self.can_reclaim() {
            return Eviction::NoneLeft;
        }
        self.reclaimed += 1;
        Eviction::Evicted
    }

    /// Counts a flow that may be evicted from now on.
    pub(crate) fn became_evictable(&mut self) {
        self.set_evictable(self.evictable + 1);
    }

    /// Counts down the flows that may be evicted, because one of them has ended.
    pub(crate) fn was_evictable(&mut self) {
        self.set_evictable(self.evictable - 1);
    }

    fn set_evictable(&mut self, flows: u32) {
        self.evictable = flows;
        if let Some(siblings) = &self.siblings {
            siblings.set_evictable(flows);
        }
    }

    /// Hands a frame that opens a flow over to a worker with an evictable flow, if the number of flows has reached
    /// `--max-flows` and this worker has no evictable flow. With the result `Here`, this worker opens or refuses the
    /// flow.
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

    /// Returns true if the number of host UDP ports that endpoints of all workers hold in the family of `family_of` has
    /// reached `--max-udp-ports`.
    pub(crate) fn is_out_of_ports(&self, family_of: IpAddr) -> bool {
        let own = self.ports[usize::from(family_of.is_ipv6())];
        let ports = self
            .siblings
            .as_ref()
            .map_or(own, |siblings| siblings.ports(family_of));
        ports >= self.config.max_udp_ports
    }

    /// Counts a host UDP port that an endpoint has bound, in the family of `family_of`.
    pub(crate) fn port_taken(&mut self, family_of: IpAddr) {
        self.ports[usize::from(family_of.is_ipv6())] += 1;
        if let Some(siblings) = &self.siblings {
            siblings.port_taken(family_of);
        }
    }

    /// Counts down the host UDP ports, because an endpoint has released one in the family of `family_of`.
    pub(crate) fn port_freed(&mut self, family_of: IpAddr) {
        self.ports[usize::from(family_of.is_ipv6())] -= 1;
        if let Some(siblings) = &self.siblings {
            siblings.port_freed(family_of);
        }
    }

    /// Counts a new flow against `--max-flows`.
    pub(crate) fn opened(&mut self) {
        self.flows += 1;
        if let Some(siblings) = &self.siblings {
            siblings.opened();
        }
    }

    /// Counts down the flows, because one has been closed.
    pub(crate) fn closed(&mut self) {
        self.flows -= 1;
        if let Some(siblings) = &self.siblings {
            siblings.closed();
        }
    }

    /// Counts a new flow with two descriptors, of a client of the published TCP port with this `Published::share_key`, as two
    /// against `--max-flows`.
    pub(crate) fn joined_opened(&mut self, port: u32) {
        self.client_opened(port);
        self.client_opened(port);
        self.opened();
        self.joined += 1;
        if let Some(siblings) = &self.siblings {
            siblings.opened();
        }
    }

    /// Counts down the flows, because one with two descriptors has been closed.
    pub(crate) fn joined_closed(&mut self, port: u32) {
        self.client_closed(port);
        self.client_closed(port);
        self.closed();
        self.joined -= 1;
        if let Some(siblings) = &self.siblings {
            siblings.closed();
        }
    }

    /// Returns the share of `--max-flows` that is used up, so that one more client of the published TCP port with this
    /// `Published::share_key` is refused: three fourths for clients of one port, which leaves flows to other ports, or
    /// seven eighths for clients of all ports, which leaves flows to the guest's own connections. Returns `None` if the
    /// client is admitted.
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

    /// Counts a new flow of a client of the published TCP port with this `Published::share_key`.
    pub(crate) fn client_opened(&mut self, port: u32) {
        match &self.siblings {
            Some(siblings) => siblings.client_opened(port),
            None => self.clients.add(port),
        }
    }

    /// Counts down the clients of the published TCP port with this key, because one flow has been closed.
    pub(crate) fn client_closed(&mut self, port: u32) {
        match &self.siblings {
            Some(siblings) => siblings.client_closed(port),
            None => self.clients.remove(port),
        }
    }

    /// Claims a flow for this worker in the directory of flow owners.
    ///
    /// # Errors
    /// Another worker, which is returned, owns the flow.
    pub(crate) fn claim(&self, key: &FlowKey) -> Result<(), WorkerId> {
        self.siblings
            .as_ref()
            .map_or(Ok(()), |siblings| siblings.claim(key))
    }

    /// Claims a flow for this worker, even if another worker owns it.
    pub(crate) fn seize(&self, key: &FlowKey) {
        if let Some(siblings) = &self.siblings {
            siblings.seize(key);
        }
    }

    /// Releases this worker's claim on a flow that has ended or was not opened.
    pub(crate) fn release(&self, key: &FlowKey) {
        if let Some(siblings) = &self.siblings {
            siblings.release(key);
        }
    }

    /// Hands a frame whose flow is not in this worker's tables over to the worker that owns the flow, if there is an
    /// owner.
    pub(crate) fn hand_over_to_owner(&mut self, key: &FlowKey, frame: &Frame<'_>) -> Routed {
        match self.siblings.as_ref().and_then(|siblings| siblings.owner(key)) {
            Some(owner) => self.hand_over(owner, frame),
            None => Routed::Here,
        }
    }

    /// Hands a frame over to the worker `owner`, unless that is this worker. A frame that cannot be handed over is
    /// dropped and counted.
    pub(crate) fn hand_over(&mut self, owner: WorkerId, frame: &Frame<'_>) -> Routed {
        let Some(siblings) = self.siblings.as_ref().filter(|_| owner != self.worker) else {
            return Routed::Here;
        };
        let outcome = match self.origin {
            Origin::Link => siblings.hand_over(owner, frame, false),
            Origin::Fragments => siblings.hand_over(owner, frame, true),
            // The flow has ended in this worker, and has been opened by another worker, since the frame was handed
            // over.
            Origin::Peer => HandOver::Dropped,
        };
        match outcome {
            HandOver::Queued => self.counters.handed_over += 1,
            HandOver::Dropped => self.counters.hand_overs_lost += 1,
        }
        Routed::HandedOver
    }

    /// Stores the guest's Ethernet address, the source address of its last frame.
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

    /// Returns the flow id of the flow at slot `index` in this worker's table of `kind`.
    pub(crate) fn flow(&self, kind: Kind, index: u32, generation: u16) -> FlowId {
        FlowId {
            kind,
            worker: self.worker,
            index,
            generation,
        }
    }

    /// Returns true if `--max-bandwidth` permits an answer of the engine itself to the guest; counts a refusal.
    pub(crate) fn admits_answer(&mut self) -> bool {
        let admits = self.throttle.admits_answer();
        self.counters.answers_dropped += u64::from(!admits);
        admits
    }

    /// Schedules a delayed acknowledgement for the TCP connection `flow`.
    pub fn delay_ack(&mut self, flow: FlowId, now: Instant) {
        self.delayed_acks.push(flow);
        self.delayed_ack_at.get_or_insert(now + DELAYED_ACK);
    }

    /// Returns the Ethernet addresses of a frame from the engine to the guest.
    #[must_use]
    pub fn ether(&self) -> emit::Ether {
        emit::Ether {
            source: self.config.our_mac,
            destination: self.guest_mac,
        }
    }
}

/// The context of a protocol handler: its access to host sockets, link, shared state, and time.
pub struct Ctx<'a, H, T> {
    /// Access to host sockets.
    pub host: &'a mut H,
    /// Transmitting half of the link to the guest.
    pub link: &'a mut T,
    /// State of this worker that its protocols share.
    pub net: &'a mut Net,
    /// Time of this turn of the worker's loop.
    pub now: Instant,
}

impl<H, T> Ctx<'_, H, T> {
    /// Executes a handler of a flow, frame or event, and counts a panic. State that is inconsistent after a panic
    /// belongs to the flow, which the caller closes.
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
