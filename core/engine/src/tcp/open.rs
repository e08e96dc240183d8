//! Opens connections of the guest: its SYN becomes a connect to the remote host.
//!
//! The engine sends the guest a SYN-ACK only after the host connection is established.

use core::net::SocketAddr;
use core::time::Duration;

use pontoon_wire::frame::{self, Flags, Ip};

use super::connection::{Connection, ConnectionKey, TcpState};
use super::events;
use super::negotiation::{NEGOTIATION_TIMEOUT, Negotiation};
use super::seq::Seq;
use super::stray::{reply_reset, send_reset};
use super::{Burst, Sending, Tcp, decided};
use crate::ctx::{Capacity, Ctx, Net, Routed};
use crate::dns::stream::Queries;
use crate::egress::{Decision, DecisionGround, EgressProtocol};
use crate::flow_events::{CloseReason, Grounds, RefusalReason};
use crate::flow_rate::{Admission, FlowOpener};
use crate::host::Connect;
use crate::policy::{Permitted, Standing};
use crate::{Failure, FlowId, Frame, Host, Instant, Kind, Transmit};

impl<S> Tcp<S> {
    /// Handles a SYN of the guest that belongs to no connection: checks the policy and the limits, and connects to the
    /// remote host. Other connections are evicted only after these checks.
    pub(super) fn open<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        syn: OpeningSegment<'_, '_>,
        dns: Option<SocketAddr>,
        burst: &mut Burst<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let OpeningSegment {
            key, frame, segment, ..
        } = syn;
        if decided::is_pending(&syn, ctx) {
            return;
        }
        let Some(permitted) = destination(&key, dns, ctx.now, ctx.net) else {
            return reply_reset(syn.ip, segment, ctx);
        };
        let Some((target, verdict)) = decided::judge(&syn, permitted.remote, ctx) else {
            return;
        };
        let victim = match self.admit_guest(&key, frame, ctx) {
            GuestAdmission::Admitted { victim } => victim,
            GuestAdmission::Refused => {
                decided::release(&key, ctx.net);
                return refuse_by_limit(&syn, ctx);
            }
            GuestAdmission::HandedOver => return decided::release(&key, ctx.net),
        };
        if let Err(winner) = ctx.net.claim(&key.into()) {
            ctx.net.hand_over(winner, frame);
            return;
        }
        let is_dns = is_to_forwarder(&key, ctx.net);
        if is_dns {
            self.make_room_for_dns(burst, ctx);
        }
        self.make_room(ctx);
        if victim.is_none() && ctx.net.is_full() {
            // A connection keeps its slot until the link has accepted its reset.
            ctx.net.counters.flows_refused += 1;
            ctx.net.release(&key.into());
            return refuse_by_limit(&syn, ctx);
        }
        let (target, mut negotiation) = Negotiation::begin(&key, target, ctx.now, ctx.net);
        let timeout = ctx.net.config.connect_timeout;
        let timeout = timeout.or(negotiation.as_ref().map(|_| NEGOTIATION_TIMEOUT));
        let give_up = timeout.map(|after| ctx.now + after);
        let iss = self.first_seq(&key, ctx.now);
        let mut connection = Connection::new(key, TcpState::Connecting { give_up }, iss, ctx.now);
        connection.apply_syn(segment, ctx.net.throttle.mtu(ctx.net.mtu));
        connection.up.queries = is_dns.then(|| Queries::new(ctx.now));
        let (index, generation) = self.connections.vacant();
        let id = ctx.net.flow(Kind::Tcp, index, generation);
        ctx.net.counters.tcp_opened += 1;
        connection.redirected = target.is_redirected();
        if permitted.on_proof {
            connection.require_proof();
        }
        let grounds = Grounds {
            rule: permitted.ground,
            verdict,
            proxy: negotiation.as_ref().map(|_| DecisionGround::Proxy),
        };
        let reported = (events::target(&key, target, ctx.net), grounds);
        let opened = match &mut negotiation {
            Some(negotiation) => negotiation.connect(id, ctx.host),
            None => target.open(id, ctx.host),
        };
        match opened {
            Err(failure) => {
                ctx.net.release(&key.into());
                let reason = match negotiation {
                    Some(_) => CloseReason::ProxyFailed(failure),
                    None => CloseReason::ConnectFailed(failure),
                };
                events::report_failed(id, &key, reported, reason, (ctx.net, ctx.now));
                self.report_failure(&key, segment.seq, reason, ctx);
            }
            Ok((socket, progress)) => {
                // The guest retransmits its SYN. It is not answered, because the link has no room for an answer either.
                let sending = self.send_reset_to_victim(victim, ctx);
                if sending == Sending::LinkFull {
                    ctx.net.release(&key.into());
                    return ctx.host.abort(socket);
                }
                connection.socket = Some(socket);
                self.add(connection, reported, ctx);
                self.negotiations.extend(negotiation.map(|it| (index, it)));
                if is_dns {
                    self.list_dns(id);
                }
                self.end_victim(victim, ctx);
                match progress {
                    Connect::Done => self.established(index, ctx),
                    Connect::Pending => self.flush(index, &[], ctx),
                }
            }
        }
    }

    /// Checks whether the limits on flows admit a connection of the guest, and counts it against the rate if so. Nothing
    /// is evicted yet.
    fn admit_guest<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        key: &ConnectionKey,
        frame: &Frame<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> GuestAdmission {
        let is_dns = is_to_forwarder(key, ctx.net);
        let may_make_room = !self.waiting.is_empty() || ctx.net.can_reclaim() || is_dns && self.dns_is_full();
        let mut victim = None;
        if !may_make_room {
            // Connections to the DNS forwarder belong to the first worker, and other workers would hand them back.
            if !is_dns {
                let routed = ctx.net.hand_over_to_evict(frame);
                if routed == Routed::HandedOver {
                    return GuestAdmission::HandedOver;
                }
            }
            if ctx.net.is_full() {
                victim = self.idlest_half_closed(None, ctx);
                if victim.is_none() {
                    self.probe_some(ctx);
                }
            }
        }
        let capacity = Capacity::new(may_make_room || victim.is_some());
        match ctx.net.admit(capacity, FlowOpener::Guest, ctx.now) {
            Admission::Admitted => GuestAdmission::Admitted { victim },
            Admission::Refused => GuestAdmission::Refused,
        }
    }

    /// Continues after the connect has succeeded: with the handshake with the proxy, or with the guest's SYN.
    fn established<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        match self.negotiations.get_mut(&index) {
            Some(negotiation) => {
                negotiation.is_connected = true;
                self.negotiate(index, ctx);
            }
            None => self.answer_syn(index, ctx),
        }
    }

    /// Sends the SYN-ACK, unless the policy refuses the destination by now.
    pub(super) fn answer_syn<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let connection = self.connections.at_mut(index);
        let took = ctx.now.since(connection.opened);
        let standing = match connection.is_kept {
            false => standing(connection, ctx.now, ctx.net),
            true if is_reachable(connection, ctx.net) => Standing::Permitted,
            true => Standing::Refused,
        };
        if standing == Standing::Refused || reaches_host(connection, took, ctx) {
            return self.prohibit(index, ctx);
        }
        if standing == Standing::OnProof && connection.proof.is_none() {
            connection.require_proof();
        }
        ctx.net
            .histograms
            .tcp_connect_seconds
            .count(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        connection.state = TcpState::SynReceived;
        connection.pending.handshake = true;
        self.flush(index, &[], ctx);
    }

    /// Resets a connection on both sides because the policy refuses its destination.
    pub(super) fn prohibit<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        ctx.net.counters.policy_refused += 1;
        self.connections.at_mut(index).ends_by(CloseReason::Policy);
        if let Some(socket) = self.connections.at_mut(index).socket.take() {
            ctx.host.abort(socket);
        }
        self.reset(index, ctx);
    }

    /// Handles an event of a host socket whose connect, or handshake with the proxy, is pending.
    pub(super) fn connected<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let negotiation = self.negotiations.get(&index);
        if negotiation.is_some_and(|negotiation| negotiation.is_connected) {
            return self.negotiate(index, ctx);
        }
        let connection = self.connections.at_mut(index);
        let Some(socket) = &mut connection.socket else {
            return;
        };
        match ctx.host.tcp_connected(socket) {
            Ok(()) => self.established(index, ctx),
            Err(Failure::WouldBlock) => {}
            Err(failure) => self.connect_failed(index, failure, ctx),
        }
    }

    /// Connects to the next address of the proxy, or refuses the guest's SYN.
    fn connect_failed<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        mut failure: Failure,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let id = self.id(index, ctx.net);
        let connection = self.connections.at_mut(index);
        let negotiation = self.negotiations.get_mut(&index);
        if let Some(negotiation) = negotiation.filter(|it| it.has_next()) {
            if let Some(socket) = connection.socket.take() {
                ctx.host.close(socket);
            }
            match negotiation.connect(id, ctx.host) {
                Ok((socket, progress)) => {
                    connection.socket = Some(socket);
                    return match progress {
                        Connect::Done => self.established(index, ctx),
                        Connect::Pending => {}
                    };
                }
                Err(last) => failure = last,
            }
        }
        let reason = self.open_failed(index, failure);
        self.refuse(index, reason, ctx);
    }

    /// Refuses the guest's SYN because the host connection could not be opened, and removes the connection.
    pub(super) fn refuse<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        reason: CloseReason,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let connection = self.connections.at_mut(index);
        connection.ends_by(reason);
        let (key, isn) = (connection.key, (connection.up.next - 1).0);
        self.report_failure(&key, isn, reason, ctx);
        self.remove(index, ctx);
    }

    /// Reports to the guest that the host connection could not be opened: by an ICMP error if the host's kernel has reported a
    /// reason about the destination, and by a reset.
    fn report_failure<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        key: &ConnectionKey,
        isn: u32,
        reason: CloseReason,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if reason.failure() == Some(Failure::Exhausted) {
            ctx.net.counters.host_exhausted += 1;
        }
        match reason {
            CloseReason::ProxyRefused(_) => ctx.net.counters.proxy_refused += 1,
            CloseReason::ProxyFailed(_) => ctx.net.counters.proxy_failed += 1,
            _ => ctx.net.counters.tcp_connect_failed += 1,
        }
        if let CloseReason::ConnectFailed(failure) = reason {
            super::unreachable::send_error(key, isn, failure, ctx);
        }
        send_reset(key, 0, isn.wrapping_add(1), Flags::RST.and(Flags::ACK), ctx);
    }

    /// Returns the id of the flow that the next connection gets.
    pub(super) fn vacant(&mut self, net: &Net) -> FlowId {
        let (index, generation) = self.connections.vacant();
        net.flow(Kind::Tcp, index, generation)
    }

    /// Sends a reset to the guest of the half-closed connection `victim` that a new flow will replace. If the link is
    /// full, the new flow is refused and counted, because the victim would keep its slot until there is room.
    pub(super) fn send_reset_to_victim<H, T: Transmit>(
        &self,
        victim: Option<FlowId>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Sending {
        let Some(victim) = victim else {
            return Sending::Done;
        };
        let sending = self.connections.at(victim.index).send_reset(ctx);
        ctx.net.counters.flows_refused += u64::from(sending == Sending::LinkFull);
        sending
    }

    /// Removes the half-closed connection that a new flow replaces, after [`Self::send_reset_to_victim`]. The new flow
    /// has its slot already, because its socket was registered under the slot that was free before.
    pub(super) fn end_victim<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        victim: Option<FlowId>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if let Some(victim) = victim {
            self.end_half_closed(victim, ctx);
        }
    }

    /// Returns an initial sequence number (RFC 6528): a clock with a period of 4 us, plus a keyed hash of both ends.
    pub(super) fn first_seq(&self, key: &ConnectionKey, now: Instant) -> Seq {
        let clock = now.0 / 4_000;
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
        Seq(self.table.sequence_hash(key).wrapping_add(clock) as u32)
    }
}

/// A SYN of the guest that belongs to no connection.
#[derive(Clone, Copy)]
pub(super) struct OpeningSegment<'f, 'a> {
    pub(super) key: ConnectionKey,
    pub(super) frame: &'f Frame<'a>,
    pub(super) ip: &'f Ip,
    pub(super) segment: &'f frame::Tcp,
}

/// Decision about a connection of the guest, subject to the limits on flows.
enum GuestAdmission {
    /// The connection may be opened.
    Admitted {
        /// Half-closed connection that the new one replaces.
        victim: Option<FlowId>,
    },
    /// A limit does not permit the connection.
    Refused,
    /// The SYN was handed over to another worker.
    HandedOver,
}

/// Refuses a connection that a limit on flows does not permit.
fn refuse_by_limit<H, T: Transmit>(syn: &OpeningSegment<'_, '_>, ctx: &mut Ctx<'_, H, T>) {
    let refused = events::ends(&syn.key, false);
    ctx.net.report_refused(refused, RefusalReason::Limit, ctx.now);
    reply_reset(syn.ip, syn.segment, ctx);
}

/// Returns the host-side destination of a connection that the guest opens, or counts a refusal by the policy.
fn destination(
    key: &ConnectionKey,
    dns: Option<SocketAddr>,
    now: Instant,
    net: &mut Net,
) -> Option<Permitted> {
    let (written, port) = (key.remote.ip(), key.remote.port());
    let checked = if is_to_forwarder(key, net) {
        match net.policy.egress.decide_stream_to_forwarder(key.remote, now) {
            Decision::Allowed(ground) => return dns.map(|remote| Permitted::new(remote, ground)),
            Decision::AllowedOnProof => return None,
            Decision::Refused(ground) => Err(ground.into()),
        }
    } else {
        net.check_egress(EgressProtocol::Tcp, written, port, now)
    };
    if let Err(refused) = checked {
        net.counters.policy_refused += 1;
        net.report_refused(events::ends(key, false), refused.into(), now);
    }
    checked.ok()
}

/// Returns true if a connection that the guest opens leads to the DNS forwarder.
pub(super) fn is_to_forwarder(key: &ConnectionKey, net: &Net) -> bool {
    net.config.plan.is_dns(key.remote.ip()) && key.remote.port() == DNS_PORT
}

/// Returns the policy's decision about an existing connection; the host's addresses and the rules may have changed since it was
/// opened.
///
/// A connection of a published port's client is permitted even if the client's address becomes the host's: a published
/// port accepts clients on the host, too, and the guest's data still reaches only that client. Connections to the DNS
/// forwarder are permitted, too, because its resolvers are the operator's choice and may be the host's own addresses.
pub(super) fn standing<S>(connection: &Connection<S>, now: Instant, net: &Net) -> Standing {
    let to = connection.key.remote;
    if !is_judged(connection) {
        return Standing::Permitted;
    }
    if is_to_forwarder(&connection.key, net) {
        return match net.policy.egress.names_domains() {
            true => Standing::Refused,
            false => Standing::Permitted,
        };
    }
    if net.policy.translate(EgressProtocol::Tcp, to).is_err() {
        return Standing::Refused;
    }
    let proved = connection.proof.as_ref().and_then(|proof| proof.hello());
    match net.policy.standing(to, connection.opened, proved, now) {
        // Its data was sent without a proof.
        Standing::OnProof if connection.proof.is_none() && connection.state == TcpState::Open => {
            Standing::Refused
        }
        standing => standing,
    }
}

/// Returns true if the policy, without the egress rules, permits an existing connection after a change of the host's
/// addresses.
pub(super) fn is_reachable<S>(connection: &Connection<S>, net: &Net) -> bool {
    !is_judged(connection)
        || is_to_forwarder(&connection.key, net)
        || net
            .policy
            .translate(EgressProtocol::Tcp, connection.key.remote)
            .is_ok()
}

/// Returns true if the policy applies to a connection: one that the guest has opened and that has not ended.
pub(super) const fn is_judged<S>(connection: &Connection<S>) -> bool {
    connection.listener.is_none() && !matches!(connection.state, TcpState::TimeWait { .. } | TcpState::Failed)
}

/// Returns true if a connect that succeeded after the duration `took` has reached the host itself although the policy
/// does not permit it. The engine's list of the host's addresses is updated by messages, later than the kernel's.
fn reaches_host<H: Host, T>(
    connection: &mut Connection<H::Socket>,
    took: Duration,
    ctx: &mut Ctx<'_, H, T>,
) -> bool {
    let to = connection.key.remote;
    // Otherwise the destination is the host itself intentionally: its loopback by a translated address, its resolver, or the
    // target of a guest forward.
    if connection.redirected {
        return false;
    }
    let policy = &ctx.net.policy;
    let is_translated = policy.translate(EgressProtocol::Tcp, to) != Ok(to);
    if policy.host_addresses || is_translated || policy.forward(EgressProtocol::Tcp, to).is_some() {
        return false;
    }
    let reaches = |socket| ctx.host.tcp_reaches_host(socket, to.ip(), took);
    connection.socket.as_mut().is_some_and(reaches)
}

/// Port of DNS (IANA "Service Name and Transport Protocol Port Number Registry").
const DNS_PORT: u16 = 53;
