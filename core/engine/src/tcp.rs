//! TCP: translation between the guest's connections and host sockets, without a TCP stack in between.
//!
//! Sequence numbers map onto the host socket's queues. To the guest ("down"): the head of the receive queue is the
//! oldest byte that the guest has not acknowledged; data is sent by a peek, discarded when it is acknowledged, and
//! retransmitted by another peek. From the guest ("up"): bytes that the socket has accepted are acknowledged; others
//! wait in the bounded buffer pool and close the window.
//!
//! Inputs (segments, socket events, timers) only record pending work; `Tcp::flush` performs all of it once for each flow and
//! burst, in the order in which one segment can carry the most: deliver, discard, resend, fill, acknowledge.

mod accept;
mod connection;
mod decided;
mod dns;
mod down;
mod enforce;
mod events;
mod flush;
mod half_closed;
mod handshake;
mod idle;
mod joined;
mod lost;
mod negotiation;
mod open;
pub(crate) mod path_mtu;
mod proof;
mod recovery;
mod reorder;
mod rtt;
mod segment;
mod seq;
mod stalled;
mod state;
mod stray;
mod table;
mod traffic;
mod unreachable;
mod up;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use arrayvec::ArrayVec;
use pontoon_wire::emit;
use pontoon_wire::frame::{self, Flags, Ip};
use rand_chacha::ChaCha12Rng;
use vm_memory::VolatileSlice;

use self::accept::AcceptedClient;
use self::connection::{Connection, ConnectionKey, TcpState};
use self::half_closed::HalfClosed;
use self::handshake::HandshakeRetry;
use self::joined::JoinedTable;
use self::negotiation::Negotiation;
use self::open::OpeningSegment;
use self::segment::Verdict;
use self::table::ConnectionTable;
use crate::ctx::{Completion, Ctx, Eviction, Net, Routed};
use crate::decider::DecisionToken;
use crate::egress::Unproven;
use crate::flow_events::{CloseReason, Grounds};
use crate::slab::Slab;
use crate::table::Secret;
use crate::{Failure, FlowId, Frame, Host, Kind, Readiness, Transmit};

/// TTL or hop limit of segments to the guest (IANA "IP Time To Live Parameter").
const HOP_LIMIT: u8 = 64;
/// Duration of TIME-WAIT, for a connection that the engine has closed first (RFC 9293 section 3.4.1, with Linux's
/// segment lifetime of 30 s). By then a guest retransmits its FIN every 16 s. A later FIN is answered by a reset, which
/// a program that still reads would receive as an error.
const TIME_WAIT: Duration = Duration::from_secs(60);
/// Maximum number of connections in TIME-WAIT in one worker; beyond it, the oldest are removed early.
const MOST_WAITING: usize = 8192;
/// Maximum number of slices of guest memory that one burst gathers.
const BURST: usize = 256;

/// TCP data from the guest that one burst has gathered, in order, each slice with the slot of its connection; it is
/// sent to the host sockets when the burst ends.
#[derive(Debug, Default)]
pub struct Burst<'a> {
    parts: ArrayVec<(u32, VolatileSlice<'a>), BURST>,
}

impl Burst<'_> {
    /// Drops the gathered data of the connection in the slot `index`, which was removed.
    pub(crate) fn forget(&mut self, index: u32) {
        self.parts.retain(|&mut (of, _)| of != index);
    }
}

/// The reason why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    /// Both directions of the connection are closed.
    Closed,
    /// The guest's data does not prove the domain of a rule that would permit the connection.
    Unproven(Box<Unproven>),
    /// The host connection has failed, or the guest does not respond any more.
    Failed(Failure),
}

/// The TCP connections of one worker.
#[derive(Debug)]
pub struct Tcp<S> {
    connections: Slab<Connection<S>>,
    /// Connections of clients on this host that do not use the link.
    joined: JoinedTable<S>,
    table: ConnectionTable,
    /// Connections to the DNS forwarder that have a host socket.
    dns: Vec<FlowId>,
    /// Slots of connections with pending work.
    dirty: Vec<u32>,
    /// Connections in TIME-WAIT, oldest first; some of them may have been removed.
    waiting: VecDeque<FlowId>,
    /// Index in `waiting` at which the search for a client of a published port continues.
    next_waiting: usize,
    /// Half-closed idle connections, which may be evicted; some of them may be in use again.
    half_closed: HalfClosed,
    /// Stalled connections, whose guest acknowledges less than the host's receive queue holds, in the order in which
    /// they were detected; some of them may have been removed or be in use again.
    stalled: VecDeque<FlowId>,
    /// Slot at which the search for idle connections to probe continues.
    next_look: u32,
    /// Handshakes with the upstream proxy of connections that are not answered yet, by their slots.
    negotiations: BTreeMap<u32, Negotiation>,
    /// Clients of published ports whose decision is pending.
    undecided: BTreeMap<DecisionToken, AcceptedClient<S>>,
    /// The last of them that was accepted in excess of a limit, because a flow will be evicted for it; it may have been decided.
    undecided_in_excess: Option<DecisionToken>,
}

/// The result of sending a segment without data to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// The segment was sent, or the link has rejected it permanently.
    Done,
    /// The link is full, and the segment has to be sent again when the link has room.
    LinkFull,
}

/// Returns the fields of the IP header of a segment to the guest.
fn ip(from: SocketAddr, to: SocketAddr) -> emit::Ip {
    emit::Ip {
        source: from.ip(),
        destination: to.ip(),
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        dont_fragment: true,
        ident: 0,
    }
}

impl<S> Tcp<S> {
    /// Creates a table without connections.
    #[must_use]
    pub fn new(random: &mut ChaCha12Rng) -> Self {
        Self {
            connections: Slab::default(),
            joined: JoinedTable::default(),
            table: ConnectionTable::new([(); 2].map(|()| Secret::new(random))),
            dns: Vec::new(),
            dirty: Vec::new(),
            waiting: VecDeque::new(),
            next_waiting: 0,
            half_closed: HalfClosed::default(),
            stalled: VecDeque::new(),
            next_look: 0,
            negotiations: BTreeMap::new(),
            undecided: BTreeMap::new(),
            undecided_in_excess: None,
        }
    }

    /// Handles a TCP segment from the guest. `dns` is the resolver to which the DNS forwarder's address is translated
    /// at present.
    pub fn handle_segment<'a, H: Host<Socket = S>, T: Transmit>(
        &mut self,
        frame: &Frame<'a>,
        ip: &Ip,
        segment: &frame::Tcp,
        dns: Option<SocketAddr>,
        burst: &mut Burst<'a>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let key = ConnectionKey {
            guest: SocketAddr::new(ip.source, segment.source_port),
            remote: SocketAddr::new(ip.destination, segment.destination_port),
        };
        let syn = OpeningSegment {
            key,
            frame,
            ip,
            segment,
        };
        let opens =
            segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::RST);
        // Ending the burst may end this connection, so it is done before the connection is looked up.
        if burst.parts.remaining_capacity() < frame.parts.len() {
            self.handle_burst(burst, ctx);
        }
        let Some(index) = self.find(&key) else {
            let routed = ctx.net.hand_over_to_owner(&key.into(), frame);
            if routed == Routed::HandedOver {
                return;
            }
            if opens {
                self.open(syn, dns, burst, ctx);
            } else if decided::is_cancelled(&syn, ctx) {
                ctx.net.counters.tcp_reset_by_guest += 1;
            } else if !segment.flags.has(Flags::RST) {
                ctx.net.counters.tcp_unknown += 1;
                stray::reply_reset(ip, segment, ctx);
            }
            return;
        };
        ctx.net.current_flow = Some(self.id(index, ctx.net));
        match self
            .connections
            .at_mut(index)
            .receive(index, segment, frame, burst, ctx)
        {
            Verdict::Ignored => {}
            Verdict::Changed => self.mark_dirty(index),
            Verdict::Unacceptable => stray::reply_reset(ip, segment, ctx),
            Verdict::Reset => {
                ctx.net.counters.tcp_reset_by_guest += 1;
                burst.forget(index);
                let connection = self.connections.at_mut(index);
                connection.ends_by(CloseReason::GuestReset);
                // A guest that has closed its socket after its FIN answers a probe by a reset; the data that it has
                // sent before is still delivered.
                let forgotten = connection.up.closed && connection.down.recovery.unanswered > 0;
                match connection.socket.take() {
                    Some(socket) if forgotten => ctx.host.close(socket),
                    Some(socket) => ctx.host.abort(socket),
                    None => {}
                }
                self.remove(index, ctx);
            }
            Verdict::Reopened => {
                self.remove(index, ctx);
                self.open(syn, dns, burst, ctx);
            }
        }
    }

    /// Ends a burst: performs all pending work of its connections.
    pub fn handle_burst<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        burst: &mut Burst<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let current = ctx.net.current_flow;
        let mut dirty = core::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            // The entry of a connection that ended within the burst is ignored.
            if !self.connections.contains(index) || !self.connections.at(index).pending.dirty {
                continue;
            }
            let parts: ArrayVec<_, BURST> = burst
                .parts
                .iter()
                .filter(|(of, _)| *of == index)
                .map(|(_, part)| *part)
                .collect();
            let id = self.id(index, ctx.net);
            // A panic in one flow must not prevent the data of the other flows from being sent.
            let completion = ctx.catch_panic(|ctx| self.flush(index, &parts, ctx));
            if completion == Completion::Panicked {
                self.close(id, ctx);
            }
        }
        burst.parts.clear();
        self.dirty = dirty;
        // The burst may continue: a panic in its next frame does not concern the flow that was flushed last.
        ctx.net.current_flow = current;
    }

    /// Handles an event of a connection's host socket.
    pub fn handle_socket<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ready: Readiness,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(connection) = self.connections.get_mut(flow.index, flow.generation) else {
            return;
        };
        let pending = &mut connection.pending;
        pending.readable |= ready.readable || ready.end || ready.error;
        pending.writable |= ready.writable;
        pending.watching &= !ready.writable;
        // A reset ends both directions as well, but is not a FIN: a peek behind the data returns the error.
        pending.error |= ready.error;
        pending.urgent |= ready.urgent;
        pending.end = (pending.end || ready.end) && !pending.error;
        if let TcpState::Connecting { .. } = connection.state {
            return self.connected(flow.index, ctx);
        }
        // Behind the end of the stream, a peek returns no error; before the proof of a name, there is no peek.
        if ready.error
            && (connection.down.eof || connection.is_unproven())
            && let Some(failure) = connection
                .socket
                .as_mut()
                .and_then(|socket| ctx.host.tcp_error(socket))
        {
            return self.end(flow.index, Ended::Failed(failure), ctx);
        }
        self.flush(flow.index, &[], ctx);
    }

    /// Handles the timer of a connection.
    pub fn handle_timeout<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(connection) = self.connections.get_mut(flow.index, flow.generation) else {
            return;
        };
        connection.timer.fired();
        match connection.state {
            TcpState::Connecting { give_up } => {
                if give_up.is_some_and(|at| ctx.now >= at) {
                    let reason = self.open_failed(flow.index, Failure::TimedOut);
                    return self.refuse(flow.index, reason, ctx);
                }
            }
            TcpState::SynReceived | TcpState::SynSent => {
                let retry = connection.retry_handshake(ctx.now);
                if retry == HandshakeRetry::GivenUp {
                    let is_answer = connection.state == TcpState::SynReceived;
                    connection.ends_by(CloseReason::Timeout);
                    if let Some(socket) = connection.socket.take() {
                        ctx.host.abort(socket);
                    }
                    // If only the guest's acknowledgements were lost, the guest has an established connection and needs
                    // a reset.
                    return match is_answer {
                        true => self.reset(flow.index, ctx),
                        false => self.remove(flow.index, ctx),
                    };
                }
            }
            TcpState::Open => {
                if connection.dns_deadline().is_some_and(|at| ctx.now >= at) {
                    ctx.net.counters.dns_streams_closed += 1;
                    connection.ends_by(CloseReason::Timeout);
                    return self.close(flow, ctx);
                }
                let served = match connection.down.recovery.retry {
                    _ if connection.is_proof_late(ctx.now) => Err(Unproven::TimedOut.into()),
                    Some(_) => connection.retry(flow, ctx),
                    None => self.handle_idle(flow, ctx),
                };
                if let Err(ended) = served {
                    return self.end(flow.index, ended, ctx);
                }
            }
            TcpState::TimeWait { until } => {
                if ctx.now >= until {
                    return self.remove(flow.index, ctx);
                }
            }
            TcpState::Failed => {}
        }
        self.flush(flow.index, &[], ctx);
    }

    /// Continues with a connection that has used up its quantum or has found the link full.
    pub fn handle_ready<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(connection) = self.connections.get_mut(flow.index, flow.generation) {
            connection.pending.queued = false;
            connection.pending.parked = false;
            if connection.state == TcpState::Failed {
                self.reset(flow.index, ctx);
            } else {
                self.flush(flow.index, &[], ctx);
            }
        }
    }

    /// Sends the delayed acknowledgement of a connection.
    pub fn handle_delayed_ack<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if let Some(connection) = self.connections.get_mut(flow.index, flow.generation) {
            connection.pending.ack_is_delayed = false;
            if connection.pending.ack_later {
                connection.pending.ack = true;
                self.flush(flow.index, &[], ctx);
            }
        }
    }

    /// Returns true if the connection `flow` still exists.
    pub(crate) fn contains(&self, flow: FlowId) -> bool {
        self.connections.get(flow.index, flow.generation).is_some()
    }

    /// Returns the remote addresses of all connections, as the guest sees them.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        self.connections
            .iter()
            .map(|(_, _, connection)| connection.key.remote.ip())
    }

    /// Performs the pending work of a connection, and ends it if it has closed or failed.
    fn flush<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let id = self.id(index, ctx.net);
        ctx.net.current_flow = Some(id);
        let connection = self.connections.at_mut(index);
        match connection.flush(id, parts, ctx) {
            Ok(()) => {
                connection.arm(id, ctx);
                self.watch_queue(id, ctx);
            }
            Err(ended) => self.end(index, ended, ctx),
        }
    }

    fn end<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ended: Ended, ctx: &mut Ctx<'_, H, T>) {
        let id = self.id(index, ctx.net);
        let connection = self.connections.at_mut(index);
        let socket = connection.socket.take();
        match ended {
            Ended::Closed => {
                if let Some(socket) = socket {
                    ctx.host.close(socket);
                }
                connection.ends_by(match connection.active_close {
                    true => CloseReason::PeerFin,
                    false => CloseReason::GuestFin,
                });
                if connection.active_close {
                    connection.report_closed(id, ctx.net, ctx.now);
                    connection.release(ctx.net);
                    connection.up.queries = None;
                    connection.state = TcpState::TimeWait {
                        until: ctx.now + TIME_WAIT,
                    };
                    connection.arm(id, ctx);
                    self.waiting.push_back(id);
                    self.strike_dns(index);
                    if self.waiting.len() > MOST_WAITING {
                        self.evict_time_wait(ctx);
                    }
                    return;
                }
            }
            Ended::Unproven(why) => {
                connection.refuse_unproven(id, socket, &why, ctx);
                return self.reset(index, ctx);
            }
            Ended::Failed(failure) => {
                ctx.net.counters.tcp_reset_by_host += 1;
                connection.ends_by(CloseReason::of_failure(failure));
                if let Some(socket) = socket {
                    // If the host connection is still established, a close would signal the end of the data to the
                    // peer.
                    match failure {
                        Failure::Reset => ctx.host.close(socket),
                        // The end of the data was sent to the peer already.
                        _ if connection.up.closed => ctx.host.close(socket),
                        _ => ctx.host.abort(socket),
                    }
                }
                return self.reset(index, ctx);
            }
        }
        self.remove(index, ctx);
    }

    /// Sends a reset to the guest because the host connection has failed, and removes the connection when the link has
    /// accepted the reset: a guest that only receives would not notice the failure otherwise. Other resets answer a
    /// segment; they are dropped if the link is full, because the guest retransmits the segment.
    fn reset<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let sending = self.connections.at(index).send_reset(ctx);
        if sending == Sending::Done {
            return self.remove(index, ctx);
        }
        let id = self.id(index, ctx.net);
        let connection = self.connections.at_mut(index);
        connection.report_closed(id, ctx.net, ctx.now);
        connection.state = TcpState::Failed;
        connection.release(ctx.net);
        ctx.net.timers.disarm(&mut connection.timer);
        connection.up.queries = None;
        self.negotiations.remove(&index);
        connection.park(id, ctx.net);
        self.strike_dns(index);
    }

    /// Returns the flow id of the connection in the slot `index`.
    fn id(&self, index: u32, net: &Net) -> FlowId {
        net.flow(Kind::Tcp, index, self.connections.generation(index))
    }

    fn mark_dirty(&mut self, index: u32) {
        let pending = &mut self.connections.at_mut(index).pending;
        if !pending.dirty {
            pending.dirty = true;
            self.dirty.push(index);
        }
    }

    fn find(&self, key: &ConnectionKey) -> Option<u32> {
        self.table
            .find(key, |index| self.connections.at(index).key == *key)
    }

    /// Makes room for one more connection under `--max-flows`: removes connections in TIME-WAIT, the oldest first, then
    /// reclaims the slot of the idlest UDP endpoint or echo id, as long as there are any.
    fn make_room<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        while ctx.net.is_full() {
            let mut eviction = self.evict_time_wait(ctx);
            if eviction == Eviction::NoneLeft {
                eviction = ctx.net.reclaim();
            }
            if eviction == Eviction::NoneLeft {
                break;
            }
        }
    }

    /// Adds a connection, to `target` on the host's side if the guest has opened it. `grounds` are those on which it is
    /// permitted.
    fn add<H, T>(
        &mut self,
        connection: Connection<S>,
        (target, grounds): (Option<SocketAddr>, Grounds),
        ctx: &mut Ctx<'_, H, T>,
    ) -> u32 {
        let key = connection.key;
        if let Some(listener) = connection.listener {
            ctx.net.client_opened(listener);
        }
        let (index, _) = self.connections.insert_with(|_, _| connection);
        let connections = &self.connections;
        self.table.insert(&key, index, |other| connections.at(other).key);
        ctx.net.opened();
        if let Some(ledger) = &ctx.net.ledger {
            ledger.enter(index, key.into());
        }
        self.report_opened(index, target, grounds, ctx.net, ctx.now);
        index
    }

    fn remove<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        ctx.net.release(&self.connections.at(index).key.into());
        self.replace(index, ctx);
    }

    /// Removes a connection whose key has been assigned to a new connection already.
    fn replace<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let id = self.id(index, ctx.net);
        let mut connection = self.connections.remove(index);
        connection.report_closed(id, ctx.net, ctx.now);
        self.half_closed.remove(&mut connection, index);
        if connection.up.queries.is_some() {
            self.strike_dns(index);
        }
        self.table.remove(&connection.key, index);
        self.negotiations.remove(&index);
        ctx.net.timers.disarm(&mut connection.timer);
        connection.release(ctx.net);
        if let Some(socket) = connection.socket.take() {
            ctx.host.close(socket);
        }
        ctx.net.closed();
        if let Some(listener) = connection.listener {
            ctx.net.client_closed(listener);
        }
        if let Some(ledger) = &ctx.net.ledger {
            ledger.strike(index);
        }
        // Entries of connections that left TIME-WAIT early, by a reset or by reuse of the key, are removed.
        while let Some(old) = self.waiting.front() {
            // The entry may be so old that the slot's generation has wrapped around.
            let connection = self.connections.get(old.index, old.generation);
            if connection.is_some_and(|connection| matches!(connection.state, TcpState::TimeWait { .. })) {
                break;
            }
            self.waiting.pop_front();
        }
    }
}
