//! Opening of connections: the guest's SYN becomes a connect, a client on a published port becomes a SYN.
//!
//! The guest sees a SYN-ACK only when the host connection stands, so what it sees of a destination is the truth.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use pontoon_wire::emit;
use pontoon_wire::frame::{self, Flags, Ip};
use pontoon_wire::vnet::{Offload, Segmentation};
use rand_chacha::rand_core::RngCore;

use super::connection::{Connection, Key, SCALE, State, link_mss};
use super::recovery::Retry;
use super::seq::Seq;
use super::{ACCEPT_RETRY, Tcp};
use crate::ctx::{Ctx, Net, Routed};
use crate::dns::stream::Queries;
use crate::egress::{Destination, Protocol};
use crate::host::{Accepted, Connect};
use crate::link::Refused;
use crate::{Failure, FlowId, Frame, Host, Instant, Kind, Transmit};

/// Connections taken from one listener before others have their turn.
const ACCEPTS: usize = 64;
/// More clients than can wait at one listener, whose backlog is 4,096 at most.
const BACKLOG: usize = 4_097;
/// Fresh ports tried for a client that appears as the gateway.
const PORT_TRIES: usize = 16;
/// First port that such a client may appear with: above what services use (RFC 6056 section 3.2).
const FIRST_PORT: u16 = 1024;
/// Handshake segments sent in vain before giving up: with the doubling timeout, after 25 s.
const MOST_SYNS: u8 = 7;

impl<S> Tcp<S> {
    /// The guest's SYN.
    pub(super) fn open<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        key: Key,
        frame: &Frame<'_>,
        ip: &Ip,
        segment: &frame::Tcp,
        dns: Option<SocketAddr>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let target = destination(&key, dns, ctx.now, ctx.net);
        let mut victim = None;
        if target.is_some() {
            self.make_room(ctx);
            // Streams to the forwarder are the first worker's, which other workers would hand them back to.
            if !is_to_forwarder(&key, ctx.net) {
                let routed = ctx.net.hand_over_to_evict(frame);
                if routed == Routed::HandedOver {
                    return;
                }
            }
            if ctx.net.is_full() {
                victim = self.idlest_half_closed(None, ctx);
                if victim.is_none() {
                    self.probe_some(ctx);
                }
            }
        }
        let Some(target) = target.filter(|_| admit(victim, ctx)) else {
            return reply_reset(ip, segment, ctx);
        };
        if let Err(winner) = ctx.net.claim(&key.into()) {
            ctx.net.hand_over(winner, frame);
            return;
        }
        let give_up = ctx.net.config.connect_timeout.map(|after| ctx.now + after);
        let iss = self.first_seq(&key, ctx.now);
        let mut connection = Connection::new(key, State::Connecting { give_up }, iss, ctx.now);
        connection.heard_syn(segment, ctx.net.throttle.mtu(ctx.net.mtu));
        connection.up.queries = is_to_forwarder(&key, ctx.net).then(Queries::default);
        let (index, generation) = self.connections.vacant();
        let id = ctx.net.flow(Kind::Tcp, index, generation);
        ctx.net.counters.tcp_opened += 1;
        match ctx.host.tcp_connect(id, target) {
            Err(failure) => {
                ctx.net.release(&key.into());
                self.report_failure(&key, segment.seq, failure, ctx);
            }
            Ok((socket, progress)) => {
                // The guest repeats its SYN: there is no room on the link for an answer either.
                if !self.send_reset_to_victim(victim, ctx) {
                    ctx.net.release(&key.into());
                    return ctx.host.abort(socket);
                }
                connection.socket = Some(socket);
                self.add(connection, ctx);
                self.end_victim(victim, ctx);
                match progress {
                    Connect::Done => self.established(index, ctx),
                    Connect::Pending => self.flush(index, &[], ctx),
                }
            }
        }
    }

    /// The connect has succeeded: answers the guest's SYN, unless policy refuses the destination by now.
    fn established<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let connection = self.connections.at_mut(index);
        let took = ctx.now.since(connection.opened);
        if !is_permitted(connection, ctx.now, ctx.net) || reaches_host(connection, took, ctx) {
            return self.prohibit(index, ctx);
        }
        ctx.net
            .connect_times
            .count(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        connection.state = State::SynReceived;
        connection.pending.handshake = true;
        self.flush(index, &[], ctx);
    }

    /// Resets a connection, on both sides, that policy refuses by now.
    pub(super) fn prohibit<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        ctx.net.counters.policy_refused += 1;
        if let Some(socket) = self.connections.at_mut(index).socket.take() {
            ctx.host.abort(socket);
        }
        self.reset(index, ctx);
    }

    /// An event on a socket whose connect is pending.
    pub(super) fn connected<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let connection = self.connections.at_mut(index);
        let Some(socket) = &mut connection.socket else {
            return;
        };
        match ctx.host.tcp_connected(socket) {
            Ok(()) => self.established(index, ctx),
            Err(Failure::WouldBlock) => {}
            Err(failure) => self.refuse(index, failure, ctx),
        }
    }

    /// The host connection will not be: tells the guest, and forgets it.
    pub(super) fn refuse<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        failure: Failure,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let connection = self.connections.at(index);
        let (key, isn) = (connection.key, (connection.up.next - 1).0);
        self.report_failure(&key, isn, failure, ctx);
        self.remove(index, ctx);
    }

    /// Reports to the guest why its SYN is refused: by ICMP where the host gave a reason, then by a reset.
    fn report_failure<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        key: &Key,
        isn: u32,
        failure: Failure,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        ctx.net.counters.tcp_connect_failed += 1;
        if failure == Failure::Exhausted {
            ctx.net.counters.host_exhausted += 1;
        }
        super::unreachable::tell(key, isn, failure, ctx);
        send_reset(key, 0, isn.wrapping_add(1), Flags::RST.and(Flags::ACK), ctx);
    }

    /// Takes the clients that wait at a published port, some of them at a time.
    pub fn handle_listener<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        listener: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        // Another event may have named it since.
        if self.take_clients(listener, ACCEPTS, ctx) && !ctx.net.ready.contains(&listener) {
            ctx.net.ready.push_back(listener);
        }
    }

    /// Takes all clients that wait at a port that is published no more: those that are left would be reset.
    pub fn drain_listener<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        listener: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let _others_come = self.take_clients(listener, BACKLOG, ctx);
    }

    /// Takes up to `most` clients; true where there may be more.
    fn take_clients<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        listener: FlowId,
        most: usize,
        ctx: &mut Ctx<'_, H, T>,
    ) -> bool {
        for _ in 0..most {
            // Before the client has a slot, which would be another if one were freed then.
            while ctx.net.is_full() && self.forget_oldest(ctx) {}
            if let Some(published) = ctx.net.config.published.get(listener.index as usize) {
                let port = published.share_key();
                while let Some(share) = ctx.net.full_share(port)
                    && self.forget_oldest_of(share, ctx)
                {}
            }
            let (index, generation) = self.connections.vacant();
            let id = ctx.net.flow(Kind::Tcp, index, generation);
            match ctx.host.tcp_accept(listener.index, id) {
                Ok(accepted) => self.accept(listener.index, accepted, ctx),
                Err(Failure::Exhausted) => {
                    // Looked at again when a connection ends: its descriptor is then free.
                    ctx.net.counters.host_exhausted += 1;
                    if !self.waiting_for_descriptor.contains(&listener) {
                        self.waiting_for_descriptor.push(listener);
                    }
                    self.accept_retry_at.get_or_insert(ctx.now + ACCEPT_RETRY);
                    return false;
                }
                // No other client waits, or the port is published no more.
                Err(Failure::WouldBlock | Failure::Invalid) => return false,
                // A client that is gone already (accept(2), "Error handling"): the next one.
                Err(_gone) => {}
            }
        }
        true
    }

    fn accept<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        listener: u32,
        accepted: Accepted<S>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let published = ctx.net.config.published[listener as usize];
        let Some(guest) = ctx.net.config.addresses.guest(published.host.ip()) else {
            return ctx.host.abort(accepted.socket);
        };
        let guest = SocketAddr::new(guest, published.guest_port);
        let Some(victim) = self.room_for_client(published.share_key(), ctx) else {
            return ctx.host.abort(accepted.socket);
        };
        let Some(key) = Some(())
            .filter(|()| admit(victim, ctx))
            .and_then(|()| self.appear(guest, accepted.peer, ctx))
        else {
            return ctx.host.abort(accepted.socket);
        };
        let reused = self.find(&key);
        if !self.send_reset_to_victim(victim, ctx) {
            // A key that is reused still belongs to the connection in TIME_WAIT.
            if reused.is_none() {
                ctx.net.release(&key.into());
            }
            return ctx.host.abort(accepted.socket);
        }
        let iss = self.first_seq(&key, ctx.now);
        let mut connection = Connection::new(key, State::SynSent, iss, ctx.now);
        connection.socket = Some(accepted.socket);
        connection.listener = Some(published.share_key());
        connection.pending.handshake = true;
        ctx.net.counters.tcp_accepted += 1;
        let index = self.add(connection, ctx);
        if let Some(old) = reused {
            self.replace(old, ctx);
        }
        self.end_victim(victim, ctx);
        self.flush(index, &[], ctx);
    }

    /// The half-closed connection that is to give way to a client, if one has to: where no datagram flow does. `None` where
    /// there is no room.
    fn room_for_client<H, T>(&mut self, port: u32, ctx: &mut Ctx<'_, H, T>) -> Option<Option<FlowId>> {
        if let Some(share) = ctx.net.full_share(port) {
            let victim = self.idlest_half_closed(Some(share), ctx);
            ctx.net.counters.tcp_share_refused += u64::from(victim.is_none());
            return victim.map(Some);
        }
        if !ctx.net.is_full() || ctx.net.reclaim() {
            return Some(None);
        }
        let victim = self.idlest_half_closed(None, ctx);
        if victim.is_none() {
            self.probe_some(ctx);
            ctx.net.counters.flows_refused += 1;
        }
        victim.map(Some)
    }

    /// Sends the reset of the half-closed connection that a new flow replaces. Returns false if the link has no room
    /// for it: the victim would keep its slot until there is, so the new flow is refused, which is counted, and the
    /// victim stays.
    fn send_reset_to_victim<H, T: Transmit>(&self, victim: Option<FlowId>, ctx: &mut Ctx<'_, H, T>) -> bool {
        let Some(victim) = victim else {
            return true;
        };
        let sent = self.connections.at(victim.index).send_reset(ctx);
        ctx.net.counters.flows_refused += u64::from(!sent);
        sent
    }

    /// Removes the half-closed connection that a new flow replaces, after [`Self::send_reset_to_victim`]. The new flow
    /// has its slot by then: its socket is registered under the slot that was vacant before.
    fn end_victim<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        victim: Option<FlowId>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if let Some(victim) = victim {
            self.end_half_closed(victim, ctx);
        }
    }

    /// Returns the addresses by which a client appears to the guest: as itself, or as the gateway with a fresh port.
    /// Nothing but a connection of ours in TIME_WAIT has that key, which is claimed.
    fn appear<H, T>(&self, guest: SocketAddr, peer: SocketAddr, ctx: &mut Ctx<'_, H, T>) -> Option<Key> {
        let shown = ctx.net.policy.visible_client_addr(peer.ip());
        if shown == peer.ip() {
            let key = Key { guest, remote: peer };
            // Otherwise it is the same client's port, by way of another address of the host.
            let free = match self.find(&key) {
                Some(old) => matches!(self.connections.at(old).state, State::TimeWait { .. }),
                None => ctx.net.claim(&key.into()).is_ok(),
            };
            if free {
                return Some(key);
            }
        }
        let gateway: IpAddr = ctx.net.config.addresses.gateway(guest.ip())?;
        (0..PORT_TRIES).find_map(|_| {
            let spread = u32::from(u16::MAX - FIRST_PORT);
            let port = FIRST_PORT + u16::try_from(ctx.net.random.next_u32() % spread).expect("below spread");
            let key = Key {
                guest,
                remote: SocketAddr::new(gateway, port),
            };
            let free = self.find(&key).is_none() && ctx.net.claim(&key.into()).is_ok();
            free.then_some(key)
        })
    }

    /// RFC 6528: a clock of 4 us and a keyed hash of both ends.
    fn first_seq(&self, key: &Key, now: Instant) -> Seq {
        let clock = now.0 / 4_000;
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
        Seq(self.table.hash(key).wrapping_add(clock) as u32)
    }
}

impl<S> Connection<S> {
    /// Sends our SYN or SYN-ACK, for the first time or again.
    pub(super) fn send_handshake<H, T: Transmit>(&mut self, id: FlowId, ctx: &mut Ctx<'_, H, T>) {
        let answer = self.state == State::SynReceived;
        let syn = emit::Syn {
            mss: link_mss(self.key.guest, ctx.net.mtu),
            window_scale: (!answer || self.up.scale > 0).then_some(SCALE),
            sack_permitted: !answer || self.down.sack,
        };
        let flags = if answer {
            Flags::SYN.and(Flags::ACK)
        } else {
            Flags::SYN
        };
        let iss = self.down.una;
        let sent = self.send_bare(id, iss, flags, Some(syn), ctx);
        let down = &mut self.down;
        if !sent {
            // The link may have no room for any length of time, and the state needs a timer.
            let retry = (ctx.now + down.rtt.timeout(), Retry::Timeout);
            down.recovery.retry.get_or_insert(retry);
            return;
        }
        self.pending.handshake = false;
        if down.nxt == iss {
            down.rtt.sent(iss + 1, ctx.now);
        } else {
            down.rtt.resent();
        }
        down.nxt = iss + 1;
        down.max = iss + 1;
        down.recovery.retry = Some((ctx.now + down.rtt.timeout(), Retry::Timeout));
    }

    /// Handles the timer of a handshake segment. Returns false if the last one got no answer.
    pub(super) fn retry_handshake(&mut self, now: Instant) -> bool {
        if self.down.recovery.retry.is_some_and(|(at, _)| now >= at) {
            self.down.rtt.backoff += 1;
            self.pending.handshake = true;
            self.down.recovery.retry = Some((now + self.down.rtt.timeout(), Retry::Timeout));
        }
        self.down.rtt.backoff < MOST_SYNS
    }
}

/// Counts a new flow against `--max-flow-rate`, and returns true if that and `--max-flows` allow it. A flow that
/// replaces `victim` needs no room of its own.
fn admit<H, T>(victim: Option<FlowId>, ctx: &mut Ctx<'_, H, T>) -> bool {
    victim.is_some() && ctx.net.count_against_rate(ctx.now) || ctx.net.admit(ctx.now)
}

/// Returns the host-side destination of a connection that the guest opens, or counts a refusal by policy.
fn destination(key: &Key, dns: Option<SocketAddr>, now: Instant, net: &mut Net) -> Option<SocketAddr> {
    let (written, port) = (key.remote.ip(), key.remote.port());
    let target = if is_to_forwarder(key, net) {
        let to = Destination {
            protocol: Protocol::Tcp,
            written,
            remote: written,
            embedded: &[],
            port: Some(port),
        };
        match net.policy.egress.check_stream_to_forwarder(&to, now) {
            true => return dns,
            false => None,
        }
    } else {
        let remote = net.policy.check_egress(Protocol::Tcp, written, port, now);
        remote.ok().map(|remote| SocketAddr::new(remote, port))
    };
    net.counters.policy_refused += u64::from(target.is_none());
    target
}

/// Returns true if a connection that the guest opens leads to the DNS forwarder.
fn is_to_forwarder(key: &Key, net: &Net) -> bool {
    net.config.addresses.is_dns(key.remote.ip()) && key.remote.port() == DNS_PORT
}

/// Returns true if policy lets a connection be: the host's addresses and the rules may have changed since it was opened.
///
/// A client's connection stays when the client's address becomes the host's: a published port lets clients of the host
/// in, too, and what the guest sends on it still finds nothing but that client. So do connections to the forwarder: its
/// resolvers are the operator's choice, the host's own addresses among them.
pub(super) fn is_permitted<S>(connection: &Connection<S>, now: Instant, net: &Net) -> bool {
    let to = connection.key.remote;
    if !is_judged(connection) {
        return true;
    }
    if is_to_forwarder(&connection.key, net) {
        return !net.policy.egress.names_domains();
    }
    net.policy.translate_destination(to.ip()).is_ok()
        && net.policy.allows(Protocol::Tcp, to.ip(), Some(to.port()), now)
}

/// As [`is_permitted`], without the user's rules: after a change of the host's addresses alone.
pub(super) fn is_reachable<S>(connection: &Connection<S>, net: &Net) -> bool {
    !is_judged(connection)
        || is_to_forwarder(&connection.key, net)
        || net
            .policy
            .translate_destination(connection.key.remote.ip())
            .is_ok()
}

/// Returns true if policy decides about a connection: one that the guest opened and that has not ended.
const fn is_judged<S>(connection: &Connection<S>) -> bool {
    connection.listener.is_none() && !matches!(connection.state, State::TimeWait { .. } | State::Failed)
}

/// Returns true if a connect that succeeded after `took` has reached the host itself, which policy does not let it do.
/// The host's addresses come by message, later than the kernel acts on them.
fn reaches_host<H: Host, T>(
    connection: &mut Connection<H::Socket>,
    took: Duration,
    ctx: &mut Ctx<'_, H, T>,
) -> bool {
    let to = connection.key.remote.ip();
    // Elsewhere the host itself is where it is to go: its loopback by another address, or its resolver.
    if ctx.net.policy.host_addresses || ctx.net.policy.translate_destination(to) != Ok(to) {
        return false;
    }
    let reaches = |socket| ctx.host.tcp_reaches_host(socket, to, took);
    connection.socket.as_mut().is_some_and(reaches)
}

/// Well-known port of DNS.
const DNS_PORT: u16 = 53;

/// Answers a segment that belongs to nothing (RFC 9293 section 3.10.7.1).
pub(super) fn reply_reset<H, T: Transmit>(ip: &Ip, segment: &frame::Tcp, ctx: &mut Ctx<'_, H, T>) {
    let key = Key {
        guest: SocketAddr::new(ip.source, segment.source_port),
        remote: SocketAddr::new(ip.destination, segment.destination_port),
    };
    if segment.flags.has(Flags::ACK) {
        send_reset(&key, segment.ack, 0, Flags::RST, ctx);
        return;
    }
    let len = u32::try_from(segment.payload_len).expect("a frame is at most 64 KiB")
        + u32::from(segment.flags.has(Flags::SYN))
        + u32::from(segment.flags.has(Flags::FIN));
    send_reset(
        &key,
        0,
        segment.seq.wrapping_add(len),
        Flags::RST.and(Flags::ACK),
        ctx,
    );
}

/// Sends a reset to the guest. False: the link has no room, try again when it has.
pub(super) fn send_reset<H, T: Transmit>(
    key: &Key,
    seq: u32,
    ack: u32,
    flags: Flags,
    ctx: &mut Ctx<'_, H, T>,
) -> bool {
    debug_assert!(flags.has(Flags::RST), "a reset");
    send_stray(key, seq, ack, flags, ctx)
}

/// Sends a segment of no connection of ours to the guest. False: the link has no room.
pub(super) fn send_stray<H, T: Transmit>(
    key: &Key,
    seq: u32,
    ack: u32,
    flags: Flags,
    ctx: &mut Ctx<'_, H, T>,
) -> bool {
    let head = emit::tcp(
        ctx.net.ether(),
        super::ip(key.remote, key.guest),
        emit::Tcp {
            source_port: key.remote.port(),
            destination_port: key.guest.port(),
            seq,
            ack,
            flags,
            window: 0,
            syn: None,
            sack: &[],
        },
        0,
    );
    let offload = Offload {
        checksum: head.checksum,
        segmentation: Segmentation::Whole,
    };
    match ctx.link.send(offload, head.bytes(), &[]) {
        Ok(()) => {
            ctx.net.counters.frames_down += 1;
            true
        }
        Err(refused) => {
            ctx.net.counters.link_refused += 1;
            refused == Refused::Rejected
        }
    }
}
