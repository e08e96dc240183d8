//! Sends UDP datagrams of the guest to host sockets.

use core::net::{IpAddr, SocketAddr};

use pontoon_wire::frame::{self, Transport};
use pontoon_wire::vnet::Segmentation;
use vm_memory::VolatileSlice;

use super::decided::{self, DecidedRemote};
use super::gather::{DatagramRun, Gathering, MAX_BYTES, MAX_SEGMENTS, RunHeaders, UdpRoute, datagrams};
use super::peer_ports::{PeerPorts, RulesSeen};
use super::peers::{AddressSide, Peer, PeerGroup, PeerPlace};
use super::{BESIDE, DatagramGather, Udp, UdpEndpoint, events};
use crate::config::UdpFilter;
use crate::ctx::{Capacity, Completion, Ctx, Eviction, Routed};
use crate::egress::EgressProtocol;
use crate::egress_check::Packet;
use crate::flow_events::{Grounds, RefusalReason};
use crate::flow_rate::{Admission, FlowOpener};
use crate::host::DatagramMeta;
use crate::policy::Permitted;
use crate::siblings::FlowKey;
use crate::{Failure, FlowId, Frame, Host, Instant, Kind, Transmit};

impl<S> Udp<S> {
    /// Handles a UDP datagram from the guest, or a super-frame of several. It waits in `gather` for others with equal
    /// headers until a different datagram is received, or until [`Self::flush`].
    pub fn handle_datagram<'a, H: Host<Socket = S>, T: Transmit>(
        &mut self,
        frame: &Frame<'a>,
        ip: &frame::Ip,
        udp: &frame::Udp,
        gather: &mut DatagramGather<'a>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let heading = RunHeaders {
            guest: SocketAddr::new(ip.source, udp.source_port),
            written: SocketAddr::new(ip.destination, udp.destination_port),
            meta: DatagramMeta {
                hop_limit: ip.hop_limit,
                traffic_class: ip.traffic_class,
                dont_fragment: ip.dont_fragment,
            },
        };
        let packet = Packet {
            frame,
            ip,
            transport: Transport::Udp(*udp),
        };
        let segment = match frame.offload.segmentation {
            Segmentation::Udp { len } if len > 0 => usize::from(len).min(udp.payload_len),
            Segmentation::Udp { .. }
            | Segmentation::Whole
            | Segmentation::Tcp4 { .. }
            | Segmentation::Tcp6 { .. } => udp.payload_len,
        };
        let most = segment * (MAX_BYTES / segment.max(1)).clamp(1, MAX_SEGMENTS);
        let (mut offset, mut left) = (udp.payload_offset, udp.payload_len);
        loop {
            let len = left.min(most);
            let routing = self.gather(heading, &packet, (offset, len, segment), gather, ctx);
            (offset, left) = (offset + len, left - len);
            if left == 0 || routing == Routing::NoRoute {
                break;
            }
        }
    }

    /// Sends the gathered datagrams. The engine calls this at the end of each burst.
    pub fn flush<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        gather: &mut DatagramGather<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(run) = gather.run.take() else {
            return;
        };
        // The gathered datagrams may belong to another flow than the one that is being handled.
        let completion = ctx.catch_panic(|ctx| self.send(&run, &gather.parts, ctx));
        if completion == Completion::Panicked {
            let UdpRoute {
                index, generation, ..
            } = run.route;
            self.close(ctx.net.flow(Kind::Udp, index, generation), ctx);
        }
    }

    /// Gathers some of a frame's datagrams.
    fn gather<'a, H: Host<Socket = S>, T: Transmit>(
        &mut self,
        heading: RunHeaders,
        packet: &Packet<'_, 'a>,
        (offset, len, segment): (usize, usize, usize),
        gather: &mut DatagramGather<'a>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Routing {
        let gathering = gather.append(&heading, packet.frame, offset, len, segment);
        if gathering == Gathering::Added {
            return Routing::Found;
        }
        self.flush(gather, ctx);
        let Some(route) = self.route(&heading, packet, ctx) else {
            return Routing::NoRoute;
        };
        let gathering = gather.begin(heading, route, packet.frame, offset, len, segment);
        if gathering == Gathering::Added {
            return Routing::Found;
        }
        // The datagrams are in more slices than one send permits, so they are copied into one slice.
        let mut scratch = core::mem::take(&mut self.scratch);
        let len = packet.frame.copy(offset, &mut scratch[..len]);
        let run = DatagramRun {
            heading,
            route,
            segment,
            len,
            count: datagrams(len, segment),
        };
        self.send(&run, &[VolatileSlice::from(&mut scratch[..len])], ctx);
        self.scratch = scratch;
        Routing::Found
    }

    /// Returns the route of a datagram after the policy's check. Opens an endpoint and stores a peer if they are new.
    fn route<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        heading: &RunHeaders,
        packet: &Packet<'_, '_>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<UdpRoute> {
        let RunHeaders { guest, written, .. } = *heading;
        if decided::is_pending(heading, ctx.net) {
            return None;
        }
        let known = self.endpoints.find(&(guest, 0));
        if known.is_none() {
            let routed = ctx.net.hand_over_to_owner(&FlowKey::Udp(guest), packet.frame);
            if routed == Routed::HandedOver {
                return None;
            }
        }
        let forwarded = ctx.net.policy.forward(EgressProtocol::Udp, written);
        // A peer that represents all ports of an address does not represent a port with a forward to another
        // destination.
        let is_decided = |peer: &Peer| peer.has_port || !ctx.net.distinguishes_ports();
        let is_of_port = |peer: &Peer| {
            let is_same = peer.redirected || forwarded.is_none_or(|to| peer.remote == to);
            peer.came_in || is_same && is_decided(peer)
        };
        let peer = known.and_then(|home| self.fresh_peer(home, written, ctx.now));
        let peer = peer.filter(|(.., peer)| is_of_port(peer));
        let Permitted { remote, ground, .. } =
            permitted_remote(peer.as_ref().map(|(.., peer)| peer), packet, written, ctx)?;
        packet.check_hop_limit(remote.ip(), ctx).ok()?;
        if written.port() == 0 {
            ctx.net.counters.malformed += 1;
            return None;
        }
        let decided = match peer {
            Some((.., peer)) => DecidedRemote {
                remote,
                redirected: peer.redirected,
                verdict: None,
            },
            None => self.judge(heading, packet, remote, ctx)?,
        };
        let remote = decided.remote;
        let way = match peer {
            Some((index, _, peer)) => Some((index, peer.via)),
            None => known.and_then(|home| Some((home, self.way_out(home, remote, ctx.net)?))),
        };
        let (index, via, opened) = match way {
            Some((index, via)) => (index, via, false),
            None => {
                let key = (guest, if known.is_some() { BESIDE } else { 0 });
                let (index, opened) = self.find_or_open(key, written, packet.frame, ctx)?;
                (index, index, opened)
            }
        };
        let flow = ctx.net.flow(Kind::Udp, index, self.endpoints.generation(index));
        ctx.net.current_flow = Some(flow);
        let from = match peer {
            Some((_, place, _)) => {
                let peer = self.endpoints.at_mut(index).peers.touch(&mut self.pool, place);
                peer.used = ctx.now;
                peer.ports.note(written.port());
                peer.from
            }
            None => {
                let has_port = forwarded.is_some() || ctx.net.distinguishes_ports();
                let peer = outbound_peer(&decided, written, via, has_port, ctx);
                let (rule, verdict) = (ground, decided.verdict);
                let grounds = Grounds {
                    rule,
                    verdict,
                    proxy: None,
                };
                self.learn_peer((index, opened), peer, grounds, ctx);
                None
            }
        };
        self.note_use(flow, written, opened, ctx);
        let endpoint = self.endpoints.at_mut(index);
        let state = connect(endpoint, remote, peer.is_none(), ctx);
        Some(UdpRoute {
            index: via,
            generation: self.endpoints.generation(via),
            to: (state == SocketState::Unconnected).then_some(remote),
            from,
        })
    }

    /// Notes that the endpoint `flow` sends a datagram to `written`, and arms its timer if it was opened for it.
    fn note_use<H, T>(&mut self, flow: FlowId, written: SocketAddr, opened: bool, ctx: &mut Ctx<'_, H, T>) {
        self.endpoints.touch(flow.index);
        let endpoint = self.endpoints.at_mut(flow.index);
        endpoint.used = ctx.now;
        endpoint.last = Some(written);
        endpoint.only_dns &= written.port() == DNS;
        if let (true, Some(at)) = (opened, endpoint.expiry()) {
            ctx.net.timers.arm(&mut endpoint.timer, flow, at);
        }
    }

    /// Returns the slot of the endpoint `key`, and true if it was opened by this call; `None` if it cannot be opened.
    fn find_or_open<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        key: (SocketAddr, u8),
        written: SocketAddr,
        frame: &Frame<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<(u32, bool)> {
        if let Some(index) = self.endpoints.find(&key) {
            return Some((index, false));
        }
        let opened = self.open(key, written, frame, ctx);
        if opened.is_none() {
            self.release_unused(key.0, ctx.net);
        }
        Some((opened?, true))
    }

    /// Stores a peer to which the endpoint at `index` sends its first datagram, and reports it.
    fn learn_peer<H, T>(
        &mut self,
        (index, opened): (u32, bool),
        peer: Peer,
        grounds: Grounds,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let owner = self.owner(index);
        let peers = &mut self.endpoints.at_mut(index).peers;
        peers.learn(&mut self.pool, owner, PeerGroup::Outbound, peer, ctx.now);
        let (written, remote) = (Some(peer.written), Some(peer.remote));
        let went_out = (false, grounds);
        self.report_peer((index, opened), written, remote, went_out, (ctx.net, ctx.now));
    }

    /// Returns a peer to which the guest has sent recently, as the slot of its endpoint (the one at `home`, or the
    /// extra endpoint) and the peer's location.
    pub(super) fn fresh_peer(
        &self,
        home: u32,
        written: SocketAddr,
        now: Instant,
    ) -> Option<(u32, PeerPlace, Peer)> {
        let among = |index: u32| {
            let peers = &self.endpoints.at(index).peers;
            let place = peers.find(&self.pool, self.owner(index), AddressSide::Written, written)?;
            let peer = peers.at(&self.pool, place);
            peer.is_fresh(now).then_some((index, place, *peer))
        };
        among(home).or_else(|| {
            self.endpoints.at(home).published?;
            let (guest, _) = *self.endpoints.key(home);
            among(self.endpoints.find(&(guest, BESIDE))?)
        })
    }

    /// Opens an endpoint from which the guest sends. If there are too many flows or ports, the idlest endpoint is
    /// evicted.
    fn open<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        (guest, nth): (SocketAddr, u8),
        written: SocketAddr,
        frame: &Frame<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<u32> {
        let capacity = Capacity::new(self.idlest().is_some() || ctx.net.can_reclaim());
        let is_home = nth == 0;
        if is_home && capacity == Capacity::Vacant {
            let routed = ctx.net.hand_over_to_evict(frame);
            if routed == Routed::HandedOver {
                return None;
            }
        }
        let admission = ctx.net.admit(capacity, FlowOpener::Guest, ctx.now);
        let refused = events::ends(guest, Some(written), false);
        if admission == Admission::Refused {
            ctx.net.report_refused(refused, RefusalReason::Limit, ctx.now);
            return None;
        }
        // The extra endpoint of a published port is in the same worker, which has claimed the key of the flow already.
        if is_home && let Err(winner) = ctx.net.claim(&FlowKey::Udp(guest)) {
            ctx.net.hand_over(winner, frame);
            return None;
        }
        if ctx.net.is_out_of_ports(guest.ip()) {
            // A worker without an endpoint of this family exceeds the limit by one, because it could not send any
            // datagram otherwise.
            self.evict_at(self.endpoints.idlest_in(super::family(guest)), ctx);
        }
        if ctx.net.is_full() {
            let eviction = self.evict(ctx);
            if eviction == Eviction::NoneLeft {
                ctx.net.reclaim();
            }
        }
        if ctx.net.is_full() {
            // The workers together have opened more flows than the limit.
            ctx.net.counters.flows_refused += 1;
            ctx.net.report_refused(refused, RefusalReason::Limit, ctx.now);
            if is_home {
                ctx.net.release(&FlowKey::Udp(guest));
            }
            return None;
        }
        let mut opened = self.open_socket(guest.ip(), ctx);
        if matches!(opened, Err(Failure::Exhausted)) {
            let eviction = self.evict(ctx);
            if eviction == Eviction::Evicted {
                opened = self.open_socket(guest.ip(), ctx);
            }
        }
        let by_port = ctx.net.config.udp_filter != UdpFilter::Address;
        let socket = match opened {
            Ok(socket) => socket,
            Err(failure) => {
                ctx.net
                    .report_refused(refused, RefusalReason::Host(failure), ctx.now);
                if is_home {
                    ctx.net.release(&FlowKey::Udp(guest));
                }
                return None;
            }
        };
        let endpoint = UdpEndpoint::new(socket, by_port, ctx.now);
        ctx.net.opened();
        ctx.net.port_taken(guest.ip());
        ctx.net.became_evictable();
        Some(
            self.endpoints
                .insert_in(super::family(guest), (guest, nth), endpoint),
        )
    }

    /// Opens a host socket for the endpoint that will use the next free slot.
    fn open_socket<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        family_of: IpAddr,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<S, Failure> {
        let (index, generation) = self.endpoints.vacant();
        let flow = ctx.net.flow(Kind::Udp, index, generation);
        let opened = ctx.host.udp_open(flow, family_of);
        ctx.net.counters.host_exhausted += u64::from(opened.is_err());
        opened
    }
}

/// Returns a peer to which the guest sends its first datagram.
fn outbound_peer<H, T>(
    decided: &DecidedRemote,
    written: SocketAddr,
    via: u32,
    has_port: bool,
    ctx: &Ctx<'_, H, T>,
) -> Peer {
    Peer {
        remote: decided.remote,
        written,
        via,
        from: None,
        used: ctx.now,
        came_in: false,
        has_port,
        ports: PeerPorts::of(written.port()),
        redirected: decided.redirected,
        rules: RulesSeen::new(ctx.net.policy.egress.generation()),
    }
}

/// Returns the host-side destination of a datagram to `peer`, or to a destination without one, if the policy permits it.
fn permitted_remote<H, T: Transmit>(
    peer: Option<&Peer>,
    packet: &Packet<'_, '_>,
    written: SocketAddr,
    ctx: &mut Ctx<'_, H, T>,
) -> Option<Permitted> {
    let known = |remote| Permitted::new(remote, None);
    match peer {
        // A peer may represent all ports, some of which the rules may refuse.
        Some(peer) if peer.redirected && peer.ports.is_kept(written.port()) => Some(known(peer.remote)),
        Some(peer) if peer.redirected => packet.check_egress(ctx).ok().map(|_| known(peer.remote)),
        Some(peer)
            if peer.came_in || ctx.net.policy.egress.is_open() || peer.ports.is_kept(written.port()) =>
        {
            Some(known(peer.remote_for(written)))
        }
        Some(_) | None => packet.check_egress(ctx).ok(),
    }
}

/// Connects the socket while there is one peer only, and disconnects it for a second one.
///
/// A connected socket receives only from its peer's address and port, so it is connected only if the endpoint's filter
/// does the same. Otherwise it would exclude senders that the filter permits, and hide refused senders from the
/// counters.
fn connect<H: Host, T: Transmit>(
    endpoint: &mut UdpEndpoint<H::Socket>,
    remote: SocketAddr,
    is_new: bool,
    ctx: &mut Ctx<'_, H, T>,
) -> SocketState {
    if ctx.net.config.udp_filter != UdpFilter::AddressPort || endpoint.published.is_some() {
        return SocketState::Unconnected;
    }
    let only = !is_new && endpoint.peers.only().is_some_and(|peer| peer.remote == remote);
    match (endpoint.connected, only) {
        // The socket is connected only after the first reply, because for a single request the call costs more than it
        // saves.
        (false, true) if endpoint.replied => {
            let connected = ctx.host.udp_connect(&mut endpoint.socket, Some(remote));
            endpoint.connected = connected.is_ok();
        }
        (true, false) => {
            let disconnected = ctx.host.udp_connect(&mut endpoint.socket, None);
            endpoint.connected = disconnected.is_err();
        }
        (false, _) | (true, true) => (),
    }
    match endpoint.connected && only {
        true => SocketState::Connected,
        false => SocketState::Unconnected,
    }
}

/// The result of looking up the route of a frame's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Routing {
    /// The datagrams were gathered or sent.
    Found,
    /// There is none, so the other datagrams of the frame have none either.
    NoRoute,
}

/// The state of an endpoint's socket for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketState {
    /// The socket is connected to the peer.
    Connected,
    /// The socket is not connected, so that each send contains the peer's address.
    Unconnected,
}

/// Port of DNS resolvers.
const DNS: u16 = 53;
