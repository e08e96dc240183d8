//! The simulated host: sockets with bounded queues, and peers that follow scripts behind them.
//!
//! Events are those of an edge-triggered epoll: one comes when something has changed, and says all that is true then.
//! What no well-mannered user of sockets does is written down as wrong, and the world fails the run for it.

mod conn;
mod datagram;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pontoon_engine::host::{Accepted, Connect, DatagramMeta, PingReply, Problem, Received};
use pontoon_engine::{Failure, FlowId, Host, Instant, Kind, Readiness, WorkerId};
use vm_memory::VolatileSlice;

use crate::app::{App, Outcome, Script};
use crate::clock::Agenda;
use crate::rng::Rng;
use conn::{Conn, Phase};
use datagram::Datagrams;

/// How the host behaves. Chances are per mille.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Bytes that a TCP socket's send queue holds.
    pub send_buffer: u64,
    /// Bytes that a TCP socket's receive queue holds.
    pub receive_buffer: u64,
    /// A send takes fewer bytes than there is room for.
    pub short_writes: u32,
    /// A send finds no room, whatever the queue says, for [`Self::block_time`].
    pub blocks: u32,
    /// How long such a phase lasts.
    pub block_time: Duration,
    /// Whether peeks may begin anywhere.
    pub peeks_at_offset: bool,
    /// Time from a socket to the peer behind it.
    pub delay: Duration,
    /// Sockets that may be open at one time.
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
            delay: Duration::from_micros(100),
            descriptors: 1 << 20,
        }
    }
}

/// Who is at a port of the world.
#[derive(Clone, Debug)]
pub struct Remote {
    /// How a connect ends.
    pub answer: Answer,
    /// What the peer does then.
    pub script: Script,
}

/// How a connect ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It stands at once.
    Now,
    /// It stands after a while.
    After(Duration),
    /// The call fails.
    Fail(Failure),
    /// It fails after a while.
    FailAfter(Duration, Failure),
    /// Nothing ever answers (the host gives up after 127 s, as Linux with six retries of SYN).
    Never,
}

/// A socket's name. It is not `Clone`: who closes it has it no more.
#[derive(Debug)]
pub struct SimSocket(Name);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Tcp(usize),
    Datagram(usize),
}

/// The simulated host.
#[derive(Debug)]
pub struct SimHost {
    plan: HostPlan,
    rng: Rng,
    now: Instant,
    remotes: BTreeMap<u16, Remote>,
    taken: BTreeSet<u16>,
    conns: Vec<Conn>,
    listeners: BTreeMap<u32, VecDeque<usize>>,
    datagrams: Datagrams,
    agenda: Agenda<Due>,
    woken: Vec<Woken>,
    open: usize,
    calls: u64,
    wrong: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Conn(usize),
    Datagram(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Conn(usize),
    Listener(u32),
    Datagram(usize),
}

/// What became of one connection, seen from its peer.
#[derive(Clone, Debug)]
pub struct PeerReport {
    /// The port that names the connection.
    pub port: u16,
    /// The peer's application; `None` where it was never reached.
    pub app: Option<App>,
    /// Whether the engine still has the socket.
    pub held: bool,
    /// Keepalive was turned on.
    pub keepalive: bool,
}

impl SimHost {
    /// A host where every port refuses.
    #[must_use]
    pub fn new(plan: HostPlan, rng: Rng) -> Self {
        Self {
            plan,
            rng,
            now: Instant(0),
            remotes: BTreeMap::new(),
            taken: BTreeSet::new(),
            conns: Vec::new(),
            listeners: BTreeMap::new(),
            datagrams: Datagrams::default(),
            agenda: Agenda::default(),
            woken: Vec::new(),
            open: 0,
            calls: 0,
            wrong: Vec::new(),
        }
    }

    /// Puts a peer behind TCP port `port` of every address.
    pub fn serve(&mut self, port: u16, remote: Remote) {
        self.remotes.insert(port, remote);
    }

    /// A client at `peer` connects to the listener `listener` at `at`. `stream` names the contents.
    pub fn connect_in(&mut self, listener: u32, peer: SocketAddr, stream: u16, script: Script, at: Instant) {
        let conn = Conn::incoming(&self.plan, listener, peer, stream, script, self.rng.fork(), at);
        self.conns.push(conn);
        self.schedule(self.conns.len() - 1, at);
    }

    /// What became of every connection.
    pub fn reports(&self) -> impl Iterator<Item = PeerReport> {
        self.conns.iter().map(Conn::report)
    }

    /// Sockets that the engine has open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Peers that are not done.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.conns.iter().filter(|conn| !conn.done()).count()
    }

    /// Calls that the engine has made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// What the engine did that is not done.
    #[must_use]
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// When something happens next.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        if self.woken.is_empty() {
            self.agenda.next()
        } else {
            Some(self.now)
        }
    }

    /// Lets everything happen that is due by `now`.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        while let Some(due) = self.agenda.pop(now) {
            match due {
                Due::Conn(index) => {
                    if self.conns[index].due(now) {
                        self.run(index);
                    }
                }
                Due::Datagram(index) => {
                    if self.datagrams.arrive(index, now) {
                        self.wake(Woken::Datagram(index));
                    }
                }
            }
        }
    }

    /// Takes the events, each said once.
    pub fn events(&mut self) -> Vec<(FlowId, Readiness)> {
        let woken = core::mem::take(&mut self.woken);
        woken.into_iter().filter_map(|woken| self.event(woken)).collect()
    }

    fn event(&mut self, woken: Woken) -> Option<(FlowId, Readiness)> {
        match woken {
            Woken::Conn(index) => self.conns[index].poll(self.now),
            Woken::Datagram(index) => self.datagrams.poll(index),
            Woken::Listener(index) => {
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
        if conn.arrives() {
            let listener = conn.listener;
            self.listeners.entry(listener).or_default().push_back(index);
            self.wake(Woken::Listener(listener));
        }
        let conn = &mut self.conns[index];
        let woke = conn.run(self.now);
        if woke {
            self.wake(Woken::Conn(index));
        }
        if let Some(next) = self.conns[index].next(self.now) {
            self.schedule(index, next);
        }
    }

    fn schedule(&mut self, index: usize, at: Instant) {
        if self.conns[index].wants(at) {
            self.agenda.push(at, Due::Conn(index));
        }
    }

    /// Something was sent to the peer: it is there after the delay.
    fn reach_peer(&mut self, index: usize) {
        let at = self.now + self.plan.delay;
        self.schedule(index, at);
    }

    fn wake(&mut self, woken: Woken) {
        if !self.woken.contains(&woken) {
            self.woken.push(woken);
        }
    }

    fn complain(&mut self, what: String) {
        self.wrong.push(what);
    }

    fn conn(&mut self, socket: &SimSocket, what: &str) -> Result<usize, Failure> {
        self.calls += 1;
        match socket.0 {
            Name::Tcp(index) if self.conns[index].held => Ok(index),
            name => {
                self.complain(format!("{what} on {name:?}, which is closed or not TCP"));
                Err(Failure::Invalid)
            }
        }
    }

    fn datagram(&mut self, socket: &SimSocket, what: &str) -> Result<usize, Failure> {
        self.calls += 1;
        match socket.0 {
            Name::Datagram(index) if self.datagrams.held(index) => Ok(index),
            name => {
                self.complain(format!("{what} on {name:?}, which is closed or TCP"));
                Err(Failure::Invalid)
            }
        }
    }

    fn take_descriptor(&mut self) -> Result<(), Failure> {
        self.calls += 1;
        if self.open >= self.plan.descriptors {
            return Err(Failure::Exhausted);
        }
        self.open += 1;
        Ok(())
    }

    fn release(&mut self, socket: SimSocket, kind: Closing) {
        match socket.0 {
            Name::Tcp(_) => {
                if let Ok(index) = self.conn(&socket, "close") {
                    self.open -= 1;
                    self.conns[index].release(kind);
                    self.reach_peer(index);
                }
            }
            Name::Datagram(_) => {
                if let Ok(index) = self.datagram(&socket, "close") {
                    self.open -= 1;
                    self.datagrams.release(index);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Orderly,
    Abortive,
}

impl Host for SimHost {
    type Socket = SimSocket;

    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(SimSocket, Connect), Failure> {
        // Once its peer has been reached a port refuses: what comes then is an old SYN, or a guest that missed a reset.
        let taken = self.taken.contains(&to.port());
        let remote = self
            .remotes
            .get(&to.port())
            .filter(|_| !taken)
            .cloned()
            .unwrap_or(Remote {
                answer: Answer::Fail(Failure::Refused),
                script: Script::SINK,
            });
        if let Answer::Fail(failure) = remote.answer {
            self.calls += 1;
            return Err(failure);
        }
        self.take_descriptor()?;
        if matches!(remote.answer, Answer::Now | Answer::After(_)) {
            self.taken.insert(to.port());
        }
        let conn = Conn::outgoing(&self.plan, flow, to, remote, self.rng.fork(), self.now);
        let connect = match conn.phase {
            Phase::Open => Connect::Done,
            Phase::Arriving | Phase::Connecting { .. } | Phase::Failed(_) => Connect::Pending,
        };
        let index = self.conns.len();
        let first = conn.first_tick(self.now);
        self.conns.push(conn);
        self.schedule(index, first);
        if connect == Connect::Done {
            // A socket that is registered while it is writable says so.
            self.wake(Woken::Conn(index));
        }
        Ok((SimSocket(Name::Tcp(index)), connect))
    }

    fn tcp_connected(&mut self, socket: &mut SimSocket) -> Result<(), Failure> {
        let index = self.conn(socket, "connect's outcome")?;
        match self.conns[index].phase {
            Phase::Open => self.conns[index].take_error().map_or(Ok(()), Err),
            Phase::Failed(failure) => Err(failure),
            Phase::Arriving | Phase::Connecting { .. } => Err(Failure::WouldBlock),
        }
    }

    fn tcp_accept(&mut self, listener: u32, flow: FlowId) -> Result<Accepted<SimSocket>, Failure> {
        if self.listeners.get(&listener).is_none_or(VecDeque::is_empty) {
            self.calls += 1;
            return Err(Failure::WouldBlock);
        }
        self.take_descriptor()?;
        let index = self
            .listeners
            .get_mut(&listener)
            .and_then(VecDeque::pop_front)
            .ok_or(Failure::WouldBlock)?;
        let conn = &mut self.conns[index];
        conn.accept(flow);
        let peer = conn.peer;
        self.wake(Woken::Conn(index));
        Ok(Accepted {
            socket: SimSocket(Name::Tcp(index)),
            peer,
        })
    }

    fn peeks_at_offset(&self, _remote: IpAddr) -> bool {
        self.plan.peeks_at_offset
    }

    fn tcp_peek(
        &mut self,
        socket: &mut SimSocket,
        at: u32,
        into: &[VolatileSlice<'_>],
    ) -> Result<usize, Failure> {
        let index = self.conn(socket, "peek")?;
        if !self.plan.peeks_at_offset && at > DISCARD_AREA {
            self.complain(format!("peeks at {at} where peeks begin at the head"));
        }
        self.conns[index].peek(at, into, &mut self.wrong)
    }

    fn tcp_discard(&mut self, socket: &mut SimSocket, len: u32) -> Result<(), Failure> {
        let index = self.conn(socket, "discard")?;
        self.conns[index].discard(len, &mut self.wrong)?;
        self.reach_peer(index);
        Ok(())
    }

    fn tcp_send(&mut self, socket: &mut SimSocket, parts: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        let index = self.conn(socket, "send")?;
        let sent = self.conns[index].send(parts, &self.plan, self.now, &mut self.wrong);
        if let Some(at) = self.conns[index].blocked_until {
            self.schedule(index, at);
        }
        self.reach_peer(index);
        sent
    }

    fn tcp_send_room(&mut self, socket: &mut SimSocket) -> u32 {
        match self.conn(socket, "room") {
            Ok(index) => u32::try_from(self.conns[index].room()).unwrap_or(u32::MAX),
            Err(_) => 0,
        }
    }

    fn tcp_watch_room(&mut self, _: FlowId, socket: &mut SimSocket) {
        if let Ok(index) = self.conn(socket, "watch") {
            self.conns[index].watch_room();
            self.schedule(index, self.now);
        }
    }

    fn tcp_shutdown(&mut self, socket: &mut SimSocket) -> Result<(), Failure> {
        let index = self.conn(socket, "shutdown")?;
        self.conns[index].shutdown(&mut self.wrong)?;
        self.reach_peer(index);
        Ok(())
    }

    fn tcp_error(&mut self, socket: &mut SimSocket) -> Option<Failure> {
        let index = self.conn(socket, "error").ok()?;
        self.conns[index].take_error()
    }

    fn tcp_keepalive(&mut self, socket: &mut SimSocket) {
        if let Ok(index) = self.conn(socket, "keepalive") {
            self.conns[index].keepalive = true;
        }
    }

    fn close(&mut self, socket: SimSocket) {
        self.release(socket, Closing::Orderly);
    }

    fn abort(&mut self, socket: SimSocket) {
        if let Name::Datagram(_) = socket.0 {
            self.complain("aborts a datagram socket".into());
        }
        self.release(socket, Closing::Abortive);
    }

    fn udp_open(&mut self, flow: FlowId, _family_of: IpAddr) -> Result<SimSocket, Failure> {
        self.take_descriptor()?;
        Ok(SimSocket(Name::Datagram(self.datagrams.open(flow, None))))
    }

    fn udp_published(&mut self, index: u32, flow: FlowId) -> Result<SimSocket, Failure> {
        if self.datagrams.is_published(index) {
            return Err(Failure::Invalid);
        }
        self.take_descriptor()?;
        Ok(SimSocket(Name::Datagram(self.datagrams.open(flow, Some(index)))))
    }

    fn udp_connect(&mut self, socket: &mut SimSocket, to: Option<SocketAddr>) -> Result<(), Failure> {
        let index = self.datagram(socket, "connect")?;
        self.datagrams.connect(index, to);
        Ok(())
    }

    fn udp_send(
        &mut self,
        socket: &mut SimSocket,
        to: Option<SocketAddr>,
        _from: Option<IpAddr>,
        _meta: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Failure> {
        let index = self.datagram(socket, "send")?;
        let at = self.now + self.plan.delay + self.plan.delay;
        let echoes = self.datagrams.send(index, to, segment, parts, at)?;
        for _ in 0..echoes {
            self.agenda.push(at, Due::Datagram(index));
        }
        Ok(())
    }

    fn udp_receive(
        &mut self,
        socket: &mut SimSocket,
        into: &[VolatileSlice<'_>],
    ) -> Result<Received, Failure> {
        let index = self.datagram(socket, "receive")?;
        self.datagrams.receive(index, into)
    }

    fn ping_open(&mut self, flow: FlowId, _family_of: IpAddr) -> Result<SimSocket, Failure> {
        self.take_descriptor()?;
        Ok(SimSocket(Name::Datagram(self.datagrams.open(flow, None))))
    }

    fn ping_send(
        &mut self,
        socket: &mut SimSocket,
        to: IpAddr,
        _meta: DatagramMeta,
        seq: u16,
        data: &[u8],
    ) -> Result<(), Failure> {
        let index = self.datagram(socket, "ping")?;
        let at = self.now + self.plan.delay + self.plan.delay;
        self.datagrams.ping(index, to, seq, data, at);
        self.agenda.push(at, Due::Datagram(index));
        Ok(())
    }

    fn ping_receive(&mut self, socket: &mut SimSocket, into: &mut [u8]) -> Result<PingReply, Failure> {
        let index = self.datagram(socket, "ping's receive")?;
        self.datagrams.pong(index, into)
    }

    fn problem(&mut self, socket: &mut SimSocket, into: &mut [u8]) -> Option<Problem> {
        let index = self.datagram(socket, "error queue").ok()?;
        self.datagrams.problem(index, into)
    }
}

impl SimHost {
    /// UDP to `port` of any address is answered by ICMP port unreachable.
    pub fn refuse_udp(&mut self, port: u16) {
        self.datagrams.refuse(port);
    }

    /// A datagram for the socket of the published UDP port `index`. False: nobody has taken the socket over.
    pub fn datagram_in(&mut self, index: u32, from: SocketAddr, payload: Vec<u8>) -> bool {
        let Some(socket) = self.datagrams.deliver(index, from, payload) else {
            return false;
        };
        self.wake(Woken::Datagram(socket));
        true
    }

    /// Outcomes of the peers that scripts were given to, by port.
    #[must_use]
    pub fn outcomes(&self) -> BTreeMap<u16, Option<Outcome>> {
        self.reports()
            .filter_map(|report| Some((report.port, report.app?.outcome())))
            .collect()
    }
}

/// Largest offset of a peek on a kernel without `SO_PEEK_OFF` for TCP.
const DISCARD_AREA: u32 = 256 << 10;

#[cfg(test)]
mod tests;
