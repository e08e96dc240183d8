//! Implementation of the engine's trait [`Host`] for the simulated host.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::num::NonZeroUsize;
use core::time::Duration;
use std::collections::VecDeque;

use pontoon_engine::host::{
    AcceptedConnection, Connect, DatagramMeta, KeepaliveTimes, PingReply, Problem, Received,
};
use pontoon_engine::{Failure, FlowId, Host};
use vm_memory::VolatileSlice;

use super::conn::{Phase, SimConnection};
use super::{
    CloseMode, ConnectResult, PendingEvent, ProxyExchange, RemotePort, ScheduledPeer, SimHost, SimSocket,
    SocketIndex,
};
use crate::app::Script;

impl Host for SimHost {
    type Socket = SimSocket;

    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(SimSocket, Connect), Failure> {
        // A port refuses connects after its peer was reached once: a further connect is caused by an old SYN, or by a
        // guest that missed a reset.
        let taken = self.taken.contains(&to.port());
        let remote = self
            .remotes
            .get(&to.port())
            .filter(|_| !taken)
            .cloned()
            .unwrap_or(RemotePort {
                records: false,
                answer: ConnectResult::Fail(Failure::Refused),
                script: Script::SINK,
                proxy: ProxyExchange::default(),
            });
        if let ConnectResult::Fail(failure) = remote.answer {
            self.calls += 1;
            return Err(failure);
        }
        self.take_descriptor()?;
        if matches!(remote.answer, ConnectResult::Now | ConnectResult::After(_)) {
            self.taken.insert(to.port());
        }
        let conn = SimConnection::outgoing(&self.plan, flow, to, remote, self.rng.fork(), self.now);
        Ok(self.add_outgoing(conn))
    }

    fn tcp_connected(&mut self, socket: &mut SimSocket) -> Result<(), Failure> {
        let index = self.conn(socket, "connect's outcome")?;
        match self.conns[index].phase {
            Phase::Open => self.conns[index].take_error().map_or(Ok(()), Err),
            Phase::Failed(failure) => Err(failure),
            Phase::Arriving | Phase::Connecting { .. } => Err(Failure::WouldBlock),
        }
    }

    fn tcp_reaches_host(&mut self, socket: &mut SimSocket, to: IpAddr, _took: Duration) -> bool {
        self.conn(socket, "own address").is_ok() && self.own.contains(&to)
    }

    fn guest_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(SimSocket, Connect), Failure> {
        self.calls += 1;
        let Some((stream, remote)) = self.guest_ports.remove(&to.port()) else {
            return Err(Failure::Invalid);
        };
        if let ConnectResult::Fail(failure) = remote.answer {
            return Err(failure);
        }
        self.take_descriptor()?;
        let mut conn = SimConnection::outgoing(&self.plan, flow, to, remote, self.rng.fork(), self.now);
        conn.place_inside(stream);
        Ok(self.add_outgoing(conn))
    }

    fn tcp_accept(&mut self, listener: u32, flow: FlowId) -> Result<AcceptedConnection<SimSocket>, Failure> {
        if self.listeners.get(&listener).is_none_or(VecDeque::is_empty) {
            self.calls += 1;
            return Err(Failure::WouldBlock);
        }
        if let Err(failure) = self.take_descriptor() {
            self.unreported.insert(listener);
            return Err(failure);
        }
        let index = self
            .listeners
            .get_mut(&listener)
            .and_then(VecDeque::pop_front)
            .ok_or(Failure::WouldBlock)?;
        let conn = &mut self.conns[index];
        conn.accept(flow);
        let peer = conn.peer;
        self.wake(PendingEvent::Conn(index));
        Ok(AcceptedConnection {
            socket: SimSocket(SocketIndex::Tcp(index)),
            peer,
        })
    }

    fn tcp_assign(&mut self, flow: FlowId, socket: &mut SimSocket) -> Result<(), Failure> {
        let index = self.conn(socket, "assign")?;
        self.conns[index].accept(flow);
        self.wake(PendingEvent::Conn(index));
        Ok(())
    }

    fn tcp_adopt(&mut self, flow: FlowId) -> Result<SimSocket, Failure> {
        let port = self.given.take().ok_or(Failure::Invalid)?;
        let (socket, _) = self.tcp_connect(flow, (Ipv4Addr::LOCALHOST, port).into())?;
        Ok(socket)
    }

    fn peeks_at_offset(&self, _remote: IpAddr) -> bool {
        self.plan.peeks_at_offset
    }

    fn short_peek_is_last(&self, _socket: &SimSocket) -> bool {
        self.plan.peek_limit.is_none()
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
        let limit = self.plan.peek_limit.map_or(usize::MAX, NonZeroUsize::get);
        self.conns[index].peek(at, into, limit, &mut self.wrong)
    }

    fn tcp_discard(&mut self, socket: &mut SimSocket, len: u32) -> Result<(), Failure> {
        let index = self.conn(socket, "discard")?;
        self.conns[index].discard(len, &mut self.wrong)?;
        self.reach_peer(index);
        Ok(())
    }

    fn tcp_send(&mut self, socket: &mut SimSocket, parts: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        let index = self.conn(socket, "send")?;
        if let Some(failure) = self.send_failure.take() {
            return Err(failure);
        }
        let sent = self.conns[index].send(parts, &self.plan, self.now, &mut self.wrong);
        if let Some(at) = self.conns[index].blocked_until {
            self.schedule(index, at);
        }
        self.reach_peer(index);
        sent
    }

    fn tcp_receive_memory(&mut self, socket: &mut SimSocket) -> u32 {
        match self.conn(socket, "receive memory") {
            Ok(index) => u32::try_from(self.conns[index].queued()).unwrap_or(u32::MAX),
            Err(_) => 0,
        }
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
            // EPOLL_CTL_MOD reports the whole state of the socket once more.
            self.wake(PendingEvent::Conn(index));
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

    fn tcp_keepalive(&mut self, socket: &mut SimSocket, times: Option<KeepaliveTimes>) {
        if let Ok(index) = self.conn(socket, "keepalive") {
            self.conns[index].keepalive = true;
            self.conns[index].keepalive_times = times;
        }
    }

    fn guest_sockets_late(&mut self) {}

    fn close(&mut self, socket: SimSocket) {
        self.release(socket, CloseMode::Orderly);
    }

    fn abort(&mut self, socket: SimSocket) {
        if let SocketIndex::Datagram(_) = socket.0 {
            self.complain("aborts a datagram socket".into());
        }
        self.release(socket, CloseMode::Abortive);
    }

    fn udp_open(&mut self, flow: FlowId, _family_of: IpAddr) -> Result<SimSocket, Failure> {
        self.take_descriptor()?;
        Ok(SimSocket(SocketIndex::Datagram(self.datagrams.open(flow, None))))
    }

    fn udp_published(&mut self, index: u32, flow: FlowId) -> Result<SimSocket, Failure> {
        if self.datagrams.is_published(index) {
            return Err(Failure::Invalid);
        }
        self.take_descriptor()?;
        Ok(SimSocket(SocketIndex::Datagram(
            self.datagrams.open(flow, Some(index)),
        )))
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
            self.agenda.push(at, ScheduledPeer::Datagram(index));
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
        Ok(SimSocket(SocketIndex::Datagram(self.datagrams.open(flow, None))))
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
        self.agenda.push(at, ScheduledPeer::Datagram(index));
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

/// Largest offset of a peek, in bytes, on a kernel without `SO_PEEK_OFF` for TCP.
const DISCARD_AREA: u32 = 256 << 10;

impl SimHost {
    /// Adds a connection that the engine opens.
    fn add_outgoing(&mut self, conn: SimConnection) -> (SimSocket, Connect) {
        let connect = match conn.phase {
            Phase::Open => Connect::Done,
            Phase::Arriving | Phase::Connecting { .. } | Phase::Failed(_) => Connect::Pending,
        };
        let index = self.conns.len();
        let first = conn.first_tick(self.now);
        self.conns.push(conn);
        self.schedule(index, first);
        if connect == Connect::Done {
            // Registration with epoll reports a socket that is writable already.
            self.wake(PendingEvent::Conn(index));
        }
        (SimSocket(SocketIndex::Tcp(index)), connect)
    }
}
