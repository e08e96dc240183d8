//! TCP: the guest's connections and the host's, joined without a stack in between.
//!
//! Sequence numbers map onto the host socket's queues. Down: the head of the receive queue is the oldest byte that the
//! guest has not acknowledged; a peek sends, an acknowledgement discards, a retransmission is another peek. Up: what
//! the socket took is acknowledged, the rest waits in a bounded pool and closes the window.
//!
//! Inputs (segments, socket events, timers) only record what is pending; [`Tcp::flush`] then acts on all of it, once a
//! flow and burst, in an order in which one segment can carry the most: deliver, discard, resend, fill, acknowledge.

mod connection;
mod down;
mod enforce;
mod half_closed;
mod idle;
mod lost;
mod open;
pub(crate) mod path_mtu;
mod recovery;
mod reorder;
mod rtt;
mod segment;
mod seq;
mod stalled;
mod table;
mod traffic;
mod unreachable;
mod up;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use pontoon_wire::emit;
use pontoon_wire::frame::{self, Flags, Ip};
use rand_chacha::ChaCha12Rng;
use vm_memory::VolatileSlice;

use self::connection::{Connection, Key, State};
use self::half_closed::HalfClosed;
use self::segment::Verdict;
use self::table::Table;
use crate::ctx::{Ctx, Net, Routed};
use crate::slab::Slab;
use crate::table::Secret;
use crate::{Failure, FlowId, Frame, Host, Instant, Kind, Readiness, Transmit};

/// The TTL that our own segments carry (IANA "IP Time To Live Parameter").
const HOP_LIMIT: u8 = 64;
/// The duration of TIME_WAIT, for a connection that we closed first (RFC 9293 section 3.4.1, with Linux's segment
/// lifetime of 30 s): a guest whose FIN had to wait for the host repeats it every 16 s by then. After it such a FIN
/// gets a reset, which a program that still reads would be told of.
const TIME_WAIT: Duration = Duration::from_secs(60);
/// So many are remembered for so long; with more, the oldest are forgotten before.
const MOST_WAITING: usize = 8192;
/// The time after which a listener that found no descriptor tries again: other processes may have freed one.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// Slices of guest memory that one burst gathers.
const BURST: usize = 256;

/// Data of one burst, in order, by connection; it leaves when the burst ends.
#[derive(Debug, Default)]
pub struct Burst<'a> {
    parts: ArrayVec<(u32, VolatileSlice<'a>), BURST>,
}

impl Burst<'_> {
    /// Data of a connection that is no more.
    pub(crate) fn forget(&mut self, index: u32) {
        self.parts.retain(|&mut (of, _)| of != index);
    }
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Both directions are closed.
    Closed,
    /// The host connection failed, or the guest is gone.
    Failed(Failure),
}

/// The connections of one worker.
#[derive(Debug)]
pub struct Tcp<S> {
    connections: Slab<Connection<S>>,
    table: Table,
    /// Connections with pending work.
    dirty: Vec<u32>,
    /// Connections in TIME_WAIT, oldest first; some may be gone already.
    waiting: VecDeque<FlowId>,
    /// The place in that list to look at next for a published port's client.
    next_waiting: usize,
    /// Half-closed connections that have been silent for a while; some may be in use again.
    half_closed: HalfClosed,
    /// Connections whose guest takes less than the host holds for it, in the order in which they were found; some may
    /// be gone, or in use again.
    stalled: VecDeque<FlowId>,
    /// The slot to look at next for a connection to probe.
    next_look: u32,
    /// Listeners that found no descriptor for a client.
    waiting_for_descriptor: Vec<FlowId>,
    /// When they look again at the latest.
    accept_retry_at: Option<Instant>,
}

/// The IP header of a segment that we make.
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
    /// No connections yet.
    #[must_use]
    pub fn new(random: &mut ChaCha12Rng) -> Self {
        Self {
            connections: Slab::default(),
            table: Table::new(Secret::new(random)),
            dirty: Vec::new(),
            waiting: VecDeque::new(),
            next_waiting: 0,
            half_closed: HalfClosed::default(),
            stalled: VecDeque::new(),
            next_look: 0,
            waiting_for_descriptor: Vec::new(),
            accept_retry_at: None,
        }
    }

    /// A segment from the guest. `dns` is the resolver that the forwarder's address stands for now.
    pub fn handle_segment<'a, H: Host<Socket = S>, T: Transmit>(
        &mut self,
        frame: &Frame<'a>,
        ip: &Ip,
        segment: &frame::Tcp,
        dns: Option<SocketAddr>,
        burst: &mut Burst<'a>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let key = Key {
            guest: SocketAddr::new(ip.source, segment.source_port),
            remote: SocketAddr::new(ip.destination, segment.destination_port),
        };
        let opens =
            segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::RST);
        // Which may end the connection.
        if burst.parts.remaining_capacity() < frame.parts.len() {
            self.handle_burst(burst, ctx);
        }
        let Some(index) = self.find(&key) else {
            let routed = ctx.net.hand_over_to_owner(&key.into(), frame);
            if routed == Routed::HandedOver {
                return;
            }
            if opens {
                self.open(key, frame, ip, segment, dns, ctx);
            } else if !segment.flags.has(Flags::RST) {
                ctx.net.counters.tcp_unknown += 1;
                open::reply_reset(ip, segment, ctx);
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
            Verdict::Unacceptable => open::reply_reset(ip, segment, ctx),
            Verdict::Reset => {
                ctx.net.counters.tcp_reset_by_guest += 1;
                burst.forget(index);
                let connection = self.connections.at_mut(index);
                // A guest that has forgotten the connection after its FIN answers a probe so: what it has sent is to
                // arrive.
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
                self.open(key, frame, ip, segment, dns, ctx);
            }
        }
    }

    /// The burst is over: acts on everything that it brought.
    pub fn handle_burst<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        burst: &mut Burst<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let current = ctx.net.current_flow;
        let mut dirty = core::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            // A connection that ended within the burst left its place in the list.
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
            // One flow's panic is not to keep the others' data back.
            if !ctx.catch_panic(|ctx| self.flush(index, &parts, ctx)) {
                self.close(id, ctx);
            }
        }
        burst.parts.clear();
        self.dirty = dirty;
        // The burst may go on: a panic in its next frame does not concern the last of these flows.
        ctx.net.current_flow = current;
    }

    /// An event on a connection's socket.
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
        // A reset ends both directions too, but it is no FIN: a peek behind the data says so.
        pending.error |= ready.error;
        pending.urgent |= ready.urgent;
        pending.end = (pending.end || ready.end) && !pending.error;
        if let State::Connecting { .. } = connection.state {
            return self.connected(flow.index, ctx);
        }
        // Once the stream has ended no peek will tell of an error.
        if ready.error
            && connection.down.eof
            && let Some(failure) = connection
                .socket
                .as_mut()
                .and_then(|socket| ctx.host.tcp_error(socket))
        {
            return self.end(flow.index, Ended::Failed(failure), ctx);
        }
        self.flush(flow.index, &[], ctx);
    }

    /// A connection's timer.
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
            State::Connecting { give_up } => {
                if give_up.is_some_and(|at| ctx.now >= at) {
                    return self.refuse(flow.index, Failure::TimedOut, ctx);
                }
            }
            State::SynReceived | State::SynSent => {
                if !connection.retry_handshake(ctx.now) {
                    let is_answer = connection.state == State::SynReceived;
                    if let Some(socket) = connection.socket.take() {
                        ctx.host.abort(socket);
                    }
                    // The guest has a connection if all that was lost are its acknowledgements.
                    return match is_answer {
                        true => self.reset(flow.index, ctx),
                        false => self.remove(flow.index, ctx),
                    };
                }
            }
            State::Open => {
                let served = match connection.down.recovery.retry {
                    Some(_) => connection.retry(flow, ctx),
                    None => self.handle_idle(flow, ctx),
                };
                if let Err(ended) = served {
                    return self.end(flow.index, ended, ctx);
                }
            }
            State::TimeWait { until } => {
                if ctx.now >= until {
                    return self.remove(flow.index, ctx);
                }
            }
            State::Failed => {}
        }
        self.flush(flow.index, &[], ctx);
    }

    /// A connection that was stopped by its quantum or by the link goes on.
    pub fn handle_ready<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(connection) = self.connections.get_mut(flow.index, flow.generation) {
            connection.pending.queued = false;
            connection.pending.parked = false;
            if connection.state == State::Failed {
                self.reset(flow.index, ctx);
            } else {
                self.flush(flow.index, &[], ctx);
            }
        }
    }

    /// An acknowledgement has waited long enough for an answer to go with.
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

    /// Forgets every connection. What the host has of it is reset: its peer must not take a guest that is gone for one
    /// that had no more to say.
    pub fn abort_all<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let all: Vec<u32> = self.connections.iter().map(|(index, ..)| index).collect();
        for index in all {
            if let Some(socket) = self.connections.at_mut(index).socket.take() {
                ctx.host.abort(socket);
            }
            self.remove(index, ctx);
        }
    }

    /// Returns true if this connection still holds a slot.
    pub(crate) fn contains(&self, flow: FlowId) -> bool {
        self.connections.get(flow.index, flow.generation).is_some()
    }

    /// Returns the remote addresses of the guest's connections.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        self.connections
            .iter()
            .map(|(_, _, connection)| connection.key.remote.ip())
    }

    /// Acts on what is pending on a connection.
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
                if connection.active_close {
                    connection.release(ctx.net);
                    connection.state = State::TimeWait {
                        until: ctx.now + TIME_WAIT,
                    };
                    connection.arm(id, ctx);
                    self.waiting.push_back(id);
                    if self.waiting.len() > MOST_WAITING {
                        self.forget_oldest(ctx);
                    }
                    self.retry_accept(ctx);
                    return;
                }
            }
            Ended::Failed(failure) => {
                ctx.net.counters.tcp_reset_by_host += 1;
                if let Some(socket) = socket {
                    // Where the connection still stands, its peer must not take this for the end of the data.
                    match failure {
                        Failure::Reset => ctx.host.close(socket),
                        // It has got that end, or will.
                        _ if connection.up.closed => ctx.host.close(socket),
                        _ => ctx.host.abort(socket),
                    }
                }
                return self.reset(index, ctx);
            }
        }
        self.remove(index, ctx);
    }

    /// Resets the guest's connection, as the host's has failed, and removes it once the link has taken the reset.
    ///
    /// A guest that only receives would never notice otherwise. Other resets answer something, and are lost where
    /// the link is full: a guest without an answer asks again.
    fn reset<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        if self.connections.at(index).send_reset(ctx) {
            return self.remove(index, ctx);
        }
        let id = self.id(index, ctx.net);
        let connection = self.connections.at_mut(index);
        connection.state = State::Failed;
        connection.release(ctx.net);
        ctx.net.timers.disarm(&mut connection.timer);
        connection.park(id, ctx.net);
        self.retry_accept(ctx);
    }

    /// The name of a connection.
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

    fn find(&self, key: &Key) -> Option<u32> {
        self.table
            .find(key, |index| self.connections.at(index).key == *key)
    }

    /// Ends connections in TIME_WAIT, the oldest first, then reclaims the idlest datagram flow, until there is room for
    /// one more connection or none of either is left.
    fn make_room<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        while ctx.net.is_full() && (self.forget_oldest(ctx) || ctx.net.reclaim()) {}
    }

    fn add<H, T>(&mut self, connection: Connection<S>, ctx: &mut Ctx<'_, H, T>) -> u32 {
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
        index
    }

    fn remove<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        ctx.net.release(&self.connections.at(index).key.into());
        self.replace(index, ctx);
    }

    /// Removes a connection whose key is another one's of ours by now.
    fn replace<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let mut connection = self.connections.remove(index);
        self.half_closed.remove(&mut connection, index);
        self.table.remove(&connection.key, index);
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
        // Places of connections that left TIME_WAIT early (by reset or reuse) are not kept for ever.
        while let Some(old) = self.waiting.front() {
            // A place may outlive so many lives of its slot that their count has come round.
            let connection = self.connections.get(old.index, old.generation);
            if connection.is_some_and(|connection| matches!(connection.state, State::TimeWait { .. })) {
                break;
            }
            self.waiting.pop_front();
        }
        self.retry_accept(ctx);
    }

    /// A descriptor may be free: listeners that lacked one look again.
    pub fn retry_accept<H, T>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        self.accept_retry_at = None;
        ctx.net.ready.extend(self.waiting_for_descriptor.drain(..));
    }

    /// When listeners are to be fed, whether a connection has ended or not.
    pub fn next_accept_retry(&self) -> Option<Instant> {
        self.accept_retry_at
    }
}

impl<S> Connection<S> {
    /// Sends a reset to the guest. Returns false if the link has no room; the connection is unchanged either way.
    fn send_reset<H, T: Transmit>(&self, ctx: &mut Ctx<'_, H, T>) -> bool {
        // Within the guest's window: elsewhere a reset counts for nothing (RFC 9293 section 3.10.7.4). After a timeout
        // `nxt` is behind what was sent.
        let seq = match self.state {
            State::Open => self.down.acceptable(),
            _ => self.down.nxt.latest(self.down.max),
        };
        let flags = Flags::RST.and(Flags::ACK);
        open::send_reset(&self.key, seq.0, self.up.next.0, flags, ctx)
    }

    fn flush<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        self.pending.dirty = false;
        match self.state {
            State::Connecting { .. } | State::Failed => return Ok(()),
            State::SynReceived | State::SynSent => {
                if self.pending.handshake {
                    self.send_handshake(id, ctx);
                    return Ok(());
                }
            }
            State::Open => {
                self.flush_to_host(parts, ctx)?;
                self.discard(ctx.host)?;
                self.update_window(id, ctx.host, ctx.net);
                self.down.detect_loss();
                self.resend(id, ctx)?;
                self.fill(id, ctx)?;
                self.account();
            }
            State::TimeWait { .. } => {}
        }
        if self.pending.ack {
            let seq = match self.state {
                State::Open => self.down.acceptable(),
                _ => self.down.max,
            };
            self.send_bare(id, seq, Flags::ACK, None, ctx);
        } else if self.pending.ack_later && !self.pending.ack_is_delayed {
            self.pending.ack_is_delayed = true;
            ctx.net.delay_ack(id, ctx.now);
        }
        if self.state == State::Open && self.up.closed && self.down.closed {
            return Err(Ended::Closed);
        }
        Ok(())
    }

    /// Sees to it that the wheel names this connection in time.
    fn arm<H, T>(&mut self, id: FlowId, ctx: &mut Ctx<'_, H, T>) {
        let at = match self.state {
            State::Connecting { give_up } => give_up,
            State::TimeWait { until } => Some(until),
            State::Failed => None,
            State::SynReceived | State::SynSent => self.down.recovery.retry.map(|(at, _)| at),
            State::Open => {
                // Behind the end there is nothing to read, whatever events say.
                let unsent = match self.down.eof {
                    true => self.down.fin.is_none(),
                    false => self.pending.readable,
                };
                self.down.arm_retry(unsent, ctx.now);
                match self.down.recovery.retry {
                    Some((at, _)) => Some(at),
                    None => Some(self.idle_deadline()),
                }
            }
        };
        if let Some(at) = at {
            ctx.net.timers.arm(&mut self.timer, id, at);
        }
    }

    /// Gives memory back.
    fn release(&mut self, net: &mut Net) {
        self.count_held(0, net);
        let pool = &mut net.pool;
        self.up.spill.clear(pool);
        if let Some(promise) = self.up.promise.take() {
            pool.release(promise);
        }
        self.up.reorder.clear(pool);
    }
}
