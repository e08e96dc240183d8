//! UDP and ping sockets of the simulated host, whose peers echo all datagrams.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeSet, VecDeque};

use pontoon_engine::host::{DatagramMeta, PingReply, Problem, Received};
use pontoon_engine::{Failure, FlowId, Instant, Readiness};
use vm_memory::VolatileSlice;

use super::conn::Activity;

/// UDP and ping sockets that the engine has opened, and the UDP ports that answer by ICMP port unreachable.
#[derive(Debug, Default)]
pub(super) struct DatagramSockets {
    sockets: Vec<DatagramSocket>,
    refused: BTreeSet<u16>,
    /// Response to the next DNS query, which is not echoed.
    response: Option<Vec<u8>>,
}

/// A UDP or ping socket with its receive queue.
#[derive(Debug)]
struct DatagramSocket {
    flow: FlowId,
    published: Option<u32>,
    held: bool,
    peer: Option<SocketAddr>,
    coming: VecDeque<(Instant, QueuedDatagram)>,
    queue: VecDeque<QueuedDatagram>,
}

/// An entry of a socket's receive queue: a datagram, an echo reply, or an ICMP error.
#[derive(Debug)]
enum QueuedDatagram {
    Datagram(SocketAddr, Vec<u8>),
    Pong(IpAddr, u16, Vec<u8>),
    Problem(SocketAddr, Vec<u8>),
}

impl DatagramSockets {
    pub(super) fn open(&mut self, flow: FlowId, published: Option<u32>) -> usize {
        self.sockets.push(DatagramSocket {
            flow,
            published,
            held: true,
            peer: None,
            coming: VecDeque::new(),
            queue: VecDeque::new(),
        });
        self.sockets.len() - 1
    }

    pub(super) fn answer_query(&mut self, response: Vec<u8>) {
        self.response = Some(response);
    }

    pub(super) fn refuse(&mut self, port: u16) {
        self.refused.insert(port);
    }

    pub(super) fn held(&self, index: usize) -> bool {
        self.sockets[index].held
    }

    /// Returns the number of sockets that were opened.
    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Returns the flow for whose events a socket is registered, and its peer.
    pub(super) fn registered(&self, index: usize) -> (Option<FlowId>, Option<SocketAddr>) {
        let socket = &self.sockets[index];
        (Some(socket.flow).filter(|_| socket.held), socket.peer)
    }

    pub(super) fn is_published(&self, index: u32) -> bool {
        self.published(index).is_some()
    }

    fn published(&self, index: u32) -> Option<usize> {
        self.sockets
            .iter()
            .position(|socket| socket.held && socket.published == Some(index))
    }

    pub(super) fn release(&mut self, index: usize) {
        self.sockets[index].held = false;
    }

    pub(super) fn connect(&mut self, index: usize, to: Option<SocketAddr>) {
        self.sockets[index].peer = to;
    }

    pub(super) fn deliver(&mut self, index: u32, from: SocketAddr, payload: Vec<u8>) -> Option<usize> {
        let socket = self.published(index)?;
        self.sockets[socket]
            .queue
            .push_back(QueuedDatagram::Datagram(from, payload));
        Some(socket)
    }

    /// Sends datagrams, and returns the number of replies, which arrive at the time `at`.
    pub(super) fn send(
        &mut self,
        index: usize,
        to: Option<SocketAddr>,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
        at: Instant,
    ) -> Result<usize, Failure> {
        let socket = &mut self.sockets[index];
        let to = to.or(socket.peer).ok_or(Failure::Invalid)?;
        let mut bytes = Vec::new();
        for part in parts {
            let begin = bytes.len();
            bytes.resize(begin + part.len(), 0);
            part.copy_to(&mut bytes[begin..]);
        }
        let most = if to.is_ipv4() { 65_507 } else { 65_527 };
        if bytes.len() > most {
            return Err(Failure::TooBig);
        }
        let size = match segment {
            Some(0) => return Err(Failure::Invalid),
            // The limit is UDP_MAX_SEGMENTS of Linux before 6.9.
            Some(size) if bytes.len().div_ceil(usize::from(size)) > 64 => return Err(Failure::Invalid),
            Some(size) => usize::from(size),
            None => bytes.len(),
        };
        let datagrams: Vec<_> = if bytes.is_empty() {
            vec![Vec::new()]
        } else {
            bytes.chunks(size).map(<[u8]>::to_vec).collect()
        };
        let count = datagrams.len();
        for mut payload in datagrams {
            if to.port() == DNS
                && let Some(response) = self.response.take()
            {
                payload.truncate(2);
                payload.extend(response.get(2..).unwrap_or_default());
            }
            let item = if self.refused.contains(&to.port()) {
                QueuedDatagram::Problem(to, payload)
            } else {
                QueuedDatagram::Datagram(to, payload)
            };
            socket.coming.push_back((at, item));
        }
        Ok(count)
    }

    pub(super) fn ping(&mut self, index: usize, to: IpAddr, seq: u16, data: &[u8], at: Instant) {
        let item = QueuedDatagram::Pong(to, seq, data.to_vec());
        self.sockets[index].coming.push_back((at, item));
    }

    /// Moves the next reply to the receive queue if it has arrived.
    pub(super) fn arrive(&mut self, index: usize, now: Instant) -> Activity {
        let socket = &mut self.sockets[index];
        let due = socket.coming.front().is_some_and(|(at, _)| *at <= now);
        if !socket.held || !due {
            return Activity::None;
        }
        socket
            .queue
            .extend(socket.coming.pop_front().map(|(_, item)| item));
        Activity::Event
    }

    pub(super) fn poll(&mut self, index: usize) -> Option<(FlowId, Readiness)> {
        let socket = &self.sockets[index];
        let is_problem = |item: &QueuedDatagram| matches!(item, QueuedDatagram::Problem(..));
        socket.held.then(|| {
            let ready = Readiness {
                readable: socket.queue.iter().any(|item| !is_problem(item)),
                writable: true,
                end: false,
                error: socket.queue.iter().any(is_problem),
                urgent: false,
            };
            (socket.flow, ready)
        })
    }

    pub(super) fn receive(&mut self, index: usize, into: &[VolatileSlice<'_>]) -> Result<Received, Failure> {
        let queue = &mut self.sockets[index].queue;
        let at = queue
            .iter()
            .position(|item| matches!(item, QueuedDatagram::Datagram(..)))
            .ok_or(Failure::WouldBlock)?;
        let Some(QueuedDatagram::Datagram(from, mut bytes)) = queue.remove(at) else {
            return Err(Failure::WouldBlock);
        };
        let room: usize = into.iter().map(VolatileSlice::len).sum();
        bytes.truncate(room);
        let stride = bytes.len();
        // Consecutive datagrams of one sender and length are received together (UDP_GRO), as far as they fit the
        // buffer.
        while let Some(QueuedDatagram::Datagram(next, more)) = queue.get(at)
            && *next == from
            && !more.is_empty()
            && more.len() <= stride
            && bytes.len() + more.len() <= room.min(0xffff)
        {
            let short = more.len() < stride;
            bytes.extend(more);
            queue.remove(at);
            if short {
                break;
            }
        }
        let mut done = 0;
        for slice in into {
            let len = slice.len().min(bytes.len() - done);
            slice.copy_from(&bytes[done..done + len]);
            done += len;
        }
        Ok(Received {
            len: done,
            stride,
            from,
            to: None,
            meta: META,
        })
    }

    pub(super) fn pong(&mut self, index: usize, into: &mut [u8]) -> Result<PingReply, Failure> {
        let queue = &mut self.sockets[index].queue;
        let at = queue
            .iter()
            .position(|item| matches!(item, QueuedDatagram::Pong(..)))
            .ok_or(Failure::WouldBlock)?;
        let Some(QueuedDatagram::Pong(from, seq, data)) = queue.remove(at) else {
            return Err(Failure::WouldBlock);
        };
        let len = data.len().min(into.len());
        into[..len].copy_from_slice(&data[..len]);
        Ok(PingReply {
            from,
            seq,
            len,
            meta: META,
        })
    }

    pub(super) fn problem(&mut self, index: usize, into: &mut [u8]) -> Option<Problem> {
        let queue = &mut self.sockets[index].queue;
        let at = queue
            .iter()
            .position(|item| matches!(item, QueuedDatagram::Problem(..)))?;
        let Some(QueuedDatagram::Problem(destination, data)) = queue.remove(at) else {
            return None;
        };
        let len = data.len().min(into.len());
        into[..len].copy_from_slice(&data[..len]);
        let (kind, code) = if destination.is_ipv4() { (3, 3) } else { (1, 4) };
        Some(Problem {
            destination,
            offender: Some(destination.ip()),
            kind,
            code,
            mtu: None,
            payload_len: len,
        })
    }
}

const META: DatagramMeta = DatagramMeta {
    hop_limit: 61,
    traffic_class: 0,
    dont_fragment: false,
};

/// Port of DNS (RFC 1035 section 4.2).
const DNS: u16 = 53;
