//! A fake host with scripted sockets, which records the engine's calls.

use core::net::{IpAddr, SocketAddr};
use std::collections::{HashMap, VecDeque};

use vm_memory::VolatileSlice;

use super::{addr, ip};
use crate::host::{AcceptedConnection, Connect, DatagramMeta, KeepaliveTimes, PingReply, Problem, Received};
use crate::{Failure, FlowId, Host, Readiness};

/// A fake host, whose sockets are numbers in the order in which they were opened.
#[derive(Default)]
pub(crate) struct FakeHost {
    calls: Vec<String>,
    sockets: HashMap<usize, Queues>,
    opened: usize,
    /// Socket, destination and content of each datagram that was sent.
    pub(crate) sent: Vec<(usize, SocketAddr, Vec<u8>)>,
    /// For each send, true if the host was not permitted to fragment the datagram.
    pub(crate) dont_fragment: Vec<bool>,
    /// Destinations to which a UDP connect fails.
    pub(crate) unreachable: Vec<SocketAddr>,
    /// Results of the next sends; further sends succeed.
    pub(crate) sends: VecDeque<Result<(), Failure>>,
    /// Errors of the next opens; further opens succeed.
    pub(crate) opens: VecDeque<Failure>,
}

#[derive(Default)]
struct Queues {
    received: VecDeque<Result<(Received, Vec<u8>), Failure>>,
    replies: VecDeque<Result<(PingReply, Vec<u8>), Failure>>,
    problems: VecDeque<(Problem, Vec<u8>)>,
    flow: Option<FlowId>,
    peer: Option<SocketAddr>,
}

impl FakeHost {
    pub(crate) fn open_sockets(&self) -> usize {
        self.sockets.len()
    }

    pub(crate) fn flow(&self, socket: usize) -> FlowId {
        self.sockets[&socket].flow.unwrap()
    }

    /// Adds datagrams of `stride` bytes, received by one call, to a socket's receive queue.
    pub(crate) fn queue(
        &mut self,
        socket: usize,
        from: &str,
        to: Option<&str>,
        payload: &[u8],
        stride: usize,
    ) {
        let received = Received {
            len: payload.len(),
            stride,
            from: addr(from),
            to: to.map(|to| to.parse().unwrap()),
            meta: META,
        };
        let queues = self.sockets.get_mut(&socket).unwrap();
        queues.received.push_back(Ok((received, payload.to_vec())));
    }

    pub(crate) fn queue_reply(&mut self, socket: usize, from: &str, seq: u16, data: &[u8]) {
        let reply = PingReply {
            from: from.parse().unwrap(),
            seq,
            len: data.len(),
            meta: META,
        };
        let queues = self.sockets.get_mut(&socket).unwrap();
        queues.replies.push_back(Ok((reply, data.to_vec())));
    }

    pub(crate) fn queue_failure(&mut self, socket: usize, failure: Failure) {
        let queues = self.sockets.get_mut(&socket).unwrap();
        queues.received.push_back(Err(failure));
        queues.replies.push_back(Err(failure));
    }

    pub(crate) fn queue_problem(&mut self, socket: usize, problem: Problem, payload: &[u8]) {
        let queues = self.sockets.get_mut(&socket).unwrap();
        let problem = Problem {
            payload_len: payload.len(),
            ..problem
        };
        queues.problems.push_back((problem, payload.to_vec()));
    }

    /// Returns the calls since the previous call of this function.
    pub(crate) fn take_calls(&mut self) -> Vec<String> {
        core::mem::take(&mut self.calls)
    }

    fn open(&mut self, flow: FlowId, call: String) -> Result<usize, Failure> {
        if let Some(failure) = self.opens.pop_front() {
            return Err(failure);
        }
        let socket = self.opened;
        self.opened += 1;
        let queues = Queues {
            flow: Some(flow),
            ..Queues::default()
        };
        self.sockets.insert(socket, queues);
        self.calls.push(format!("{socket}: {call}"));
        Ok(socket)
    }
}

fn bytes(parts: &[VolatileSlice<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; parts.iter().map(VolatileSlice::len).sum()];
    let mut at = 0;
    for part in parts {
        at += part.copy_to(&mut bytes[at..]);
    }
    bytes
}

/// Returns an entry of an error queue.
pub(crate) fn problem(destination: &str, offender: Option<&str>, kind: u8, code: u8) -> Problem {
    Problem {
        destination: addr(destination),
        offender: offender.map(ip),
        kind,
        code,
        mtu: None,
        payload_len: 0,
    }
}

pub(crate) const READABLE: Readiness = Readiness {
    readable: true,
    writable: false,
    end: false,
    error: false,
    urgent: false,
};

/// Event: the error queue has an entry.
pub(crate) const TROUBLE: Readiness = Readiness {
    error: true,
    ..READABLE
};

/// IP header fields of all received datagrams.
const META: DatagramMeta = DatagramMeta {
    hop_limit: 57,
    traffic_class: 0,
    dont_fragment: true,
};

impl Host for FakeHost {
    type Socket = usize;

    fn close(&mut self, socket: usize) {
        self.sockets
            .remove(&socket)
            .expect("a socket is closed only once");
        self.calls.push(format!("{socket}: close"));
    }

    fn udp_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<usize, Failure> {
        self.open(flow, format!("udp v{}", if family_of.is_ipv4() { 4 } else { 6 }))
    }

    fn udp_published(&mut self, index: u32, flow: FlowId) -> Result<usize, Failure> {
        self.open(flow, format!("published {index}"))
    }

    fn udp_connect(&mut self, socket: &mut usize, to: Option<SocketAddr>) -> Result<(), Failure> {
        self.calls.push(match to {
            Some(to) => format!("{socket}: connect {to}"),
            None => format!("{socket}: disconnect"),
        });
        if to.is_some_and(|to| self.unreachable.contains(&to)) {
            return Err(Failure::NetUnreachable);
        }
        self.sockets.get_mut(socket).unwrap().peer = to;
        Ok(())
    }

    fn udp_send(
        &mut self,
        socket: &mut usize,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
        meta: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Failure> {
        let receiver = to.or(self.sockets[socket].peer).expect("the socket is connected");
        let bytes = bytes(parts);
        let len = bytes.len();
        self.sent.push((*socket, receiver, bytes));
        self.dont_fragment.push(meta.dont_fragment);
        let to = to.map_or("peer".to_owned(), |to| to.to_string());
        let from = from.map_or(String::new(), |from| format!("from {from} "));
        let segment = segment.map_or(String::new(), |segment| format!(" by {segment}"));
        let hop = meta.hop_limit;
        let outcome = self.sends.pop_front().unwrap_or(Ok(()));
        let result = outcome.map_or_else(|failure| format!(" {failure:?}"), |()| String::new());
        self.calls
            .push(format!("{socket}: {from}> {to} hop {hop} {len}{segment}{result}"));
        outcome
    }

    fn udp_receive(&mut self, socket: &mut usize, into: &[VolatileSlice<'_>]) -> Result<Received, Failure> {
        let queues = self.sockets.get_mut(socket).unwrap();
        let (received, payload) = queues.received.pop_front().unwrap_or(Err(Failure::WouldBlock))?;
        assert!(payload.len() <= into[0].len(), "room for the longest datagram");
        into[0].copy_from(&payload);
        Ok(received)
    }

    fn ping_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<usize, Failure> {
        self.open(flow, format!("ping v{}", if family_of.is_ipv4() { 4 } else { 6 }))
    }

    fn ping_send(
        &mut self,
        socket: &mut usize,
        to: IpAddr,
        meta: DatagramMeta,
        seq: u16,
        data: &[u8],
    ) -> Result<(), Failure> {
        let outcome = self.sends.pop_front().unwrap_or(Ok(()));
        let result = outcome.map_or_else(|failure| format!(" {failure:?}"), |()| String::new());
        let (hop, len) = (meta.hop_limit, data.len());
        self.calls
            .push(format!("{socket}: ping {to} seq {seq} hop {hop} {len}{result}"));
        outcome
    }

    fn ping_receive(&mut self, socket: &mut usize, into: &mut [u8]) -> Result<PingReply, Failure> {
        let queues = self.sockets.get_mut(socket).unwrap();
        let (reply, data) = queues.replies.pop_front().unwrap_or(Err(Failure::WouldBlock))?;
        into[..data.len()].copy_from_slice(&data);
        Ok(reply)
    }

    fn problem(&mut self, socket: &mut usize, into: &mut [u8]) -> Option<Problem> {
        let (problem, payload) = self.sockets.get_mut(socket)?.problems.pop_front()?;
        let len = payload.len().min(into.len());
        into[..len].copy_from_slice(&payload[..len]);
        Some(problem)
    }

    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(usize, Connect), Failure> {
        let socket = self.open(flow, format!("tcp {to}"))?;
        Ok((socket, Connect::Pending))
    }
    fn tcp_connected(&mut self, _: &mut usize) -> Result<(), Failure> {
        unreachable!("these tests use no TCP")
    }
    fn tcp_reaches_host(&mut self, _: &mut usize, _: IpAddr, _: core::time::Duration) -> bool {
        unreachable!("these tests use no TCP")
    }
    fn tcp_accept(&mut self, _: u32, _: FlowId) -> Result<AcceptedConnection<usize>, Failure> {
        unreachable!("these tests use no TCP")
    }
    fn tcp_assign(&mut self, _: FlowId, _: &mut usize) -> Result<(), Failure> {
        unreachable!("these tests use no TCP")
    }
    fn tcp_adopt(&mut self, _: FlowId) -> Result<usize, Failure> {
        unreachable!("these tests use no TCP")
    }
    fn peeks_at_offset(&self, _: IpAddr) -> bool {
        unreachable!("these tests use no TCP")
    }
    fn short_peek_is_last(&self, _: &usize) -> bool {
        true
    }

    fn tcp_peek(&mut self, _: &mut usize, _: u32, _: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        unreachable!("these tests use no TCP")
    }
    fn tcp_discard(&mut self, _: &mut usize, _: u32) -> Result<(), Failure> {
        unreachable!("these tests use no TCP")
    }
    fn tcp_send(&mut self, _: &mut usize, _: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        unreachable!("these tests use no TCP")
    }
    fn tcp_receive_memory(&mut self, _: &mut usize) -> u32 {
        unreachable!("these tests use no TCP")
    }
    fn tcp_send_room(&mut self, _: &mut usize) -> u32 {
        unreachable!("these tests use no TCP")
    }
    fn tcp_watch_room(&mut self, _: FlowId, _: &mut usize) {
        unreachable!("these tests use no TCP")
    }
    fn tcp_shutdown(&mut self, _: &mut usize) -> Result<(), Failure> {
        unreachable!("these tests use no TCP")
    }
    fn tcp_error(&mut self, _: &mut usize) -> Option<Failure> {
        unreachable!("these tests use no TCP")
    }
    fn tcp_keepalive(&mut self, _: &mut usize, _: Option<KeepaliveTimes>) {
        unreachable!("these tests use no TCP")
    }
    fn guest_sockets_late(&mut self) {
        unreachable!("these tests use no TCP")
    }
    fn abort(&mut self, socket: usize) {
        self.sockets
            .remove(&socket)
            .expect("a socket is closed only once");
        self.calls.push(format!("{socket}: abort"));
    }
}
