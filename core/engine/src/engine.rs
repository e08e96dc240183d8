//! The engine's entry points: they pass frames, socket events and timers to the protocol handlers.

mod configure;
mod decide;
mod dispatch;
mod end;
#[cfg(test)]
mod tests;

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::bandwidth::DownWait;
use crate::config::Config;
use crate::counters::Counters;
use crate::ctx::{Completion, Ctx, Net, PARKED_FIRST_LEAD};
use crate::dns::Forwarder;
use crate::egress::{Egress, RefusalNotice};
use crate::flow_dump::{self, Flow, Page};
use crate::flow_events::{CloseReason, FlowEvents};
use crate::fragment::Reassembly;
use crate::histogram::Histograms;
use crate::icmp::Icmp;
use crate::ledger::{Ends, Ledger};
use crate::local;
use crate::siblings::{Handed, Origin, Siblings};
use crate::tcp::{Burst, Tcp};
use crate::udp::{DatagramGather, Udp};
use crate::{FlowId, Frame, Host, Instant, Kind, Readiness, Transmit, WorkerId};
use dispatch::{take_frame, take_handed};

/// The packet processing of one worker: its flows, timers and protocol handlers. `H` is the access to host sockets.
#[derive(Debug)]
pub struct Engine<H: Host> {
    pub(crate) net: Net,
    pub(crate) reassembly: Reassembly,
    pub(crate) protocols: ProtocolHandlers<H::Socket>,
}

/// The protocol handlers of one worker, which own its flows.
#[derive(Debug)]
pub(crate) struct ProtocolHandlers<S> {
    pub(crate) tcp: Tcp<S>,
    pub(crate) udp: Udp<S>,
    pub(crate) icmp: Icmp<S>,
    pub(crate) dns: Forwarder<S>,
}

/// Payload from the guest that the handlers of one burst have gathered and that is sent to host sockets when the burst
/// ends.
#[derive(Debug, Default)]
struct GatheredPayload<'a> {
    tcp: Burst<'a>,
    udp: DatagramGather<'a>,
}

/// Number of quanta of a flow that is alone in the ready list; input that arrives meanwhile is delayed by about 40 us.
/// TCP to the guest, one stream, medians of nine interleaved rounds (2026-11-20, 2 cores): 18,800 Mbit/s with one
/// quantum, 22,400 with four.
const ALONE: u32 = 4;

/// Approximate size of the largest frame in bytes.
const LARGEST: u64 = 64 << 10;

/// Maximum number of connections of the previous engine process that are probed in one turn of the loop; the limit
/// exists because the guest's replies arrive together, in one queue of the link.
const ORPHANS: usize = 64;

impl<H: Host> Engine<H> {
    /// Creates an engine without flows. `seed` seeds its random number generator; `now` is the time of the first turn.
    #[must_use]
    pub fn new(config: Config, worker: WorkerId, seed: [u8; 32], now: Instant) -> Self {
        let mut random = ChaCha12Rng::from_seed(seed);
        let protocols = ProtocolHandlers {
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

    /// Makes this engine one of several workers; `siblings` is its connection to the others.
    pub fn join(&mut self, siblings: Box<dyn Siblings>) {
        self.net.siblings = Some(siblings);
    }

    /// Lists TCP connections in `ledger` from now on.
    pub fn keep_ledger(&mut self, ledger: Box<dyn Ledger>) {
        self.net.ledger = Some(ledger);
    }

    /// Reports the events of flows to `events` from now on. Called before the first packet, so that all flows are reported.
    pub fn report_events(&mut self, events: Box<dyn FlowEvents>) {
        self.net.events = Some(events);
    }

    /// Reports all flows as closed, because the engine ends and [`FlowEvents`] exists for longer. Flows are not closed, and
    /// nothing is sent.
    pub fn report_end(&mut self, now: Instant) {
        if self.net.events.is_none() {
            return;
        }
        let Self { net, protocols, .. } = self;
        net.closing_as = Some(CloseReason::Ended);
        protocols.tcp.report_all_closed(net, now);
        protocols.udp.report_all_closed(net, now);
        protocols.icmp.report_all_closed(net, now);
        net.closing_as = None;
    }

    /// Sets `orphans`, the connections of the engine process that this one replaces. Each call of
    /// [`Self::handle_ready`] probes the guest for some of them, to reset them.
    pub fn ask_about(&mut self, orphans: Vec<Ends>) {
        self.net.orphans = orphans;
    }

    /// Returns the number of frames that may be received from the link now: as many frames of the largest size as the
    /// bandwidth limit permits, and at least one. If it is 0, frames wait in the link until [`Self::handle_timeout`].
    pub fn frames_allowed(&mut self, now: Instant) -> usize {
        match self.net.throttle.up(now) {
            0 => 0,
            bytes => usize::try_from(bytes / LARGEST).unwrap_or(usize::MAX).max(1),
        }
    }

    /// Handles a burst of frames from the guest.
    pub fn handle_frames<T: Transmit>(
        &mut self,
        frames: &[Frame<'_>],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        self.net.mtu = link.limits().mtu;
        self.net.throttle.sent_up(frames.iter().map(Frame::wire_len), now);
        let mut gathered = GatheredPayload::default();
        for frame in frames {
            let lost = self.guarded(None, link, host, now, |reassembly, protocols, ctx| {
                take_frame(reassembly, protocols, frame, &mut gathered, ctx);
            });
            gathered.forget(lost);
        }
        self.finish(&mut gathered, link, host, now);
    }

    /// Handles a burst of frames that other workers have handed over.
    pub fn handle_handed<T: Transmit>(
        &mut self,
        frames: &[Handed<'_>],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let mut gathered = GatheredPayload::default();
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

    /// Ends a burst: sends the gathered payload to host sockets and flushes the link.
    fn finish<T: Transmit>(
        &mut self,
        gathered: &mut GatheredPayload<'_>,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.finish(gathered, ctx);
        ctx.net.throttle.settle(now);
        protocols.trim_parked(ctx.net);
        link.flush();
    }

    /// Handles an event of a host socket or listener.
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
            Kind::Joined | Kind::JoinedGuest => protocols.tcp.handle_joined_socket(flow, ready, ctx),
            Kind::Edge => {}
        });
        link.flush();
    }

    /// Continues with clients that wait for a socket of the guest's network namespace, because the host has received some.
    pub fn handle_guest_sockets<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.guarded(None, link, host, now, |_, protocols, ctx| {
            protocols.tcp.handle_guest_sockets(ctx);
        });
        link.flush();
    }

    /// Handles all expired timers, and the end of waits for bandwidth.
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
        self.expire_decisions(link, host, now);
        while let Some(flow) = self.net.timers.expired(now) {
            self.guarded(Some(flow), link, host, now, |_, protocols, ctx| match flow.kind {
                Kind::Tcp => protocols.tcp.handle_timeout(flow, ctx),
                Kind::Udp => protocols.udp.handle_timeout(flow, ctx),
                Kind::Icmp => protocols.icmp.handle_timeout(flow, ctx),
                Kind::Dns => protocols.dns.handle_timeout(flow, ctx),
                Kind::Joined => protocols.tcp.handle_joined_timeout(flow, ctx),
                Kind::JoinedGuest | Kind::Listener | Kind::Edge => {}
            });
        }
        link.flush();
    }

    /// Sends the delayed acknowledgements, because the worker is about to sleep.
    pub fn handle_idle<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.net.delayed_ack_at = None;
        while let Some(flow) = self.net.delayed_acks.pop() {
            self.guarded(Some(flow), link, host, now, |_, protocols, ctx| {
                protocols.tcp.handle_delayed_ack(flow, ctx);
            });
        }
        link.flush();
    }

    /// Continues with the flows that wait for room on the link, because the link has room again.
    pub fn handle_link_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        // Flows that find the link full again are appended behind the others. The others stay in front if the bandwidth
        // is used up before their turn; that wait has its own timer.
        let waited = [self.net.parked_first.len(), self.net.parked.len()];
        let mut resumed = [0, 0];
        while self.net.throttle.down(now) > 0 {
            let [is_first_left, is_other_left] = [0, 1].map(|list| resumed[list] < waited[list]);
            let before = self.net.throttle.total_down();
            if is_first_left && !(is_other_left && self.net.parked_first_lead >= PARKED_FIRST_LEAD) {
                self.resume(self.net.parked_first[resumed[0]], link, host, now);
                resumed[0] += 1;
                if is_other_left {
                    self.net.parked_first_lead += self.net.throttle.total_down() - before;
                }
            } else if is_other_left {
                self.resume(self.net.parked[resumed[1]], link, host, now);
                resumed[1] += 1;
                let sent = self.net.throttle.total_down() - before;
                self.net.parked_first_lead = self.net.parked_first_lead.saturating_sub(sent);
            } else {
                // All waiting flows have continued, and bandwidth is left.
                self.net.parked_first_lead = 0;
                break;
            }
        }
        self.net.parked_first.drain(..resumed[0]);
        self.net.parked.drain(..resumed[1]);
        link.flush();
    }

    /// Continues with each flow of the ready list for one quantum (64 KiB), or for `ALONE` quanta if there is only one flow.
    /// [`Self::has_ready`] reports what is left.
    pub fn handle_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
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
    }

    fn resume<T: Transmit>(&mut self, flow: FlowId, link: &mut T, host: &mut H, now: Instant) {
        self.guarded(Some(flow), link, host, now, |_, protocols, ctx| match flow.kind {
            Kind::Tcp => protocols.tcp.handle_ready(flow, ctx),
            Kind::Udp => protocols.udp.handle_ready(flow, ctx),
            Kind::Icmp => protocols.icmp.handle_ready(flow, ctx),
            Kind::Dns => protocols.dns.handle_ready(flow, ctx),
            Kind::Listener => protocols.tcp.handle_listener(flow, ctx),
            Kind::Joined => protocols.tcp.handle_joined_ready(flow, ctx),
            Kind::JoinedGuest | Kind::Edge => {}
        });
    }

    /// Executes the handler of a frame or event, which belongs to the flow `about` or to a flow that the handler finds.
    /// If the handler panics, only that flow is closed, and its id returned; if there is no flow, the frame is dropped.
    ///
    /// A panic while the flow is closed is propagated: more than one flow may be inconsistent then, and the process has
    /// to exit.
    fn guarded<T: Transmit>(
        &mut self,
        about: Option<FlowId>,
        link: &mut T,
        host: &mut H,
        now: Instant,
        handle: impl FnOnce(&mut Reassembly, &mut ProtocolHandlers<H::Socket>, &mut Ctx<'_, H, T>),
    ) -> Option<FlowId> {
        let Self {
            net,
            reassembly,
            protocols,
        } = self;
        let origin = net.origin;
        net.current_flow = about;
        net.throttle.begin_turn(now);
        let ctx = &mut Ctx { host, link, net, now };
        let completion = ctx.catch_panic(|ctx| handle(reassembly, protocols, ctx));
        ctx.net.throttle.settle(now);
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
            // Clients may still wait in the listener's queue, and no further event reports them.
            ctx.net.ready.push_back(flow);
        }
        let lost = ctx.net.current_flow?;
        protocols.close(lost, ctx);
        Some(lost)
    }

    /// Returns the protocol handlers, and the context that they need.
    pub(crate) fn split<'a, T>(
        &'a mut self,
        link: &'a mut T,
        host: &'a mut H,
        now: Instant,
    ) -> (&'a mut ProtocolHandlers<H::Socket>, Ctx<'a, H, T>) {
        let ctx = Ctx {
            host,
            link,
            net: &mut self.net,
            now,
        };
        (&mut self.protocols, ctx)
    }

    /// Returns true if the ready list contains a flow, so that [`Self::handle_ready`] has to be called.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.net.ready.is_empty() || !self.net.orphans.is_empty()
    }

    /// Returns the number of entries in the lists of flows that wait for room on the link. Entries of flows that have
    /// ended may be among them.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.net.parked.len() + self.net.parked_first.len()
    }

    /// Returns the time at which [`Self::handle_timeout`] has to be called next; `None` if there is no timer.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        [
            self.net.timers.next(),
            self.reassembly.next_timeout(),
            self.net.delayed_ack_at,
            self.net.throttle.next(),
            self.net.policy.egress.next_sweep(),
            self.next_decision(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns and removes the log lines about refused packets.
    pub fn take_news(&mut self) -> Vec<RefusalNotice> {
        self.net.policy.egress.take_news()
    }

    /// Returns the user's egress rules, with the number of matches of each.
    #[must_use]
    pub fn egress(&self) -> &Egress {
        &self.net.policy.egress
    }

    /// Renews the addresses learned from DNS to which TCP and UDP flows lead.
    fn sweep(&mut self, now: Instant) {
        let ProtocolHandlers { tcp, udp, .. } = &self.protocols;
        self.net
            .policy
            .egress
            .keep(tcp.remotes().chain(udp.remotes(now)), now);
    }

    /// Requests the Ethernet address of a guest that has been attached. A guest that was already configured may not send
    /// anything before clients of published ports connect.
    pub fn solicit_guest<T: Transmit>(&mut self, link: &mut T) {
        self.net.mtu = link.limits().mtu;
        local::solicit_guest(&mut self.net, link);
    }

    /// Resets the guest's TCP connections and closes its other flows, because the guest has disconnected from the link
    /// and another one may connect. Published ports stay.
    pub fn forget_guest<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.reassembly = Reassembly::default();
        self.net.orphans.clear();
        self.net.learn_guest_mac(self.net.config.guest_mac);
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.abort_all(ctx);
        protocols.udp.close_all(ctx);
        protocols.icmp.close_all(ctx);
        protocols.dns.close_all(ctx);
        protocols.cancel_decisions(ctx);
    }

    /// Returns one page of the list of flows, without those of the DNS forwarder; `at` is 0, or [`Page::next`] of the
    /// previous page.
    #[must_use]
    pub fn flows_from(&self, at: u64, now: Instant) -> Page {
        let place = flow_dump::place(at);
        let ProtocolHandlers { tcp, udp, icmp, .. } = &self.protocols;
        let (flows, slots): (Vec<Flow>, u32) = match place.0 {
            0 => tcp.flow_page(place.1, &self.net, now),
            1 => udp.flow_page(place.1, &self.net, now),
            2 => icmp.flow_page(place.1, &self.net, now),
            3 => tcp.joined_page(place.1, &self.net, now),
            _ => (Vec::new(), 0),
        };
        Page {
            flows,
            next: flow_dump::next(place, slots, 4),
        }
    }

    /// Returns this worker's event counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.net.counters
    }

    /// Returns the measurements.
    #[must_use]
    pub fn histograms(&self) -> &Histograms {
        &self.net.histograms
    }

    /// Returns the number of this worker.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.net.worker
    }

    /// Returns the number of open flows of all kinds in this worker.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.net.flows as usize
    }

    /// Returns the number of TCP connections that wait for a ClientHello that a rule requires.
    #[must_use]
    pub fn proving(&self) -> u32 {
        self.net.proving
    }

    /// Returns the number of bytes in the buffer pool that flows use.
    #[must_use]
    pub fn pool_in_use(&self) -> usize {
        self.net.pool.in_use()
    }
}

impl GatheredPayload<'_> {
    /// Drops the gathered TCP data of a flow that was closed after a panic.
    fn forget(&mut self, lost: Option<FlowId>) {
        // Gathered UDP datagrams look up their flow when they are sent.
        if let Some(flow) = lost
            && flow.kind == Kind::Tcp
        {
            self.tcp.forget(flow.index);
        }
    }
}

impl<S> ProtocolHandlers<S> {
    /// Closes a flow whose handler has panicked.
    fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        match flow.kind {
            Kind::Tcp => self.tcp.close(flow, ctx),
            Kind::Udp => {
                self.udp.close(flow, ctx);
            }
            Kind::Icmp => {
                self.icmp.close(flow, ctx);
            }
            Kind::Dns => self.dns.close(flow, ctx),
            Kind::Joined | Kind::JoinedGuest => {
                self.tcp.end_joined(flow, CloseReason::Internal, ctx);
            }
            Kind::Listener | Kind::Edge => {}
        }
    }

    /// Removes ended flows from the lists of flows that wait for the link. Without this, the lists would grow without
    /// bound if a guest opens and ends flows while the link is full.
    fn trim_parked(&mut self, net: &mut Net) {
        let Self { tcp, udp, icmp, dns } = self;
        let most = 2 * net.flows as usize + 64;
        for list in [&mut net.parked_first, &mut net.parked] {
            if list.len() > most {
                list.retain(|flow| match flow.kind {
                    Kind::Tcp => tcp.contains(*flow),
                    Kind::Udp => udp.contains(*flow),
                    Kind::Icmp => icmp.contains(*flow),
                    Kind::Dns => dns.contains(*flow),
                    Kind::Joined | Kind::JoinedGuest | Kind::Listener | Kind::Edge => true,
                });
            }
        }
    }

    /// Evicts the idlest UDP endpoints or echo ids, as many as [`Net::reclaim`] has promised to other flows.
    fn evict_reclaimed<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        // If two flows were last used at the same time, one may be the flow to which the slot was promised. An endpoint
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
