//! The simulated host: sockets with bounded queues, and their peers, which run scripts.
//!
//! Events are those of an edge-triggered epoll: each is caused by a change and reports the whole state of the socket.
//! The host records violations of the socket API by the engine, and the world fails the run because of them.

mod calls;
mod conn;
mod datagram;
pub mod hand_over;

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroUsize;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pontoon_engine::host::KeepaliveTimes;
use pontoon_engine::{Failure, FlowId, Instant, Kind, Readiness, WorkerId};

use crate::app::{ConnectionEnd, Script, SimApp};
use crate::clock::EventQueue;
use crate::rng::Rng;
use conn::{Activity, Arrival, Schedule, SimConnection, Tick};
use datagram::DatagramSockets;

/// Sizes, delays and random refusals of the simulated host. Probabilities are per mille of the calls.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Size of a TCP socket's send buffer in bytes.
    pub send_buffer: u64,
    /// Size of a TCP socket's receive buffer in bytes.
    pub receive_buffer: u64,
    /// Probability that a send accepts fewer bytes than fit into the buffer.
    pub short_writes: u32,
    /// Probability that a send is refused (EAGAIN), regardless of the buffer, for [`Self::block_time`].
    pub blocks: u32,
    /// Time for which sends are refused.
    pub block_time: Duration,
    /// True if a peek may begin at any offset of the receive queue (`SO_PEEK_OFF`); otherwise only at its start.
    pub peeks_at_offset: bool,
    /// Limit on the bytes of one peek. `None`: a peek returns all data that fits, as of a TCP socket. A Unix socket's peek
    /// ends behind each message with descriptors.
    pub peek_limit: Option<NonZeroUsize>,
    /// One-way delay between a socket and its peer.
    pub delay: Duration,
    /// Number of sockets that may be open at one time (RLIMIT_NOFILE).
    pub descriptors: usize,
}

impl Default for HostPlan {
    fn default() -> Self {
        Self {
            send_buffer: 256 << 10,
            receive_buffer: 256 << 10,
            short_writes: 0,
            blocks: 0,
            block_time: Duration::from_millis(1),
            peeks_at_offset: true,
            peek_limit: None,
            delay: Duration::from_micros(100),
            descriptors: 1 << 20,
        }
    }
}

/// The result of connects to a remote TCP port, and the script of the peer there.
#[derive(Clone, Debug)]
struct RemotePort {
    answer: ConnectResult,
    script: Script,
    proxy: ProxyExchange,
    /// True if the peer records the bytes that it receives, which are not compared with a pattern.
    records: bool,
}

impl RemotePort {
    fn new(answer: ConnectResult, script: Script) -> Self {
        Self {
            answer,
            script,
            proxy: ProxyExchange::default(),
            records: false,
        }
    }
}

/// Octets at the beginnings of a connection's streams that are those of a handshake with a proxy; the patterns of the streams
/// begin behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyExchange {
    /// Number of octets of the requests.
    pub request_len: usize,
    /// The answers. They are a part of the bytes that the peer's script sends.
    pub answer: Vec<u8>,
}

/// The result of a connect, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectResult {
    /// The connection is established at once.
    Now,
    /// The connection is established after this time.
    After(Duration),
    /// The connect call fails at once.
    Fail(Failure),
    /// The connection fails after this time.
    FailAfter(Duration, Failure),
    /// No answer arrives: the connect times out after 127 s, as in Linux with six retransmissions of SYN.
    Never,
}

/// A socket of the simulated host. It is not `Clone`, so that a closed socket cannot be used.
#[derive(Debug)]
pub struct SimSocket(SocketIndex);

/// Index of a socket among those of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SocketIndex {
    Tcp(usize),
    Datagram(usize),
}

/// The simulated host, with the sockets that the engine has opened and their peers.
#[derive(Debug)]
pub struct SimHost {
    plan: HostPlan,
    rng: Rng,
    now: Instant,
    remotes: BTreeMap<u16, RemotePort>,
    taken: BTreeSet<u16>,
    /// Addresses of the host's own interfaces, including those that the engine was not given yet.
    own: BTreeSet<IpAddr>,
    conns: Vec<SimConnection>,
    listeners: BTreeMap<u32, VecDeque<usize>>,
    /// Listeners with a client that could not be accepted for lack of a descriptor.
    unreported: BTreeSet<u32>,
    datagrams: DatagramSockets,
    agenda: EventQueue<ScheduledPeer>,
    woken: Vec<PendingEvent>,
    open: usize,
    calls: u64,
    panic_at: Option<u64>,
    panics: u64,
    send_failure: Option<Failure>,
    /// Ports of the guest's network namespace, each with the stream of the next client.
    guest_ports: BTreeMap<u16, (u16, RemotePort)>,
    /// Port whose peer is at the other end of the stream that was given with a verdict.
    given: Option<u16>,
    wrong: Vec<String>,
}

/// A socket whose peer has an action at a scheduled time.
#[derive(Clone, Copy, Debug)]
enum ScheduledPeer {
    Conn(usize),
    Datagram(usize),
}

/// A socket or listener with an unreported event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingEvent {
    Conn(usize),
    Listener(u32),
    Datagram(usize),
}

/// The result of one connection, as its peer on the host's side observed it.
#[derive(Clone, Debug)]
pub struct PeerReport {
    /// The port that identifies the connection and its streams.
    pub port: u16,
    /// The peer's application; `None` if the connection was never established.
    pub app: Option<SimApp>,
    /// True if the engine has not closed the socket.
    pub held: bool,
    /// True if the engine has enabled keepalive (SO_KEEPALIVE).
    pub keepalive: bool,
    /// Times of the probes, if the engine has set them.
    pub keepalive_times: Option<KeepaliveTimes>,
}

impl SimHost {
    /// Returns a host on which every remote port refuses connections.
    #[must_use]
    pub fn new(plan: HostPlan, rng: Rng) -> Self {
        Self {
            plan,
            rng,
            now: Instant(0),
            remotes: BTreeMap::new(),
            taken: BTreeSet::new(),
            own: BTreeSet::new(),
            conns: Vec::new(),
            listeners: BTreeMap::new(),
            unreported: BTreeSet::new(),
            datagrams: DatagramSockets::default(),
            agenda: EventQueue::default(),
            woken: Vec::new(),
            open: 0,
            calls: 0,
            panic_at: None,
            panics: 0,
            send_failure: None,
            guest_ports: BTreeMap::new(),
            given: None,
            wrong: Vec::new(),
        }
    }

    /// Sets the result of connects to TCP port `port` of every address, and the script of the peer there. One connect
    /// reaches that peer; another call of this function permits one more.
    pub fn serve(&mut self, port: u16, answer: ConnectResult, script: Script) {
        self.taken.remove(&port);
        self.remotes.insert(port, RemotePort::new(answer, script));
    }

    /// As [`Self::serve`], with a peer that is a proxy.
    pub fn serve_proxy(&mut self, port: u16, answer: ConnectResult, script: Script, proxy: ProxyExchange) {
        self.serve(port, answer, script);
        if let Some(remote) = self.remotes.get_mut(&port) {
            remote.proxy = proxy;
        }
    }

    /// Returns the requests that the proxy at the last connection to `port` has received, as far as they were sent.
    #[must_use]
    pub fn proxy_request(&self, port: u16) -> &[u8] {
        let mut conns = self.conns.iter().rev();
        conns
            .find(|conn| conn.port() == port)
            .map_or(&[], SimConnection::proxy_request)
    }

    /// Sets the result of connects as [`Self::serve`]. The peer receives any bytes, and records them.
    pub fn serve_recording(&mut self, port: u16, answer: ConnectResult, script: Script) {
        self.serve(port, answer, script);
        self.record(port);
    }

    /// Has the peer at the next connection to `port` record the bytes that it receives, behind the requests to a proxy.
    pub fn record(&mut self, port: u16) {
        if let Some(remote) = self.remotes.get_mut(&port) {
            remote.records = true;
        }
    }

    /// Returns the bytes that each recording peer has received.
    pub fn recorded(&self) -> impl Iterator<Item = &[u8]> {
        self.conns.iter().filter_map(SimConnection::recorded)
    }

    /// Sets the DNS response to the next query. It gets the id of the query.
    pub fn answer_query(&mut self, response: Vec<u8>) {
        self.datagrams.answer_query(response);
    }

    /// Sets the result of the next connect to TCP port `port` from a socket of the guest's network namespace, and the script of
    /// the peer there. `stream` is that of the client with which the connection is joined.
    pub fn serve_inside(&mut self, port: u16, stream: u16, answer: ConnectResult, script: Script) {
        self.guest_ports
            .insert(port, (stream, RemotePort::new(answer, script)));
    }

    /// Returns how the connections of programs in the guest's network namespace have ended, by stream.
    #[must_use]
    pub fn outcomes_inside(&self) -> BTreeMap<u16, Option<ConnectionEnd>> {
        let inside = self.conns.iter().filter(|conn| conn.is_inside);
        inside
            .map(SimConnection::report)
            .filter_map(|report| Some((report.port, report.app?.outcome())))
            .collect()
    }

    /// Adds `own` to the addresses of the host's interfaces.
    pub fn gain_address(&mut self, own: IpAddr) {
        self.own.insert(own);
    }

    /// Schedules a client that connects from `peer` to the listener `listener` at the time `at`. `stream` selects the
    /// contents of the streams.
    pub fn connect_in(&mut self, listener: u32, peer: SocketAddr, stream: u16, script: Script, at: Instant) {
        let conn = SimConnection::incoming(&self.plan, listener, peer, stream, script, self.rng.fork(), at);
        self.conns.push(conn);
        self.schedule(self.conns.len() - 1, at);
    }

    /// Schedules a program of the guest that connects from `peer` to the listener `listener` in the guest's network namespace, as
    /// [`Self::connect_in`].
    pub fn connect_inside(
        &mut self,
        listener: u32,
        peer: SocketAddr,
        stream: u16,
        script: Script,
        at: Instant,
    ) {
        self.connect_in(listener, peer, stream, script, at);
        if let Some(conn) = self.conns.last_mut() {
            conn.place_inside(stream);
        }
    }

    /// Returns the results of all connections.
    pub fn reports(&self) -> impl Iterator<Item = PeerReport> {
        self.conns.iter().map(SimConnection::report)
    }

    /// Returns the number of sockets that the engine has open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Returns the number of peers whose script has not finished.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.conns.iter().filter(|conn| !conn.done()).count()
    }

    /// Returns the number of calls that the engine has made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Makes the call after the next `calls` calls panic, as a handler with a bug would. Calls that close a socket
    /// are not counted and do not panic, as the socket would be lost.
    pub fn panic_after(&mut self, calls: u64) {
        self.panic_at = Some(self.calls + calls);
    }

    /// Makes the next send on a TCP socket fail with this error, as if a firewall rejected it. The connection stays
    /// open.
    pub fn fail_send(&mut self, failure: Failure) {
        self.send_failure = Some(failure);
    }

    /// Gives the host a stream to the peer of the served port `port`, for the next verdict that redirects to a stream.
    pub fn give_stream(&mut self, port: u16) {
        self.given = Some(port);
    }

    /// Returns the number of calls that panicked because of [`Self::panic_after`].
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.panics
    }

    fn count_call(&mut self) {
        self.calls += 1;
        if self.panic_at.is_some_and(|at| self.calls > at) {
            self.panic_at = None;
            self.panics += 1;
            panic!("call {} was to panic", self.calls);
        }
    }

    /// Returns descriptions of the engine's violations of the socket API.
    #[must_use]
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// Returns the time of the host's next event.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        if self.woken.is_empty() {
            self.agenda.next()
        } else {
            Some(self.now)
        }
    }

    /// Runs the peers until `now`, and delivers datagrams that have arrived.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        while let Some(due) = self.agenda.pop(now) {
            match due {
                ScheduledPeer::Conn(index) => {
                    let tick = self.conns[index].take_tick(now);
                    if tick == Tick::Expired {
                        self.run(index);
                    }
                }
                ScheduledPeer::Datagram(index) => {
                    let activity = self.datagrams.arrive(index, now);
                    if activity == Activity::Event {
                        self.wake(PendingEvent::Datagram(index));
                    }
                }
            }
        }
    }

    /// Removes and returns the pending socket events.
    pub fn events(&mut self) -> Vec<(FlowId, Readiness)> {
        let woken = core::mem::take(&mut self.woken);
        woken.into_iter().filter_map(|woken| self.event(woken)).collect()
    }

    fn event(&mut self, woken: PendingEvent) -> Option<(FlowId, Readiness)> {
        match woken {
            PendingEvent::Conn(index) => self.conns[index].poll(self.now),
            PendingEvent::Datagram(index) => self.datagrams.poll(index),
            PendingEvent::Listener(index) => {
                let readable = self.listeners.get(&index).is_some_and(|queue| !queue.is_empty());
                let flow = FlowId {
                    kind: Kind::Listener,
                    worker: WorkerId(0),
                    index,
                    generation: 0,
                };
                let ready = Readiness {
                    readable,
                    ..Readiness::default()
                };
                readable.then_some((flow, ready))
            }
        }
    }

    fn run(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let arrival = conn.complete_arrival();
        if arrival == Arrival::Completed {
            let listener = conn.listener;
            self.listeners.entry(listener).or_default().push_back(index);
            self.wake(PendingEvent::Listener(listener));
        }
        let conn = &mut self.conns[index];
        let activity = conn.run(self.now);
        if activity == Activity::Event {
            self.wake(PendingEvent::Conn(index));
        }
        if let Some(next) = self.conns[index].next(self.now) {
            self.schedule(index, next);
        }
    }

    fn schedule(&mut self, index: usize, at: Instant) {
        let schedule = self.conns[index].schedule_tick(at);
        if schedule == Schedule::Changed {
            self.agenda.push(at, ScheduledPeer::Conn(index));
        }
    }

    /// Schedules the time at which sent bytes or a FIN arrive at the peer of connection `index`.
    fn reach_peer(&mut self, index: usize) {
        let at = self.now + self.plan.delay;
        self.schedule(index, at);
    }

    fn wake(&mut self, woken: PendingEvent) {
        if !self.woken.contains(&woken) {
            self.woken.push(woken);
        }
    }

    fn complain(&mut self, what: String) {
        self.wrong.push(what);
    }

    fn conn(&mut self, socket: &SimSocket, what: &str) -> Result<usize, Failure> {
        self.count_call();
        self.held_conn(socket, what)
    }

    fn held_conn(&mut self, socket: &SimSocket, what: &str) -> Result<usize, Failure> {
        match socket.0 {
            SocketIndex::Tcp(index) if self.conns[index].held => Ok(index),
            name => {
                self.complain(format!("{what} on {name:?}, which is closed or not TCP"));
                Err(Failure::Invalid)
            }
        }
    }

    fn datagram(&mut self, socket: &SimSocket, what: &str) -> Result<usize, Failure> {
        self.count_call();
        self.held_datagram(socket, what)
    }

    fn held_datagram(&mut self, socket: &SimSocket, what: &str) -> Result<usize, Failure> {
        match socket.0 {
            SocketIndex::Datagram(index) if self.datagrams.held(index) => Ok(index),
            name => {
                self.complain(format!("{what} on {name:?}, which is closed or TCP"));
                Err(Failure::Invalid)
            }
        }
    }

    /// Sets the number of sockets that may be open at one time.
    pub fn set_descriptors(&mut self, descriptors: usize) {
        self.plan.descriptors = descriptors;
        self.report_listeners();
    }

    /// Reports an event for listeners whose clients could not be accepted for lack of a descriptor.
    fn report_listeners(&mut self) {
        for listener in core::mem::take(&mut self.unreported) {
            self.wake(PendingEvent::Listener(listener));
        }
    }

    fn take_descriptor(&mut self) -> Result<(), Failure> {
        self.count_call();
        if self.open >= self.plan.descriptors {
            return Err(Failure::Exhausted);
        }
        self.open += 1;
        Ok(())
    }

    fn release(&mut self, socket: SimSocket, kind: CloseMode) {
        match socket.0 {
            SocketIndex::Tcp(_) => {
                if let Ok(index) = self.held_conn(&socket, "close") {
                    self.open -= 1;
                    self.conns[index].release(kind);
                    self.reach_peer(index);
                }
            }
            SocketIndex::Datagram(_) => {
                if let Ok(index) = self.held_datagram(&socket, "close") {
                    self.open -= 1;
                    self.datagrams.release(index);
                }
            }
        }
        self.report_listeners();
    }
}

/// The last action of the engine on a TCP socket: close or reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseMode {
    Orderly,
    Abortive,
}

impl SimHost {
    /// Makes UDP datagrams to `port` of any address fail with ICMP port unreachable.
    pub fn refuse_udp(&mut self, port: u16) {
        self.datagrams.refuse(port);
    }

    /// Delivers a datagram to the socket of the published UDP port `index`. Returns false if the engine has not
    /// opened it.
    pub fn datagram_in(&mut self, index: u32, from: SocketAddr, payload: Vec<u8>) -> bool {
        let Some(socket) = self.datagrams.deliver(index, from, payload) else {
            return false;
        };
        self.wake(PendingEvent::Datagram(socket));
        true
    }

    /// Returns how the peers' connections have ended, by port.
    #[must_use]
    pub fn outcomes(&self) -> BTreeMap<u16, Option<ConnectionEnd>> {
        let outside = self.conns.iter().filter(|conn| !conn.is_inside);
        outside
            .map(SimConnection::report)
            .filter_map(|report| Some((report.port, report.app?.outcome())))
            .collect()
    }
}

#[cfg(test)]
mod tests;
