//! A host (trait `Host`) whose results a script decides, within the guarantees of a kernel: the receive queue of a
//! stream contains the bytes that were received and not discarded, and a closed socket has no events.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use pontoon_engine::host::{
    AcceptedConnection, Connect, DatagramMeta, KeepaliveTimes, PingReply, Problem, Received,
};
use pontoon_engine::{Failure, FlowId, Host, Kind, Readiness};
use pontoon_proxy::Protocol;
use pontoon_simnet::settings::{SERVER_V4, SERVER_V6};
use vm_memory::VolatileSlice;

use super::guest::QUERY_LEN;
use crate::script::Script;

/// A socket that the engine has open: its index in [`HostileHost`].
#[derive(Debug)]
pub(crate) struct HeldSocket(usize);

impl HeldSocket {
    pub(crate) const fn place(&self) -> usize {
        self.0
    }
}

/// A host with arbitrary results. It owns the script from which all parts of the test read.
pub(crate) struct HostileHost<'s> {
    pub(crate) script: Script<'s>,
    sockets: Vec<Socket>,
    peeks_at_offset: bool,
    /// True if the egress rules require proofs of names.
    pub(crate) has_names: bool,
    /// Protocol of the upstream proxy, if there is one.
    pub(crate) proxy: Option<Protocol>,
    /// True if one of the names does not use the proxy.
    pub(crate) has_routes: bool,
}

/// Address of the upstream proxy.
pub(crate) const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 3128);

/// Answers of a proxy that establishes the connection.
const HTTP_ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
const SOCKS_ANSWER: &[u8] = b"\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00";

/// State of a socket of the hostile host.
struct Socket {
    flow: FlowId,
    open: bool,
    /// True for an IPv6 socket, which has IPv6 peers only.
    v6: bool,
    /// Number of unread bytes in the receive queue of a stream.
    queue: u64,
    /// Number of bytes that were discarded from it, and of those that were sent.
    discarded: u64,
    sent_len: u64,
    /// True if the end of the stream follows the unread bytes.
    end: bool,
    /// The first bytes of the most recent send, at most [`KEPT`].
    sent: Vec<u8>,
    /// Destination of the most recent send.
    to: Option<SocketAddr>,
}

/// Number of bytes of a send that are kept.
const KEPT: usize = 64;

const FAILURES: [Failure; 12] = [
    Failure::WouldBlock,
    Failure::Refused,
    Failure::Reset,
    Failure::TimedOut,
    Failure::NetUnreachable,
    Failure::HostUnreachable,
    Failure::Prohibited,
    Failure::TooBig,
    Failure::Exhausted,
    Failure::InUse,
    Failure::Invalid,
    Failure::Other(5),
];

const META: DatagramMeta = DatagramMeta {
    hop_limit: 60,
    traffic_class: 0,
    dont_fragment: true,
};

impl<'s> HostileHost<'s> {
    pub(crate) fn new(mut script: Script<'s>) -> Self {
        let options = script.byte();
        Self {
            script,
            sockets: Vec::new(),
            peeks_at_offset: options & 1 == 0,
            has_names: options & 2 == 2,
            proxy: match options & 12 {
                4 => Some(Protocol::Http),
                12 => Some(Protocol::Socks5),
                _ => None,
            },
            has_routes: options & 16 == 16,
        }
    }

    /// Returns the number of open sockets.
    pub(crate) fn open(&self) -> usize {
        self.sockets.iter().filter(|socket| socket.open).count()
    }

    /// Registers a socket of an engine for the flow of its successor.
    pub(crate) fn adopt(&mut self, socket: usize, flow: FlowId) -> HeldSocket {
        self.sockets[socket].flow = flow;
        HeldSocket(socket)
    }

    /// Closes a socket that no engine has.
    pub(crate) fn release(&mut self, socket: usize) {
        self.sockets[socket].open = false;
    }

    /// Returns an event for a random socket: data, end of stream, an error, or a spurious event.
    pub(crate) fn event(&mut self) -> Option<(FlowId, Readiness)> {
        let open: Vec<usize> = (0..self.sockets.len())
            .filter(|&index| self.sockets[index].open)
            .collect();
        let index = *open.get(self.script.below(open.len().max(1)))?;
        let bits = self.script.byte();
        let more = u64::from(self.script.u16());
        let socket = &mut self.sockets[index];
        if bits & 1 != 0 && !socket.end {
            socket.queue += more;
        }
        socket.end |= bits & 4 != 0;
        let ready = Readiness {
            readable: bits & 1 != 0,
            writable: bits & 2 != 0,
            end: bits & 4 != 0,
            error: bits & 0x38 == 0x38,
            urgent: bits & 0x48 == 0x48,
        };
        Some((socket.flow, ready))
    }

    /// Returns an error for one call in sixteen.
    fn failure(&mut self) -> Option<Failure> {
        (self.script.byte() & 15 == 15).then(|| FAILURES[self.script.below(FAILURES.len())])
    }

    fn add(&mut self, flow: FlowId, v6: bool) -> HeldSocket {
        self.sockets.push(Socket {
            flow,
            open: true,
            v6,
            queue: 0,
            discarded: 0,
            sent_len: 0,
            end: false,
            sent: Vec::new(),
            to: None,
        });
        HeldSocket(self.sockets.len() - 1)
    }

    fn socket(&mut self, held: &HeldSocket) -> &mut Socket {
        let socket = &mut self.sockets[held.0];
        assert!(socket.open, "a call on a closed socket");
        socket
    }

    fn opened(&mut self, flow: FlowId, v6: bool) -> Result<HeldSocket, Failure> {
        match self.failure() {
            Some(Failure::WouldBlock) | None => Ok(self.add(flow, v6)),
            Some(failure) => Err(failure),
        }
    }

    fn keep(&mut self, held: &HeldSocket, to: Option<SocketAddr>, parts: &[VolatileSlice<'_>]) {
        let mut bytes = Vec::new();
        for part in parts {
            let begin = bytes.len();
            let len = part.len().min(KEPT - begin);
            bytes.resize(begin + len, 0);
            part.copy_to(&mut bytes[begin..]);
        }
        let socket = self.socket(held);
        socket.sent = bytes;
        socket.to = to.or(socket.to);
    }

    /// Checks that the first byte sent to a port whose connections have to prove a name is that of a TLS handshake.
    fn check_proof(&mut self, held: &HeldSocket, parts: &[VolatileSlice<'_>]) {
        let has_names = self.has_names;
        let socket = self.socket(held);
        // The decider redirects others to the loopback.
        let is_named = |to: SocketAddr| matches!(to.port(), 80 | 81) && !to.ip().is_loopback();
        let needs_proof = has_names && socket.to.is_some_and(is_named);
        let first = parts.iter().find(|part| !part.is_empty());
        if let (true, 0, Some(part)) = (needs_proof, socket.sent_len, first) {
            let mut first = [0];
            part.copy_to(&mut first);
            assert_eq!(first, [22], "data before the proof");
        }
    }

    /// Returns the source address of a received datagram: any address, or the destination of the most recent send.
    fn sender(&mut self, held: &HeldSocket) -> SocketAddr {
        let (to, v6) = (self.socket(held).to, self.socket(held).v6);
        let addresses: [IpAddr; 2] = if v6 {
            [SERVER_V6.into(), Ipv6Addr::LOCALHOST.into()]
        } else {
            [SERVER_V4.into(), Ipv4Addr::LOCALHOST.into()]
        };
        match self.script.below(8) {
            0 => (addresses[0], 53).into(),
            1 => (addresses[1], 7).into(),
            2 => (addresses[0], 4000).into(),
            _ => to.unwrap_or((addresses[0], 4001).into()),
        }
    }

    /// Writes a reply into `into`: the bytes of the most recent send with the QR flag of DNS set, one byte changed by
    /// the script, and further bytes appended. Returns its length.
    fn write_reply(&mut self, held: &HeldSocket, into: &[VolatileSlice<'_>]) -> usize {
        let mut bytes = self.socket(held).sent.clone();
        if let Some(flags) = bytes.get_mut(2) {
            *flags |= 0x80;
        }
        let at = self.script.below(KEPT);
        if let (Some(byte), true) = (bytes.get_mut(at), self.script.byte() & 1 == 1) {
            *byte ^= self.script.byte();
        }
        if self.has_names && self.script.byte() & 1 == 1 {
            answer_with_address(&mut bytes);
        }
        bytes.resize(bytes.len() + self.script.below(4000), 0x5a);
        let mut rest = &bytes[..];
        for slice in into {
            let (now, later) = rest.split_at(rest.len().min(slice.len()));
            slice.copy_from(now);
            rest = later;
        }
        bytes.len() - rest.len()
    }
}

/// Appends the address of the server to a response whose question is that of the guest's queries.
fn answer_with_address(response: &mut Vec<u8>) {
    if response.len() < QUERY_LEN {
        return;
    }
    response.truncate(QUERY_LEN);
    response[7] = 1;
    response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    response.extend(SERVER_V4.octets());
}

impl Host for HostileHost<'_> {
    type Socket = HeldSocket;

    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(HeldSocket, Connect), Failure> {
        let held = self.opened(flow, to.is_ipv6())?;
        self.socket(&held).to = Some(to);
        match self.script.byte() & 1 {
            0 => Ok((held, Connect::Done)),
            _ => Ok((held, Connect::Pending)),
        }
    }

    fn tcp_connected(&mut self, socket: &mut HeldSocket) -> Result<(), Failure> {
        self.socket(socket);
        self.failure().map_or(Ok(()), Err)
    }

    fn tcp_reaches_host(&mut self, _socket: &mut HeldSocket, _to: IpAddr, _took: Duration) -> bool {
        self.script.byte() & 31 == 31
    }

    fn tcp_accept(
        &mut self,
        _listener: u32,
        flow: FlowId,
    ) -> Result<AcceptedConnection<HeldSocket>, Failure> {
        if self.script.byte() & 3 != 3 {
            return Err(Failure::WouldBlock);
        }
        let socket = self.opened(flow, false)?;
        let peer = self.sender(&socket);
        Ok(AcceptedConnection { socket, peer })
    }

    fn tcp_assign(&mut self, flow: FlowId, socket: &mut HeldSocket) -> Result<(), Failure> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        self.socket(socket).flow = flow;
        Ok(())
    }

    fn tcp_adopt(&mut self, flow: FlowId) -> Result<HeldSocket, Failure> {
        self.opened(flow, false)
    }

    fn peeks_at_offset(&self, _remote: IpAddr) -> bool {
        self.peeks_at_offset
    }

    fn short_peek_is_last(&self, _socket: &HeldSocket) -> bool {
        true
    }

    fn tcp_peek(
        &mut self,
        socket: &mut HeldSocket,
        at: u32,
        into: &[VolatileSlice<'_>],
    ) -> Result<usize, Failure> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let room: usize = into.iter().map(VolatileSlice::len).sum();
        let proxy = self.proxy;
        let socket = self.socket(socket);
        let there = socket.queue.saturating_sub(at.into());
        let len = match usize::try_from(there).unwrap().min(room) {
            0 if socket.end => return Ok(0),
            0 => return Err(Failure::WouldBlock),
            len => len,
        };
        if let (Some(protocol), true) = (proxy, socket.to == Some(PROXY)) {
            let answer = match protocol {
                Protocol::Http => HTTP_ANSWER,
                Protocol::Socks5 => SOCKS_ANSWER,
            };
            let begin = usize::try_from(socket.discarded + u64::from(at)).unwrap();
            let mut rest = answer.get(begin..).unwrap_or_default();
            for slice in into {
                let (now, later) = rest.split_at(rest.len().min(slice.len()));
                slice.copy_from(now);
                rest = later;
            }
        }
        Ok(len)
    }

    fn tcp_discard(&mut self, socket: &mut HeldSocket, len: u32) -> Result<(), Failure> {
        let socket = self.socket(socket);
        let left = socket.queue.checked_sub(len.into());
        socket.queue = left.expect("no more is discarded than there is");
        socket.discarded += u64::from(len);
        self.failure().map_or(Ok(()), Err)
    }

    fn tcp_send(&mut self, socket: &mut HeldSocket, parts: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        self.socket(socket);
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let len: usize = parts.iter().map(VolatileSlice::len).sum();
        self.check_proof(socket, parts);
        let sent = match self.script.byte() & 7 {
            7 if len > 0 => 1 + self.script.below(len.min(65_536)),
            _ => len,
        };
        self.socket(socket).sent_len += sent as u64;
        Ok(sent)
    }

    fn tcp_receive_memory(&mut self, socket: &mut HeldSocket) -> u32 {
        u32::try_from(self.socket(socket).queue).unwrap_or(u32::MAX)
    }

    fn tcp_send_room(&mut self, socket: &mut HeldSocket) -> u32 {
        self.socket(socket);
        self.script.u32() % (4 << 20)
    }

    fn tcp_watch_room(&mut self, _flow: FlowId, socket: &mut HeldSocket) {
        self.socket(socket);
    }

    fn tcp_shutdown(&mut self, socket: &mut HeldSocket) -> Result<(), Failure> {
        self.socket(socket);
        self.failure().map_or(Ok(()), Err)
    }

    fn tcp_error(&mut self, socket: &mut HeldSocket) -> Option<Failure> {
        self.socket(socket);
        self.failure()
    }

    fn tcp_keepalive(&mut self, socket: &mut HeldSocket, _: Option<KeepaliveTimes>) {
        self.socket(socket);
    }

    fn guest_sockets_late(&mut self) {}

    fn close(&mut self, socket: HeldSocket) {
        self.socket(&socket).open = false;
    }

    fn abort(&mut self, socket: HeldSocket) {
        assert_eq!(self.socket(&socket).flow.kind, Kind::Tcp);
        self.close(socket);
    }

    fn udp_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<HeldSocket, Failure> {
        self.opened(flow, family_of.is_ipv6())
    }

    fn udp_published(&mut self, _index: u32, flow: FlowId) -> Result<HeldSocket, Failure> {
        Ok(self.add(flow, false))
    }

    fn udp_connect(&mut self, socket: &mut HeldSocket, to: Option<SocketAddr>) -> Result<(), Failure> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        self.socket(socket).to = to;
        Ok(())
    }

    fn udp_send(
        &mut self,
        socket: &mut HeldSocket,
        to: Option<SocketAddr>,
        _from: Option<IpAddr>,
        _meta: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Failure> {
        assert_ne!(segment, Some(0), "datagrams without data");
        self.keep(socket, to, parts);
        self.failure().map_or(Ok(()), Err)
    }

    fn udp_receive(
        &mut self,
        socket: &mut HeldSocket,
        into: &[VolatileSlice<'_>],
    ) -> Result<Received, Failure> {
        self.socket(socket);
        if self.script.byte() & 3 == 0 {
            return Err(Failure::WouldBlock);
        }
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let len = self.write_reply(socket, into);
        let stride = match self.script.byte() {
            cut if cut & 1 == 1 => len.min(1 + self.script.below(2000)),
            _ => len,
        };
        Ok(Received {
            len,
            stride,
            from: self.sender(socket),
            to: (self.script.byte() & 1 == 1 && !self.socket(socket).v6).then_some(SERVER_V4.into()),
            meta: META,
        })
    }

    fn ping_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<HeldSocket, Failure> {
        self.opened(flow, family_of.is_ipv6())
    }

    fn ping_send(
        &mut self,
        socket: &mut HeldSocket,
        to: IpAddr,
        _meta: DatagramMeta,
        _seq: u16,
        _data: &[u8],
    ) -> Result<(), Failure> {
        self.socket(socket).to = Some((to, 0).into());
        self.failure().map_or(Ok(()), Err)
    }

    fn ping_receive(&mut self, socket: &mut HeldSocket, into: &mut [u8]) -> Result<PingReply, Failure> {
        self.socket(socket);
        if self.script.byte() & 3 == 0 {
            return Err(Failure::WouldBlock);
        }
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        Ok(PingReply {
            from: self.sender(socket).ip(),
            seq: self.script.u16(),
            len: self.script.below(into.len() + 1),
            meta: META,
        })
    }

    fn problem(&mut self, socket: &mut HeldSocket, into: &mut [u8]) -> Option<Problem> {
        let (destination, sent) = {
            let socket = self.socket(socket);
            (socket.to?, socket.sent.clone())
        };
        if self.script.byte() & 3 != 3 {
            return None;
        }
        let payload_len = sent.len().min(into.len());
        into[..payload_len].copy_from_slice(&sent[..payload_len]);
        Some(Problem {
            destination,
            offender: (self.script.byte() & 1 == 1).then_some(SERVER_V4.into()),
            kind: self.script.byte(),
            code: self.script.byte(),
            mtu: (self.script.byte() & 1 == 1).then(|| self.script.u32()),
            payload_len,
        })
    }
}
