//! A TCP connection of the simulated host: the socket of the engine, and the peer.

use core::net::SocketAddr;

use pontoon_engine::host::KeepaliveTimes;
use pontoon_engine::{Failure, FlowId, Instant, Readiness};
use vm_memory::VolatileSlice;

use super::{CloseMode, ConnectResult, HostPlan, PeerReport, ProxyExchange, RemotePort};
use crate::app::{AppAction, ConnectionEnd, Script, SimApp};
use crate::clock::earlier;
use crate::pattern;
use crate::rng::Rng;
use crate::streams;
use core::time::Duration;

/// State of a TCP connection on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A client has sent its SYN; the connection is not in the listener's accept queue yet.
    Arriving,
    /// The engine has called connect, and no answer has arrived.
    Connecting {
        /// Time at which the answer arrives.
        at: Instant,
        /// Result of the connect: established, or an error.
        answer: Result<(), Failure>,
    },
    /// The connection is or was established.
    Open,
    /// The connect failed with this error.
    Failed(Failure),
}

/// A TCP connection of the simulated host: both queues of the engine's socket, and the peer with its script.
#[derive(Debug)]
pub(super) struct SimConnection {
    pub(super) flow: Option<FlowId>,
    port: u16,
    pub(super) listener: u32,
    /// True for a program in the guest's network namespace, which is at the guest's end of the streams.
    pub(super) is_inside: bool,
    pub(super) peer: SocketAddr,
    pub(super) phase: Phase,
    script: Script,
    /// Handshake at the beginning of the streams, and its requests as far as they were sent.
    proxy: ProxyExchange,
    request: Vec<u8>,
    /// Bytes that the peer has received, if it records them.
    record: Option<Vec<u8>>,
    app: Option<SimApp>,
    rng: Rng,
    /// True if the engine has not closed the socket.
    pub(super) held: bool,
    pub(super) keepalive: bool,
    pub(super) keepalive_times: Option<KeepaliveTimes>,
    /// Stream offset up to which the socket has accepted data from the engine (end of the send queue).
    up_tail: u64,
    /// Stream offset up to which the peer has read the engine's data (start of the send queue).
    up_head: u64,
    /// Size of the send queue in bytes.
    up_size: u64,
    /// True if the engine has shut down its direction.
    up_end: bool,
    /// Stream offset up to which the peer has sent data (end of the receive queue).
    down_tail: u64,
    /// Furthest stream offset that the engine has peeked.
    down_peeked: u64,
    /// Stream offset up to which the engine has discarded data (start of the receive queue).
    down_head: u64,
    /// Size of the receive queue in bytes.
    down_size: u64,
    /// True if the peer has shut down its direction.
    down_end: bool,
    /// True if either side has reset the connection.
    is_reset: bool,
    /// True if the engine has reset the connection and the reset has not arrived at the peer yet.
    reset_peer: bool,
    /// Error that the next call on the socket returns, once (SO_ERROR).
    error: Option<Failure>,
    /// True if a send was refused (SOCK_NOSPACE), so that free space is reported by an event.
    no_space: bool,
    /// Time until which sends are refused.
    pub(super) blocked_until: Option<Instant>,
    /// True if an event with EPOLLHUP was reported to the engine.
    hung_up: bool,
    /// Time of the scheduled run of the peer.
    tick_at: Option<Instant>,
}

/// The result of [`SimConnection::take_tick`], which checks the scheduled time of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    /// The scheduled time of the peer's run has come.
    Expired,
    /// The scheduled time of the peer's run has not come, or none is scheduled.
    Pending,
}

/// The result of [`SimConnection::schedule_tick`], which schedules a run of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// The time was changed, and an event has to be added to the agenda.
    Changed,
    /// An earlier time is scheduled already.
    Unchanged,
}

/// The result of [`SimConnection::complete_arrival`], the end of a client's handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The client is in the listener's accept queue now.
    Completed,
    /// The connection was not opened by a client, or its handshake was complete before.
    NotPending,
}

/// The result of running a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// The socket has an epoll event.
    Event,
    /// The socket has no epoll event.
    None,
}

impl SimConnection {
    fn new(plan: &HostPlan, port: u16, peer: SocketAddr, phase: Phase, script: Script, rng: Rng) -> Self {
        Self {
            flow: None,
            port,
            listener: u32::MAX,
            is_inside: false,
            peer,
            phase,
            script,
            proxy: ProxyExchange::default(),
            request: Vec::new(),
            record: None,
            app: None,
            rng,
            held: false,
            keepalive: false,
            keepalive_times: None,
            up_tail: 0,
            up_head: 0,
            up_size: plan.send_buffer,
            up_end: false,
            down_tail: 0,
            down_peeked: 0,
            down_head: 0,
            down_size: plan.receive_buffer,
            down_end: false,
            is_reset: false,
            reset_peer: false,
            error: None,
            no_space: false,
            blocked_until: None,
            hung_up: false,
            tick_at: None,
        }
    }

    /// Returns the bytes that the peer has received, if it records them.
    pub(super) fn recorded(&self) -> Option<&[u8]> {
        self.record.as_deref()
    }

    /// Returns the number of bytes in the receive queue.
    pub(super) const fn queued(&self) -> u64 {
        self.down_tail - self.down_head
    }

    /// Returns the stream to the guest, or the one from the guest.
    const fn stream(&self, to_guest: bool) -> u64 {
        match to_guest {
            true => streams::down(self.port),
            false => streams::up(self.port),
        }
    }

    /// Makes this connection one of a program in the guest's network namespace.
    pub(super) fn place_inside(&mut self, stream: u16) {
        self.port = stream;
        self.is_inside = true;
    }

    pub(super) fn outgoing(
        plan: &HostPlan,
        flow: FlowId,
        to: SocketAddr,
        remote: RemotePort,
        rng: Rng,
        now: Instant,
    ) -> Self {
        let phase = match remote.answer {
            ConnectResult::Now => Phase::Open,
            ConnectResult::After(time) => Phase::Connecting {
                at: now + time,
                answer: Ok(()),
            },
            ConnectResult::Fail(failure) => Phase::Failed(failure),
            ConnectResult::FailAfter(time, failure) => Phase::Connecting {
                at: now + time,
                answer: Err(failure),
            },
            ConnectResult::Never => Phase::Connecting {
                at: now + HOST_GIVES_UP,
                answer: Err(Failure::TimedOut),
            },
        };
        let mut conn = Self::new(plan, to.port(), to, phase, remote.script, rng);
        conn.proxy = remote.proxy;
        conn.flow = Some(flow);
        conn.held = true;
        conn.record = remote.records.then(Vec::new);
        if phase == Phase::Open {
            conn.start(now);
        }
        conn
    }

    pub(super) fn incoming(
        plan: &HostPlan,
        listener: u32,
        peer: SocketAddr,
        stream: u16,
        script: Script,
        rng: Rng,
        _at: Instant,
    ) -> Self {
        let mut conn = Self::new(plan, stream, peer, Phase::Arriving, script, rng);
        conn.listener = listener;
        conn
    }

    pub(super) fn first_tick(&self, now: Instant) -> Instant {
        match self.phase {
            Phase::Connecting { at, .. } => at,
            Phase::Arriving | Phase::Open | Phase::Failed(_) => now,
        }
    }

    fn start(&mut self, now: Instant) {
        self.app = Some(SimApp::new(self.script.clone(), self.rng.fork(), now));
    }

    pub(super) fn accept(&mut self, flow: FlowId) {
        self.flow = Some(flow);
        self.held = true;
    }

    /// Removes the scheduled time of the peer's next run if it has come.
    pub(super) fn take_tick(&mut self, now: Instant) -> Tick {
        match self.tick_at.take_if(|at| *at <= now) {
            Some(_) => Tick::Expired,
            None => Tick::Pending,
        }
    }

    /// Schedules a run of the peer at `at`, unless an earlier one is scheduled.
    pub(super) fn schedule_tick(&mut self, at: Instant) -> Schedule {
        if self.tick_at.is_some_and(|have| at >= have) {
            return Schedule::Unchanged;
        }
        self.tick_at = Some(at);
        Schedule::Changed
    }

    /// Completes the handshake of a client, which puts the connection into the listener's accept queue.
    pub(super) fn complete_arrival(&mut self) -> Arrival {
        if self.phase != Phase::Arriving {
            return Arrival::NotPending;
        }
        self.phase = Phase::Open;
        Arrival::Completed
    }

    /// Runs the peer's application until `now`.
    pub(super) fn run(&mut self, now: Instant) -> Activity {
        if let Phase::Connecting { at, answer } = self.phase {
            if at > now {
                return Activity::None;
            }
            match answer {
                Ok(()) => self.phase = Phase::Open,
                Err(failure) => {
                    self.phase = Phase::Failed(failure);
                    return Activity::Event;
                }
            }
            if !self.held {
                // The engine closed the socket while the connect was pending, so the peer has no connection.
                self.phase = Phase::Failed(Failure::Reset);
                return Activity::None;
            }
            self.start(now);
            self.run_app(now);
            return Activity::Event;
        }
        if self.phase != Phase::Open {
            return Activity::None;
        }
        if self.app.is_none() {
            self.start(now);
        }
        self.run_app(now)
    }

    fn run_app(&mut self, now: Instant) -> Activity {
        let Some(app) = &mut self.app else {
            return Activity::None;
        };
        let mut event = false;
        if self.reset_peer {
            self.reset_peer = false;
            self.is_reset = true;
            app.was_reset(ConnectionEnd::Reset);
        }
        if !self.is_reset {
            let read = app.read(self.up_tail - self.up_head, now);
            self.up_head += read;
            if self.up_end && self.up_head == self.up_tail {
                app.peer_ended(now);
            }
            let room = self.down_size - (self.down_tail - self.down_head);
            let written = app.write(room, now);
            self.down_tail += written;
            event |= written > 0;
            if written > 0 && !self.held && self.flow.is_some() {
                // Data has arrived for a socket that the engine has closed: the kernel resets the connection.
                self.is_reset = true;
                app.was_reset(ConnectionEnd::Reset);
            }
            match app.act(now) {
                AppAction::None => {}
                AppAction::Close => {
                    self.down_end = true;
                    event = true;
                }
                AppAction::Reset => {
                    self.is_reset = true;
                    self.error = Some(Failure::Reset);
                    event = true;
                }
            }
        }
        if self.blocked_until.is_some_and(|at| at <= now) {
            self.blocked_until = None;
        }
        if self.no_space && self.writable() {
            self.no_space = false;
            event = true;
        }
        if self.up_end && self.down_end && !self.hung_up {
            self.hung_up = true;
            event = true;
        }
        match event && self.held {
            true => Activity::Event,
            false => Activity::None,
        }
    }

    /// Returns the time of the peer's next action.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        if let Phase::Connecting { at, .. } = self.phase {
            return Some(at);
        }
        let app = self.app.as_ref()?;
        if self.is_reset {
            return None;
        }
        let room = self.down_size - (self.down_tail - self.down_head);
        let next = earlier(app.next(self.up_tail - self.up_head, room), self.blocked_until);
        next.map(|at| at.max(now + Duration::from_nanos(1)))
    }

    /// Returns the flow and its readiness, as an edge-triggered epoll would report it.
    pub(super) fn poll(&mut self, _now: Instant) -> Option<(FlowId, Readiness)> {
        let flow = self.flow.filter(|_| self.held)?;
        let ready = match self.phase {
            Phase::Arriving | Phase::Connecting { .. } => return None,
            Phase::Failed(_) => Readiness {
                readable: true,
                writable: true,
                end: true,
                error: true,
                urgent: false,
            },
            Phase::Open => Readiness {
                readable: self.down_tail > self.down_head || self.down_end || self.is_reset,
                writable: self.writable() || self.is_reset || self.up_end,
                end: self.down_end || self.is_reset,
                // epoll also reports EPOLLHUP when both directions have ended.
                error: self.error.is_some() || self.is_reset || self.hung_up,
                urgent: false,
            },
        };
        if !ready.writable {
            self.no_space = true;
        }
        (ready != Readiness::default()).then_some((flow, ready))
    }

    pub(super) fn room(&self) -> u64 {
        if self.phase == Phase::Open && !self.is_reset {
            self.up_size - (self.up_tail - self.up_head)
        } else {
            0
        }
    }

    /// Requests an event for the next time at which the send buffer has free space.
    pub(super) fn watch_room(&mut self) {
        self.no_space = true;
    }

    /// Returns true if a third of the send buffer is free (`sk_stream_is_writeable` of Linux).
    fn writable(&self) -> bool {
        self.blocked_until.is_none() && self.room() * 3 >= self.up_size
    }

    pub(super) fn peek(
        &mut self,
        at: u32,
        into: &[VolatileSlice<'_>],
        limit: usize,
        wrong: &mut Vec<String>,
    ) -> Result<usize, Failure> {
        let from = self.down_head + u64::from(at);
        let room: usize = into.iter().map(VolatileSlice::len).sum();
        if room == 0 || from > self.down_tail {
            wrong.push(format!(
                "peeks {room} bytes at {at} of {} queued",
                self.down_tail - self.down_head
            ));
            return Err(Failure::Invalid);
        }
        if self.phase != Phase::Open {
            return Err(Failure::WouldBlock);
        }
        if from == self.down_tail {
            // The end of the stream is returned before an error (`SOCK_DONE` in `tcp_recvmsg_locked`).
            return match self.error.take_if(|_| !self.down_end) {
                Some(failure) => Err(failure),
                None if self.is_reset || self.down_end => Ok(0),
                None => Err(Failure::WouldBlock),
            };
        }
        let mut done = 0;
        for slice in into {
            let len = slice
                .len()
                .min(limit.min((self.down_tail - from) as usize) - done);
            slice.copy_from(&self.down_bytes(from + done as u64, len));
            done += len;
        }
        self.down_peeked = self.down_peeked.max(from + done as u64);
        Ok(done)
    }

    /// Returns `len` bytes of the stream to the engine from the offset `at` on.
    fn down_bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let answer = self.proxy.answer.iter().skip(at as usize).take(len);
        let mut bytes: Vec<u8> = answer.copied().collect();
        let behind = (at + bytes.len() as u64).saturating_sub(self.proxy.answer.len() as u64);
        bytes.extend(pattern::bytes(
            self.stream(!self.is_inside),
            behind,
            len - bytes.len(),
        ));
        bytes
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn proxy_request(&self) -> &[u8] {
        &self.request
    }

    pub(super) fn discard(&mut self, len: u32, wrong: &mut Vec<String>) -> Result<(), Failure> {
        let head = self.down_head + u64::from(len);
        if len == 0 || head > self.down_peeked {
            wrong.push(format!(
                "discards {len} bytes where {} were peeked",
                self.down_peeked - self.down_head
            ));
            return Err(Failure::Invalid);
        }
        self.down_head = head;
        Ok(())
    }

    pub(super) fn send(
        &mut self,
        parts: &[VolatileSlice<'_>],
        plan: &HostPlan,
        now: Instant,
        wrong: &mut Vec<String>,
    ) -> Result<usize, Failure> {
        let offered: usize = parts.iter().map(VolatileSlice::len).sum();
        if self.up_end || offered == 0 {
            wrong.push(format!("sends {offered} bytes, ended: {}", self.up_end));
            return Err(Failure::Invalid);
        }
        if self.phase != Phase::Open {
            return Err(Failure::WouldBlock);
        }
        if self.is_reset {
            return Err(self.error.take().unwrap_or(Failure::Reset));
        }
        if self.blocked_until.is_none() && self.rng.chance(plan.blocks) {
            self.blocked_until = Some(now + plan.block_time);
        }
        let mut most = self.room();
        if self.blocked_until.is_some() {
            most = 0;
        } else if most > 1 && self.rng.chance(plan.short_writes) {
            most = self.rng.within(1..=most.min(offered as u64));
        }
        let len = (most as usize).min(offered);
        if len < offered {
            self.no_space = true;
            if len > 0 && self.blocked_until.is_none() && (len as u64) < self.room() {
                // The kernel accepts part of the data for lack of memory, and has memory again later.
                self.blocked_until = Some(now + plan.block_time);
            }
        }
        if len == 0 {
            return Err(Failure::WouldBlock);
        }
        self.take(parts, len, wrong);
        Ok(len)
    }

    fn take(&mut self, parts: &[VolatileSlice<'_>], len: usize, wrong: &mut Vec<String>) {
        let mut left = len;
        for part in parts {
            let mut bytes = vec![0; part.len().min(left)];
            part.copy_to(&mut bytes);
            let request_len = self.proxy.request_len;
            let of_request = (request_len - self.request.len()).min(bytes.len());
            self.request.extend(&bytes[..of_request]);
            let (stream, bytes_of_stream) = (self.stream(self.is_inside), &bytes[of_request..]);
            let at = (self.up_tail + of_request as u64).saturating_sub(request_len as u64);
            if let Some(record) = &mut self.record {
                record.extend_from_slice(bytes_of_stream);
            } else if let Some(at) = pattern::mismatch(stream, at, bytes_of_stream) {
                wrong.push(format!("port {}: byte {at} towards the host is wrong", self.port));
            }
            self.up_tail += bytes.len() as u64;
            left -= bytes.len();
        }
    }

    pub(super) fn shutdown(&mut self, wrong: &mut Vec<String>) -> Result<(), Failure> {
        if self.up_end || self.phase != Phase::Open {
            wrong.push(format!("shuts down in {:?}, ended: {}", self.phase, self.up_end));
            return Err(Failure::Invalid);
        }
        if self.is_reset {
            return Err(self.error.take().unwrap_or(Failure::Reset));
        }
        self.up_end = true;
        Ok(())
    }

    pub(super) fn take_error(&mut self) -> Option<Failure> {
        self.error.take()
    }

    pub(super) fn release(&mut self, kind: CloseMode) {
        self.held = false;
        if self.phase != Phase::Open || self.is_reset {
            return;
        }
        // Linux resets a connection that is closed with unread data.
        let unread = self.down_tail > self.down_head;
        if kind == CloseMode::Abortive || unread {
            self.reset_peer = true;
        } else {
            self.up_end = true;
        }
    }

    /// Returns true if the connection will have no further event.
    pub(super) fn done(&self) -> bool {
        match self.phase {
            Phase::Failed(_) => true,
            Phase::Arriving | Phase::Connecting { .. } => false,
            Phase::Open => self.app.as_ref().is_some_and(|app| app.outcome().is_some()),
        }
    }

    pub(super) fn report(&self) -> PeerReport {
        PeerReport {
            port: self.port,
            app: self.app.clone(),
            held: self.held,
            keepalive: self.keepalive,
            keepalive_times: self.keepalive_times,
        }
    }
}

/// Timeout of a connect: six retransmissions of SYN (`net.ipv4.tcp_syn_retries`).
const HOST_GIVES_UP: Duration = Duration::from_secs(127);
