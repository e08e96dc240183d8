//! The engine's entry points: frames, socket events and timers are passed to the protocols.

mod configure;
mod dispatch;

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::bandwidth::DownWait;
use crate::config::Config;
use crate::counters::Counters;
use crate::ctx::{Completion, Ctx, Net};
use crate::dns::Forwarder;
use crate::egress::{Egress, News};
use crate::flow_dump::{self, Flow, Page};
use crate::fragment::Reassembly;
use crate::histogram::Histograms;
use crate::icmp::Icmp;
use crate::ledger::{Ends, Ledger};
use crate::siblings::{Handed, Origin, Siblings};
use crate::tcp::{Burst, Tcp};
use crate::udp::{Gather, Udp};
use crate::{FlowId, Frame, Host, Instant, Kind, Readiness, Transmit, WorkerId};
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

/// Payload that the handlers of one burst gather; it is sent when the burst ends.
#[derive(Debug, Default)]
struct Gathered<'a> {
    tcp: Burst<'a>,
    udp: Gather<'a>,
}

/// Quanta of a flow that is alone in the ready list: only input that arrives meanwhile is delayed, by some 40 us. TCP down, one stream, medians of nine interleaved rounds (2026-11-20, 2 cores): 18,800 Mbit/s with one quantum,
/// 22,400 with four.
const ALONE: u32 = 4;

/// Approximate bytes of the largest frame.
const LARGEST: u64 = 64 << 10;

/// The maximum number of connections of the previous engine process that are probed in one turn of the loop: the guest's
/// replies arrive together, in one queue of the link.
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

    /// Records TCP connections in `ledger` from now on.
    pub fn keep_ledger(&mut self, ledger: Box<dyn Ledger>) {
        self.net.ledger = Some(ledger);
    }

    /// Probes the guest for `orphans`, the connections of the engine that this one replaces, some in each call of
    /// [`Self::handle_ready`].
    pub fn ask_about(&mut self, orphans: Vec<Ends>) {
        self.net.orphans = orphans;
    }

    /// Returns the number of frames that may be received from the link now: as many of the largest size as the guest's
    /// bandwidth permits, and at least one. If 0, they wait in the link until [`Self::handle_timeout`].
    pub fn frames_allowed(&mut self, now: Instant) -> usize {
        match self.net.throttle.up(now) {
            0 => 0,
            bytes => usize::try_from(bytes / LARGEST).unwrap_or(usize::MAX).max(1),
        }
    }

    /// Processes a burst of frames from the guest.
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

    /// Processes a burst of frames that other workers handed over.
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

    /// Ends a burst.
    fn finish<T: Transmit>(&mut self, gathered: &mut Gathered<'_>, link: &mut T, host: &mut H, now: Instant) {
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.finish(gathered, ctx);
        protocols.trim_parked(ctx.net);
        link.flush();
    }

    /// Processes an event of a socket or listener.
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

    /// Processes expired timers.
    pub fn handle_timeout<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.reassembly.handle_timeout(&mut self.net.counters, now);
        if self.net.delayed_ack_at.is_some_and(|at| at <= now) {
            self.handle_idle(link, host, now);
        }
        if self.net.policy.egress.next_sweep().is_some_and(|at| at <= now) {
            self.sweep(now);
        }
        let down_wait = self.net.throttle.end_waits(now);
        if down_wait == DownWait::Ended {
            self.handle_link_ready(link, host, now);
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

    /// Sends delayed acknowledgements, as the worker is about to sleep.
    pub fn handle_idle<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.net.delayed_ack_at = None;
        while let Some(flow) = self.net.delayed_acks.pop() {
            self.guarded(Some(flow), link, host, now, |_, protocols, ctx| {
                protocols.tcp.handle_delayed_ack(flow, ctx);
            });
        }
        link.flush();
    }

    /// Continues with the flows that wait for the link, which has room again.
    pub fn handle_link_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        // Flows that find the link full again are appended behind the others, which stay in front if the guest's bandwidth is
        // used up before their turn: that has a timer of its own.
        let waited = self.net.parked.len();
        let mut resumed = 0;
        while resumed < waited && self.net.throttle.down(now) > 0 {
            self.resume(self.net.parked[resumed], link, host, now);
            resumed += 1;
        }
        self.net.parked.drain(..resumed);
        link.flush();
    }

    /// Continues with each flow of the ready list for one quantum (64 KiB), or for [`ALONE`] quanta if there is only one flow.
    /// Returns true if there is more to do.
    pub fn handle_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) -> bool {
        let mut quanta = if self.net.ready.len() == 1 { ALONE } else { 1 };
        while quanta > 0 && !self.net.ready.is_empty() {
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

    /// Runs the handler of one frame or event, which concerns the flow `about`, or one that the handler finds. If it panics,
    /// only that flow is closed, and returned; if there is no flow, the frame is dropped.
    ///
    /// A panic in closing the flow is propagated: more than one flow is inconsistent then, and the process has to exit.
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
        let completion = ctx.catch_panic(|ctx| handle(reassembly, protocols, ctx));
        if ctx.net.reclaimed > 0 {
            protocols.evict_reclaimed(ctx);
        }
        if completion == Completion::Returned {
            return None;
        }
        ctx.net.origin = origin;
        if let Some(flow) = about
            && flow.kind == Kind::Listener
        {
            // Clients may still wait, and no further event reports them.
            ctx.net.ready.push_back(flow);
        }
        let lost = ctx.net.current_flow?;
        protocols.close(lost, ctx);
        Some(lost)
    }

    /// Returns the protocols and their context.
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

    /// Returns the time of the next call of [`Self::handle_timeout`]; `None` if there is no timer.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        [
            self.net.timers.next(),
            self.reassembly.next_timeout(),
            self.net.delayed_ack_at,
            self.net.throttle.next(),
            self.net.policy.egress.next_sweep(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes the refusals that are to be logged.
    pub fn take_news(&mut self) -> Vec<News> {
        self.net.policy.egress.take_news()
    }

    /// Returns the user's rules, with the number of matches of each.
    #[must_use]
    pub fn egress(&self) -> &Egress {
        &self.net.policy.egress
    }

    /// Renews the known addresses to which flows lead.
    fn sweep(&mut self, now: Instant) {
        let Protocols { tcp, udp, .. } = &self.protocols;
        self.net
            .policy
            .egress
            .keep(tcp.remotes().chain(udp.remotes(now)), now);
    }

    /// Resets the guest's connections and closes its other flows, as the guest has disconnected and another one may connect.
    /// Published ports stay.
    pub fn forget_guest<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.reassembly = Reassembly::default();
        self.net.learn_guest_mac(self.net.config.guest_mac);
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.abort_all(ctx);
        protocols.udp.close_all(ctx);
        protocols.icmp.close_all(ctx);
        protocols.dns.close_all(ctx);
    }

    /// Returns the flows in one part of the tables, without those of the DNS forwarder; `at` is 0, or [`Page::next`] of the
    /// previous page.
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

    /// Returns the measurements.
    #[must_use]
    pub fn histograms(&self) -> &Histograms {
        &self.net.histograms
    }

    /// Returns the worker of this engine.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.net.worker
    }

    /// Returns the number of flows of all kinds in this worker.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.net.flows as usize
    }

    /// Returns the bytes of pool memory that flows hold.
    #[must_use]
    pub fn pool_in_use(&self) -> usize {
        self.net.pool.in_use()
    }
}

impl Gathered<'_> {
    /// Drops the data of a flow that was closed after a panic.
    fn forget(&mut self, lost: Option<FlowId>) {
        // Datagrams look up their flow when they are sent.
        if let Some(flow) = lost
            && flow.kind == Kind::Tcp
        {
            self.tcp.forget(flow.index);
        }
    }
}

impl<S> Protocols<S> {
    /// Ends a flow whose handler panicked.
    fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        match flow.kind {
            Kind::Tcp => self.tcp.close(flow, ctx),
            Kind::Udp => self.udp.close(flow, ctx),
            Kind::Icmp => self.icmp.close(flow, ctx),
            Kind::Dns => self.dns.close(flow, ctx),
            Kind::Listener | Kind::Edge => {}
        }
    }

    /// Removes ended flows from the list of those that wait for the link: while the link is full, a guest can open and end
    /// flows for any time.
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

    /// Evicts the idlest datagram flows, as many as were promised to other flows.
    fn evict_reclaimed<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        // Of two flows that were last used at the same time, one may be the flow to which the slot was promised: an endpoint
        // gets the slot of an echo id only if there was no other endpoint to evict.
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
