//! The engine's door: frames, socket events and time come in here and go to the protocol that they concern.

mod dispatch;

use core::net::SocketAddr;

use ipnet::IpNet;
use pontoon_wire::Mac;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::config::{Config, Protocol, Published};
use crate::counters::Counters;
use crate::ctx::{Ctx, Net};
use crate::dns::Forwarder;
use crate::egress::{Egress, EgressRule, News};
use crate::flow_dump::{self, Flow, Page};
use crate::fragment::Reassembly;
use crate::histogram::{CONNECT_TIMES, Histogram};
use crate::icmp::Icmp;
use crate::ledger::{Ends, Ledger};
use crate::siblings::{Handed, Origin, Siblings};
use crate::tcp::{Burst, Tcp};
use crate::udp::{Gather, Udp};
use crate::{Failure, FlowId, Frame, Host, Instant, Kind, Readiness, Transmit, WorkerId};
use dispatch::{take_frame, take_handed};

/// The engine of one worker.
#[derive(Debug)]
pub struct Engine<H: Host> {
    net: Net,
    reassembly: Reassembly,
    protocols: Protocols<H::Socket>,
}

/// Everything that owns flows.
#[derive(Debug)]
struct Protocols<S> {
    tcp: Tcp<S>,
    udp: Udp<S>,
    icmp: Icmp<S>,
    dns: Forwarder<S>,
}

/// Payload that the handlers of one burst keep to send together; it leaves when the burst ends.
#[derive(Debug, Default)]
struct Gathered<'a> {
    tcp: Burst<'a>,
    udp: Gather<'a>,
}

/// Quanta of a flow that shares its turn with no other: it keeps nobody waiting but what arrives meanwhile, for some 40
/// us. TCP down, one stream, medians of nine interleaved rounds (2026-11-20, 2 cores): 18,800 Mbit/s with one quantum,
/// 22,400 with four.
const ALONE: u32 = 4;

/// Bytes of the largest frame, as good as.
const LARGEST: u64 = 64 << 10;

/// Connections of a dead engine that the guest is asked about in one turn. Its answers come at once, all into the same
/// queue.
const ORPHANS: usize = 64;

impl<H: Host> Engine<H> {
    /// Returns an engine without flows. `seed` is the seed of every random choice; `now` is the time of the first turn.
    #[must_use]
    pub fn new(config: Config, worker: WorkerId, seed: [u8; 32], now: Instant) -> Self {
        let mut random = ChaCha12Rng::from_seed(seed);
        let protocols = Protocols {
            tcp: Tcp::new(&mut random),
            udp: Udp::new(&mut random),
            icmp: Icmp::new(&mut random),
            dns: Forwarder::new(&config.resolvers, &mut random),
        };
        Self {
            net: Net::new(config, worker, random, now),
            reassembly: Reassembly::default(),
            protocols,
        }
    }

    /// Makes this engine one worker of several, which it reaches by `siblings`.
    pub fn join(&mut self, siblings: Box<dyn Siblings>) {
        self.net.siblings = Some(siblings);
    }

    /// From now on TCP connections are written down in `ledger`.
    pub fn keep_ledger(&mut self, ledger: Box<dyn Ledger>) {
        self.net.ledger = Some(ledger);
    }

    /// `orphans` are the connections of an engine whose place this one takes: the guest is asked about them, some in
    /// each turn of [`Self::handle_ready`].
    pub fn ask_about(&mut self, orphans: Vec<Ends>) {
        self.net.orphans = orphans;
    }

    /// Takes over the ports that are published from the start, before the first packet. With several workers, the UDP
    /// ports among them are [`FIRST`](crate::siblings::FIRST)'s.
    ///
    /// # Errors
    /// A socket of the configuration is not there.
    pub fn open_published<T: Transmit>(
        &mut self,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> Result<(), Failure> {
        for (place, published) in (0..).zip(self.net.config.published.clone()) {
            self.publish(place, published, link, host, now)?;
        }
        Ok(())
    }

    /// From now on the host's socket at `place` is that of `published`: a new one, or one that led to another port of
    /// the guest's.
    ///
    /// # Errors
    /// There is no such socket.
    pub fn publish<T: Transmit>(
        &mut self,
        place: u32,
        published: Published,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> Result<(), Failure> {
        if published.protocol == Protocol::Udp {
            // By the guest's port that it led to.
            self.unpublish(place, link, host, now);
        }
        let all = &mut self.net.config.published;
        let index = place as usize;
        if all.len() <= index {
            all.resize(index + 1, published);
        }
        all[index] = published;
        match published.protocol {
            Protocol::Tcp => Ok(()),
            Protocol::Udp => {
                let (protocols, ctx) = &mut self.split(link, host, now);
                protocols.udp.publish(place, published, ctx)
            }
        }
    }

    /// The host's socket at `place` is about to be closed. Who waits there for a connection gets it; connections stay.
    pub fn unpublish<T: Transmit>(&mut self, place: u32, link: &mut T, host: &mut H, now: Instant) {
        let Some(published) = self.net.config.published.get(place as usize).copied() else {
            return;
        };
        let (protocols, ctx) = &mut self.split(link, host, now);
        match published.protocol {
            Protocol::Tcp => {
                let listener = ctx.net.flow(Kind::Listener, place, 0);
                protocols.tcp.drain_listener(listener, ctx);
                protocols.evict_reclaimed(ctx);
            }
            Protocol::Udp => protocols.udp.unpublish(place, published, ctx),
        }
        ctx.link.flush();
    }

    /// Another worker has, or had, the UDP port `published`, and with it the guest's endpoint behind it.
    pub fn yield_port<T: Transmit>(
        &mut self,
        published: Published,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.udp.yield_port(published, ctx);
    }

    /// Returns the number of frames that may be taken from the link now: as many as the guest's bandwidth leaves room
    /// for if they are of the largest, and at least one. 0: they have to wait there, until [`Self::handle_timeout`].
    pub fn frames_allowed(&mut self, now: Instant) -> usize {
        match self.net.throttle.up(now) {
            0 => 0,
            bytes => usize::try_from(bytes / LARGEST).unwrap_or(usize::MAX).max(1),
        }
    }

    /// A burst of frames from the guest.
    pub fn handle_frames<T: Transmit>(
        &mut self,
        frames: &[Frame<'_>],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        self.net.mtu = link.limits().mtu;
        self.net
            .throttle
            .sent_up(frames.iter().map(|frame| frame.len), now);
        let mut gathered = Gathered::default();
        for frame in frames {
            let lost = self.guarded(None, link, host, now, |reassembly, protocols, ctx| {
                take_frame(reassembly, protocols, frame, &mut gathered, ctx);
            });
            gathered.forget(lost);
        }
        self.finish(&mut gathered, link, host, now);
    }

    /// A burst of frames that other workers handed over.
    pub fn handle_handed<T: Transmit>(
        &mut self,
        frames: &[Handed<'_>],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let mut gathered = Gathered::default();
        self.net.mtu = link.limits().mtu;
        self.net.origin = Origin::Peer;
        for handed in frames {
            let lost = self.guarded(None, link, host, now, |reassembly, protocols, ctx| {
                take_handed(reassembly, protocols, handed, &mut gathered, ctx);
            });
            gathered.forget(lost);
        }
        self.finish(&mut gathered, link, host, now);
        self.net.origin = Origin::Link;
    }

    /// The burst is over.
    fn finish<T: Transmit>(&mut self, gathered: &mut Gathered<'_>, link: &mut T, host: &mut H, now: Instant) {
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.finish(gathered, ctx);
        protocols.trim_parked(ctx.net);
        link.flush();
    }

    /// An event on a socket or listener.
    pub fn handle_socket<T: Transmit>(
        &mut self,
        flow: FlowId,
        ready: Readiness,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        self.guarded(Some(flow), link, host, now, |_, protocols, ctx| match flow.kind {
            Kind::Tcp => protocols.tcp.handle_socket(flow, ready, ctx),
            Kind::Udp => protocols.udp.handle_socket(flow, ready, ctx),
            Kind::Icmp => protocols.icmp.handle_socket(flow, ready, ctx),
            Kind::Dns => protocols.dns.handle_socket(flow, ready, ctx),
            Kind::Listener => protocols.tcp.handle_listener(flow, ctx),
            Kind::Edge => {}
        });
        link.flush();
    }

    /// Serves the timers that are due.
    pub fn handle_timeout<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.reassembly.handle_timeout(&mut self.net.counters, now);
        if self.net.delayed_ack_at.is_some_and(|at| at <= now) {
            self.handle_idle(link, host, now);
        }
        if self.net.policy.egress.next_sweep().is_some_and(|at| at <= now) {
            self.sweep(now);
        }
        if self.net.throttle.open(now) {
            self.handle_link_ready(link, host, now);
        }
        if self.protocols.tcp.next_accept_retry().is_some_and(|at| at <= now) {
            let (protocols, ctx) = &mut self.split(link, host, now);
            protocols.tcp.retry_accept(ctx);
        }
        while let Some(flow) = self.net.timers.expired(now) {
            self.guarded(Some(flow), link, host, now, |_, protocols, ctx| match flow.kind {
                Kind::Tcp => protocols.tcp.handle_timeout(flow, ctx),
                Kind::Udp => protocols.udp.handle_timeout(flow, ctx),
                Kind::Icmp => protocols.icmp.handle_timeout(flow, ctx),
                Kind::Dns => protocols.dns.handle_timeout(flow, ctx),
                Kind::Listener | Kind::Edge => {}
            });
        }
        link.flush();
    }

    /// The worker is about to sleep: acknowledgements that waited for an answer to go with leave now.
    pub fn handle_idle<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.net.delayed_ack_at = None;
        while let Some(flow) = self.net.delayed_acks.pop() {
            self.guarded(Some(flow), link, host, now, |_, protocols, ctx| {
                protocols.tcp.handle_delayed_ack(flow, ctx);
            });
        }
        link.flush();
    }

    /// The link has room again.
    pub fn handle_link_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        // Those that still find no room line up again behind the ones that waited, and these stay in front when the guest's
        // bandwidth is used up before their turn: that has a timer of its own.
        let waited = self.net.parked.len();
        let mut resumed = 0;
        while resumed < waited && self.net.throttle.down(now) > 0 {
            self.resume(self.net.parked[resumed], link, host, now);
            resumed += 1;
        }
        self.net.parked.drain(..resumed);
        link.flush();
    }

    /// Gives each flow that has more to do one quantum (64 KiB), and a flow that is alone [`ALONE`] of them. True while
    /// there is still more to do.
    pub fn handle_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) -> bool {
        let mut quanta = if self.net.ready.len() == 1 { ALONE } else { 1 };
        while quanta > 0 && self.has_ready() {
            for _ in 0..self.net.ready.len() {
                if let Some(flow) = self.net.ready.pop_front() {
                    self.resume(flow, link, host, now);
                }
            }
            quanta -= 1;
        }
        for _ in 0..ORPHANS {
            if let Some(ends) = self.net.orphans.pop() {
                let (protocols, ctx) = &mut self.split(link, host, now);
                protocols.tcp.handle_orphan(ends, ctx);
            }
        }
        link.flush();
        self.has_ready() || !self.net.orphans.is_empty()
    }

    fn resume<T: Transmit>(&mut self, flow: FlowId, link: &mut T, host: &mut H, now: Instant) {
        self.guarded(Some(flow), link, host, now, |_, protocols, ctx| match flow.kind {
            Kind::Tcp => protocols.tcp.handle_ready(flow, ctx),
            Kind::Udp => protocols.udp.handle_ready(flow, ctx),
            Kind::Icmp => protocols.icmp.handle_ready(flow, ctx),
            Kind::Dns => protocols.dns.handle_ready(flow, ctx),
            Kind::Listener => protocols.tcp.handle_listener(flow, ctx),
            Kind::Edge => {}
        });
    }

    /// Has one frame or event handled, which concerns the flow `about`, or one that its handler finds. A panic there
    /// costs that flow, which is returned, and nothing else; without one, it costs the frame.
    ///
    /// A panic in closing the flow is passed on: then more is broken than one flow, and the process has to go.
    fn guarded<T: Transmit>(
        &mut self,
        about: Option<FlowId>,
        link: &mut T,
        host: &mut H,
        now: Instant,
        handle: impl FnOnce(&mut Reassembly, &mut Protocols<H::Socket>, &mut Ctx<'_, H, T>),
    ) -> Option<FlowId> {
        let Self {
            net,
            reassembly,
            protocols,
        } = self;
        let origin = net.origin;
        net.current_flow = about;
        let ctx = &mut Ctx { host, link, net, now };
        let survived = ctx.catch_panic(|ctx| handle(reassembly, protocols, ctx));
        if ctx.net.reclaimed > 0 {
            protocols.evict_reclaimed(ctx);
        }
        if survived {
            return None;
        }
        ctx.net.origin = origin;
        if let Some(flow) = about
            && flow.kind == Kind::Listener
        {
            // Clients may still wait, of whom no event will tell again.
            ctx.net.ready.push_back(flow);
        }
        let lost = ctx.net.current_flow?;
        protocols.close(lost, ctx);
        Some(lost)
    }

    /// The protocols, and what they work with.
    fn split<'a, T>(
        &'a mut self,
        link: &'a mut T,
        host: &'a mut H,
        now: Instant,
    ) -> (&'a mut Protocols<H::Socket>, Ctx<'a, H, T>) {
        let ctx = Ctx {
            host,
            link,
            net: &mut self.net,
            now,
        };
        (&mut self.protocols, ctx)
    }

    /// Returns true if [`Self::handle_ready`] has something to do.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.net.ready.is_empty()
    }

    /// The number of entries in the list of flows that wait for room on the link. Flows that have ended may be among
    /// them.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.net.parked.len()
    }

    /// When [`Self::handle_timeout`] has something to do; `None`: never, until something else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        [
            self.net.timers.next(),
            self.reassembly.next_timeout(),
            self.net.delayed_ack_at,
            self.net.throttle.next(),
            self.net.policy.egress.next_sweep(),
            self.protocols.tcp.next_accept_retry(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The host's resolvers have changed.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) {
        self.protocols.dns.set_resolvers(&resolvers);
        self.net.config.resolvers = resolvers;
    }

    /// Sets the host's own addresses, and ranges of which it takes every address for its own. Flows to them
    /// end, unless they are permitted.
    pub fn set_owned_addresses<T: Transmit>(
        &mut self,
        owned: &[IpNet],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        self.net.policy.owned = owned.iter().copied().collect();
        self.protocols.udp.disown(&self.net.policy);
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.disown(ctx);
        ctx.link.flush();
    }

    /// The host has got, or lost, its IPv6 default route: what the guest is told when it asks for routers.
    pub fn set_ipv6_route(&mut self, exists: bool) {
        if let Some(v6) = &mut self.net.config.addresses.v6 {
            v6.default_route = exists;
        }
    }

    /// The user's rules have changed: flows that they forbid end.
    pub fn set_rules<T: Transmit>(&mut self, rules: &[EgressRule], link: &mut T, host: &mut H, now: Instant) {
        self.net.policy.egress.set(rules);
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.enforce(ctx);
        protocols.udp.enforce(ctx);
        ctx.link.flush();
    }

    /// Refusals that the user should hear of.
    pub fn take_news(&mut self) -> Vec<News> {
        self.net.policy.egress.take_news()
    }

    /// The user's rules, and how often each was met.
    #[must_use]
    pub fn egress(&self) -> &Egress {
        &self.net.policy.egress
    }

    /// Keeps what is known of the addresses that flows lead to.
    fn sweep(&mut self, now: Instant) {
        let Protocols { tcp, udp, .. } = &self.protocols;
        self.net
            .policy
            .egress
            .keep(tcp.remotes().chain(udp.remotes(now)), now);
    }

    /// The guest's Ethernet address, as the frames of another worker's queue say.
    pub fn set_guest_mac(&mut self, mac: Mac) {
        self.net.guest_mac = mac;
    }

    /// The guest is gone, and another one may come: its connections are reset and its other flows closed. What is
    /// published stays.
    pub fn forget_guest<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.reassembly = Reassembly::default();
        self.net.learn_guest_mac(self.net.config.guest_mac);
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.abort_all(ctx);
        protocols.udp.close_all(ctx);
        protocols.icmp.close_all(ctx);
        protocols.dns.close_all(ctx);
    }

    /// The flows in one part of the tables; `at` is 0, or what the page before says. Not those of the DNS forwarder.
    #[must_use]
    pub fn flows_from(&self, at: u64, now: Instant) -> Page {
        let place = flow_dump::place(at);
        let Protocols { tcp, udp, icmp, .. } = &self.protocols;
        let (flows, slots): (Vec<Flow>, u32) = match place.0 {
            0 => tcp.flow_page(place.1, &self.net, now),
            1 => udp.flow_page(place.1, &self.net, now),
            2 => icmp.flow_page(place.1, &self.net, now),
            _ => (Vec::new(), 0),
        };
        Page {
            flows,
            next: flow_dump::next(place, slots, 3),
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.net.counters
    }

    /// Returns the durations of successful connects, in nanoseconds, to the turn of the worker's loop.
    #[must_use]
    pub fn connect_times(&self) -> &Histogram<{ CONNECT_TIMES.len() }> {
        &self.net.connect_times
    }

    /// Whose engine this is.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.net.worker
    }

    /// Flows of every kind that hold a slot of this worker's.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.net.flows as usize
    }

    /// Bytes of pool memory that flows hold.
    #[must_use]
    pub fn pool_in_use(&self) -> usize {
        self.net.pool.in_use()
    }
}

impl Gathered<'_> {
    /// Nothing more is to be sent for a flow that was lost.
    fn forget(&mut self, lost: Option<FlowId>) {
        // Datagrams look for their flow when they are sent.
        if let Some(flow) = lost
            && flow.kind == Kind::Tcp
        {
            self.tcp.forget(flow.index);
        }
    }
}

impl<S> Protocols<S> {
    /// Ends a flow whose handling panicked.
    fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        match flow.kind {
            Kind::Tcp => self.tcp.close(flow, ctx),
            Kind::Udp => self.udp.close(flow, ctx),
            Kind::Icmp => self.icmp.close(flow, ctx),
            Kind::Dns => self.dns.close(flow, ctx),
            Kind::Listener | Kind::Edge => {}
        }
    }

    /// Removes ended flows from the list of those that wait for the link, where they may be most of it: while the link
    /// takes nothing, a guest can open flows and end them for any time.
    fn trim_parked(&mut self, net: &mut Net) {
        if net.parked.len() <= 2 * net.flows as usize + 64 {
            return;
        }
        let Self { tcp, udp, icmp, .. } = self;
        net.parked.retain(|flow| match flow.kind {
            Kind::Tcp => tcp.contains(*flow),
            Kind::Udp => udp.contains(*flow),
            Kind::Icmp => icmp.contains(*flow),
            Kind::Dns | Kind::Listener | Kind::Edge => true,
        });
    }

    /// Evicts the idlest datagram flows, as many as have been promised to other flows.
    fn evict_reclaimed<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        // Of two that were last used at the same time, one may be the flow that the promise was made to: an endpoint gets
        // the slot of an echo id only where there was no other endpoint to evict.
        let for_endpoint = ctx.net.current_flow.is_some_and(|flow| flow.kind == Kind::Udp);
        for _ in 0..core::mem::take(&mut ctx.net.reclaimed) {
            match (self.udp.idle_since(), self.icmp.idle_since()) {
                (Some(endpoint), Some(id)) if id < endpoint || id == endpoint && for_endpoint => {
                    self.icmp.evict(ctx)
                }
                (Some(_), _) => self.udp.evict(ctx),
                (None, _) => self.icmp.evict(ctx),
            };
        }
    }
}
