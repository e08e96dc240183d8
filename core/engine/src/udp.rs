//! UDP forwarding with one host socket for each UDP endpoint of the guest.
//!
//! The mapping is endpoint-independent (RFC 4787 REQ-1): all datagrams from one address and port of the guest are sent
//! by one host socket, and datagrams from permitted senders to that socket are forwarded to the guest. The socket of a
//! published port is the mapping of the guest's endpoint with that port; if several sockets are published to one port,
//! a peer is answered from the socket to which it has sent. Peers that none of these sockets can reach (a socket bound
//! to loopback reaches no other host) get an extra endpoint.
//!
//! To the host ("up"), consecutive datagrams with equal headers are gathered and sent by one call ([`DatagramGather`],
//! `up.rs`, `send.rs`). To the guest ("down"), datagrams of one receive stay together if the link supports UDP
//! segmentation (`down.rs`). Errors that the network reports about sent datagrams become ICMP errors to the guest
//! (`errors.rs`).

mod decided;
mod down;
mod enforce;
mod errors;
mod events;
mod gather;
mod peer_ports;
mod peers;
mod published;
mod send;
mod state;
#[cfg(test)]
mod tests;
mod up;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::ctx::{Ctx, Eviction, Net};
use crate::egress::EgressProtocol;
use crate::flow_dump::{Flow, Phase, SLOTS, Traffic};
use crate::flow_events::{Announcement, CloseReason};
use crate::policy::Policy;
use crate::siblings::FlowKey;
use crate::table::{Secret, Table};
use crate::timer::Timer;
use crate::{FlowId, Host, Instant, Kind, Transmit};
use crate::state::flow_record;
use rand_chacha::ChaCha12Rng;

pub use gather::DatagramGather;
use peers::{EndpointPeers, Peer, PeerOwner, PeerPool};

/// The guest's UDP endpoints in one worker, with their host sockets and peers.
#[derive(Debug)]
pub struct Udp<S> {
    /// Endpoints by the guest's address and port, and the number of the socket among those published to that port.
    endpoints: Table<(SocketAddr, u8), UdpEndpoint<S>>,
    pool: PeerPool,
    /// Buffer for datagrams that cannot be copied directly from or to link memory.
    scratch: Box<[u8]>,
}

/// A host socket with the state of the guest's UDP endpoint that it belongs to.
#[derive(Debug)]
struct UdpEndpoint<S> {
    socket: S,
    timer: Timer,
    opened: Instant,
    used: Instant,
    traffic: Traffic,
    /// State of the endpoint's opening event.
    announcement: Announcement,
    /// Peer of the last datagram, as the guest sees its address.
    last: Option<SocketAddr>,
    peers: EndpointPeers,
    /// Index of the published port in the configuration, if the socket is that of a published port.
    published: Option<u32>,
    /// Largest datagram size for which several datagrams are sent by one call. A refusal by the host reduces it for
    /// this endpoint only.
    largest_segment: u16,
    /// True if the host socket is connected to the only peer.
    connected: bool,
    /// True if a peer has sent a reply.
    replied: bool,
    /// True if the guest has sent only to port 53.
    only_dns: bool,
    /// True if the flow is in `Net::ready` or `Net::parked`.
    queued: bool,
    /// True if the socket's error queue may have more entries.
    troubled: bool,
}

flow_record! { UdpEndpoint {
    opened, used, traffic, announcement, last, peers, published, largest_segment, connected, replied, only_dns, queued, troubled,
} sockets { socket: S } elsewhere { timer = Timer::default() } }

impl<S> Udp<S> {
    /// Creates a table without endpoints.
    #[must_use]
    pub fn new(random: &mut ChaCha12Rng) -> Self {
        Self {
            endpoints: Table::new(Secret::new(random)),
            pool: PeerPool::new(Secret::new(random)),
            scratch: scratch(),
        }
    }

    /// Returns the number of open UDP endpoints.
    #[must_use]
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Returns true if no UDP endpoint is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the endpoint `flow` is still open.
    pub(crate) fn contains(&mut self, flow: FlowId) -> bool {
        self.endpoints.get_mut(flow.index, flow.generation).is_some()
    }

    /// Closes an endpoint at once, for example after its handler has panicked. The endpoint of a published port is
    /// opened again, without its clients. Returns false if there is no such endpoint.
    pub fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) -> bool {
        // The handler may have taken the buffer before it panicked.
        if self.scratch.is_empty() {
            self.scratch = scratch();
        }
        let Some(endpoint) = self.endpoints.get_mut(flow.index, flow.generation) else {
            return false;
        };
        let (published, key) = (endpoint.published, *self.endpoints.key(flow.index));
        self.remove(flow.index, CloseReason::Internal, ctx);
        if let Some(place) = published
            && self.open_published_socket(place, key, ctx).is_err()
        {
            ctx.net.counters.host_exhausted += 1;
        }
        true
    }

    /// Closes every endpoint except those of published ports, which forget their peers.
    pub fn close_all<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        for index in self.endpoints.places() {
            let endpoint = self.endpoints.at_mut(index);
            if endpoint.published.is_none() {
                self.remove(index, CloseReason::GuestGone, ctx);
            } else {
                (endpoint.last, endpoint.replied) = (None, false);
            }
        }
        self.forget(|_| true);
    }

    /// Handles the timer of an endpoint, which closes it if it was idle for its lifetime.
    pub fn handle_timeout<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(flow.index, flow.generation) else {
            return;
        };
        endpoint.timer.fired();
        match endpoint.expiry() {
            Some(at) if at <= ctx.now => self.remove(flow.index, CloseReason::Timeout, ctx),
            Some(at) => ctx.net.timers.arm(&mut endpoint.timer, flow, at),
            None => (),
        }
    }

    /// Removes the peers that the changed egress rules refuse, so that their datagrams are dropped. Datagrams of the
    /// guest to them are checked anyway.
    pub fn enforce<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let (policy, now) = (&ctx.net.policy, ctx.now);
        let is_forbidden = |peer: &Peer| {
            let written = peer.written;
            // A peer without port represents all ports, and stays while the rules permit one of them.
            let port = Some(written.port()).filter(|port| *port > 0);
            !peer.came_in && !policy.allows(EgressProtocol::Udp, written.ip(), port, now)
        };
        self.forget(is_forbidden);
        self.keep_none();
    }

    /// Removes the peers that the policy refuses after a change of the host's addresses.
    pub(crate) fn disown(&mut self, policy: &Policy) {
        let is_forbidden = |peer: &Peer| {
            let remote = policy.translate(EgressProtocol::Udp, peer.written);
            let stays = match peer.redirected {
                true => remote.is_ok(),
                false => remote == Ok(peer.remote),
            };
            !peer.came_in && !stays
        };
        self.forget(is_forbidden);
    }

    fn forget(&mut self, which: impl Fn(&Peer) -> bool) {
        self.pool.forget_all(&which);
        let indices: Vec<u32> = self.endpoints.iter().map(|(index, _)| index).collect();
        for index in indices {
            self.endpoints.at_mut(index).peers.forget_first(&which);
        }
    }

    /// Returns a page of the list of flows that begins at the slot `first`, and the number of slots.
    pub(crate) fn flow_page(&self, first: u32, net: &Net, now: Instant) -> (Vec<Flow>, u32) {
        let endpoints = self.endpoints.part(first, SLOTS);
        let flows = endpoints.map(|(index, generation, (guest, _), endpoint)| Flow {
            id: net.flow(Kind::Udp, index, generation),
            protocol: EgressProtocol::Udp,
            guest: *guest,
            remote: endpoint.last,
            came_in: endpoint.published.is_some(),
            phase: match endpoint.replied {
                true => Phase::Open,
                false => Phase::Unanswered,
            },
            age: now.since(endpoint.opened),
            traffic: endpoint.traffic,
        });
        (flows.collect(), self.endpoints.slots())
    }

    /// Returns the remote addresses to which the guest has sent datagrams recently.
    pub(crate) fn remotes(&self, now: Instant) -> impl Iterator<Item = IpAddr> {
        let first = self
            .endpoints
            .iter()
            .filter_map(|(_, endpoint)| endpoint.peers.first());
        first
            .chain(self.pool.iter())
            .filter(move |peer| peer.is_fresh(now))
            .map(|peer| peer.written.ip())
    }

    fn remove<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        reason: CloseReason,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        self.report_closed(index, reason, ctx.net, ctx.now);
        if let (guest, 0) = *self.endpoints.key(index) {
            ctx.net.release(&FlowKey::Udp(guest));
        }
        let (guest, _) = *self.endpoints.key(index);
        let mut endpoint = self.endpoints.remove(index);
        if endpoint.published.is_none() {
            ctx.net.port_freed(guest.ip());
            ctx.net.was_evictable();
        } else {
            self.pool.remove_port();
        }
        ctx.net.timers.disarm(&mut endpoint.timer);
        ctx.net.closed();
        ctx.host.close(endpoint.socket);
    }

    /// Returns the time at which the idlest endpoint that may be evicted was last used.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.idlest().map(|index| self.endpoints.at(index).used)
    }

    /// Closes the idlest endpoint in favour of a new flow.
    pub(crate) fn evict<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) -> Eviction {
        self.evict_at(self.idlest(), ctx)
    }

    fn evict_at<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: Option<u32>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Eviction {
        let Some(index) = index else {
            return Eviction::NoneLeft;
        };
        self.remove(index, CloseReason::Evicted, ctx);
        ctx.net.counters.udp_evicted += 1;
        Eviction::Evicted
    }

    /// Returns the slot of the idlest endpoint of both families.
    fn idlest(&self) -> Option<u32> {
        FAMILIES
            .into_iter()
            .filter_map(|family| self.endpoints.idlest_in(family))
            .min_by_key(|&index| self.endpoints.at(index).used)
    }

    fn owner(&self, index: u32) -> PeerOwner {
        PeerOwner {
            index,
            generation: self.endpoints.generation(index),
        }
    }

    /// Returns the slot of the endpoint's first socket, to which the endpoint's peers belong.
    fn home(&self, index: u32) -> u32 {
        match *self.endpoints.key(index) {
            (_, 0 | BESIDE) => index,
            (guest, _) => self.endpoints.find(&(guest, 0)).unwrap_or(index),
        }
    }
}

impl<S> UdpEndpoint<S> {
    fn new(socket: S, by_port: bool, now: Instant) -> Self {
        Self {
            socket,
            timer: Timer::default(),
            opened: now,
            used: now,
            traffic: Traffic::default(),
            announcement: Announcement::default(),
            last: None,
            peers: EndpointPeers::new(by_port),
            published: None,
            largest_segment: u16::MAX,
            connected: false,
            replied: false,
            only_dns: true,
            queued: false,
            troubled: false,
        }
    }

    /// Returns the time at which the endpoint expires unless it is used before; `None` for a published port.
    fn expiry(&self) -> Option<Instant> {
        let idle = match self.published {
            Some(_) => return None,
            None if self.only_dns => IDLE_DNS,
            None if !self.replied => IDLE_UNANSWERED,
            None => IDLE,
        };
        Some(self.used + idle)
    }
}

/// Returns the table group of an endpoint: its address family, because host ports are counted by family.
fn family(guest: SocketAddr) -> u32 {
    FAMILIES[usize::from(guest.is_ipv6())]
}

const FAMILIES: [u32; 2] = [0, 1];

fn scratch() -> Box<[u8]> {
    vec![0; SCRATCH].into_boxed_slice()
}

/// Idle time after which an endpoint is closed (RFC 4787 REQ-5: at least two minutes).
const IDLE: Duration = Duration::from_secs(120);

/// Idle time after which an endpoint without a reply is closed.
const IDLE_UNANSWERED: Duration = Duration::from_secs(30);

/// Idle time after which an endpoint that has sent only DNS queries is closed. Each query is sent from a port of its
/// own, and RFC 4787 REQ-5 permits other times for well-known ports.
const IDLE_DNS: Duration = Duration::from_secs(10);

/// Number of the extra endpoint of a published port, for peers that none of the port's sockets can reach.
const BESIDE: u8 = u8::MAX;

/// Size of the datagram buffer in bytes, larger than any datagram.
const SCRATCH: usize = 65_536;
