//! The trait [`Host`], by which the engine uses sockets of the host's kernel.
//!
//! All calls are non-blocking. A socket is registered for events when it is opened, edge triggered, with the flow's
//! [`Token`](crate::Token); the worker passes its events to the engine as [`Readiness`]. The engine must not drop a
//! socket, but return it by [`Host::close`] or [`Host::abort`].

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::FlowId;
use crate::state::record;
use vm_memory::VolatileSlice;

/// The reason why a call on a host socket failed; most correspond to values of `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// EAGAIN: there is nothing to read, or no room to write, at present.
    #[error("would block")]
    WouldBlock,
    /// ECONNREFUSED: the remote host has refused the connection, or has reported a closed UDP port.
    #[error("connection refused")]
    Refused,
    /// ECONNRESET, EPIPE, ECONNABORTED: the connection was reset.
    #[error("connection reset")]
    Reset,
    /// ETIMEDOUT: the connection has timed out.
    #[error("timed out")]
    TimedOut,
    /// ENETUNREACH, ENETDOWN, EADDRNOTAVAIL: the host has no route to the destination.
    #[error("network unreachable")]
    NetUnreachable,
    /// EHOSTUNREACH, EHOSTDOWN: the destination host is unreachable.
    #[error("host unreachable")]
    HostUnreachable,
    /// EACCES, EPERM: the host does not permit the operation.
    #[error("prohibited")]
    Prohibited,
    /// EMSGSIZE: the datagram is larger than the route's MTU, or than the socket accepts.
    #[error("message too long")]
    TooBig,
    /// EMFILE, ENFILE, ENOBUFS, ENOMEM: a resource of the host is exhausted.
    #[error("out of descriptors or memory")]
    Exhausted,
    /// EADDRINUSE: the address and port are in use by another socket.
    #[error("address in use")]
    InUse,
    /// EINVAL, EIO: the call is not possible with these arguments or on this socket.
    #[error("invalid")]
    Invalid,
    /// Any other value of `errno`, as its number.
    #[error("errno {0}")]
    Other(i32),
}

/// State of an outgoing TCP connection when [`Host::tcp_connect`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// The connection is established already.
    Done,
    /// The connection is not established yet; an event will report success or failure.
    Pending,
}

/// An event on a host socket, as epoll reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Readiness {
    /// There is data, a connection or the end of the stream to read (EPOLLIN).
    pub readable: bool,
    /// There is room in the send buffer (EPOLLOUT).
    pub writable: bool,
    /// The peer has closed its direction, and all of its data is in the receive queue (EPOLLRDHUP).
    pub end: bool,
    /// An error is pending on the socket or in its error queue (EPOLLERR).
    pub error: bool,
    /// Urgent data was received (EPOLLPRI, RFC 9293 section 3.8.5). A peek stops in front of it although more data
    /// follows.
    pub urgent: bool,
}

/// A TCP connection accepted from a client of a published port.
#[derive(Debug)]
pub struct AcceptedConnection<S> {
    /// Host socket of the accepted connection.
    pub socket: S,
    /// Address and port of the client.
    pub peer: SocketAddr,
}

/// State of two joined sockets after [`Host::tcp_move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// As many bytes as requested were moved, and there may be more.
    More,
    /// The source has no more data at present; an event reports the next.
    Drained,
    /// The sink has no more room at present; an event reports room.
    Full,
    /// The source's stream has ended, and the sink has accepted all of it.
    Ended,
}

/// Failure of one of two joined sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// The socket from which data is moved has failed.
    #[error("source: {0}")]
    Source(Failure),
    /// The socket to which data is moved has failed.
    #[error("sink: {0}")]
    Sink(Failure),
}

/// IP header fields of a datagram that are forwarded in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramMeta {
    /// TTL (IPv4) or hop limit (IPv6) of the datagram.
    pub hop_limit: u8,
    /// DSCP and ECN: the IPv4 field Type of Service, the IPv6 field Traffic Class.
    pub traffic_class: u8,
    /// DF bit of IPv4: routers must not fragment the datagram.
    pub dont_fragment: bool,
}

record! { DatagramMeta { hop_limit, traffic_class, dont_fragment } }

/// The result of a receive from a UDP socket: one datagram, or several of the same size that the kernel has coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Total number of bytes received.
    pub len: usize,
    /// Bytes of each datagram except the last (`UDP_GRO`); equal to `len` for a single datagram.
    pub stride: usize,
    /// Address and port of the datagrams' sender.
    pub from: SocketAddr,
    /// Host address to which the datagram was sent, if the socket is bound to a wildcard address.
    pub to: Option<IpAddr>,
    /// TTL, DSCP and ECN of the datagram.
    pub meta: DatagramMeta,
}

record! { Received { len, stride, from, to, meta } }

/// An entry of a socket's error queue: an ICMP error of a router or remote host, or an error of the host's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Destination of the datagram that caused the error.
    pub destination: SocketAddr,
    /// Address of the router or host that has sent the ICMP error; `None` for an error of the host's kernel.
    pub offender: Option<IpAddr>,
    /// ICMP or ICMPv6 type of the error.
    pub kind: u8,
    /// ICMP or ICMPv6 code of the error.
    pub code: u8,
    /// Next-hop MTU in bytes, if the error is that the datagram was too big.
    pub mtu: Option<u32>,
    /// Number of payload bytes of the datagram that the error quotes and that were copied to the caller's buffer.
    pub payload_len: usize,
}

/// The operations on host sockets that the engine needs, implemented with system calls and by the simulated network.
pub trait Host {
    /// An open host socket: TCP, UDP or ping.
    type Socket;

    /// Opens a TCP connection with TCP_NODELAY, registered for events. The connection's state is checked once more
    /// before the call returns, because on loopback and LANs it is often established already.
    ///
    /// # Errors
    /// The connection failed: `Refused`, `NetUnreachable`, `Exhausted`, ...
    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(Self::Socket, Connect), Failure>;

    /// Returns the result of a pending connect, after an event; the error is `WouldBlock` while it is still pending.
    ///
    /// # Errors
    /// The connection failed, with the same errors as [`Self::tcp_connect`]; `WouldBlock` if it is still pending.
    fn tcp_connected(&mut self, socket: &mut Self::Socket) -> Result<(), Failure>;

    /// Returns true if an established connection to `to` leads to the host itself, independent of the engine's list of
    /// the host's addresses: either the socket's local address equals its peer's, or the host now has the peer's
    /// address and more than one SYN may have been sent in the duration `took` of the connect.
    fn tcp_reaches_host(&mut self, socket: &mut Self::Socket, to: IpAddr, took: Duration) -> bool;

    /// Accepts a connection from the listener at `index` of the configuration, and registers it for events of `flow`.
    ///
    /// # Errors
    /// `WouldBlock` if no client waits. `Exhausted` if there is no free descriptor for the connection; an event reports
    /// the listener again when there may be one, because a socket was closed or some time has passed.
    fn tcp_accept(
        &mut self,
        listener: u32,
        flow: FlowId,
    ) -> Result<AcceptedConnection<Self::Socket>, Failure>;

    /// Registers an accepted connection for events of `flow` instead of the flow of [`Self::tcp_accept`]. An event reports
    /// the present state of the connection.
    ///
    /// # Errors
    /// `Exhausted` if the host has no memory.
    fn tcp_assign(&mut self, flow: FlowId, socket: &mut Self::Socket) -> Result<(), Failure>;

    /// Returns the connected stream socket that was given to the host with the verdict that is being handled, registered
    /// for events of `flow` ([`Verdict::RedirectToStream`](crate::decider::Verdict::RedirectToStream)).
    ///
    /// # Errors
    /// `Invalid` if no such socket was given to the host.
    fn tcp_adopt(&mut self, flow: FlowId) -> Result<Self::Socket, Failure>;

    /// Returns true if [`Self::tcp_peek`] can begin at any offset without extra cost (`SO_PEEK_OFF` on TCP: about Linux
    /// 6.10 for IPv4, 6.12 for IPv6). Otherwise the caller limits the data in flight.
    fn peeks_at_offset(&self, remote: IpAddr) -> bool;

    /// Returns true if a peek that returns fewer bytes than fit has reached the end of the receive queue. A peek of a Unix
    /// socket also ends behind each message with descriptors.
    fn short_peek_is_last(&self, socket: &Self::Socket) -> bool;

    /// Copies stream data into `into` without removing it, from `at` bytes behind the head of the receive queue. A
    /// result of 0 means the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if there is no data at this offset yet; `Reset` and others if the connection has failed.
    fn tcp_peek(
        &mut self,
        socket: &mut Self::Socket,
        at: u32,
        into: &[VolatileSlice<'_>],
    ) -> Result<usize, Failure>;

    /// Removes `len` bytes from the head of the receive queue.
    ///
    /// # Errors
    /// The connection has failed.
    fn tcp_discard(&mut self, socket: &mut Self::Socket, len: u32) -> Result<(), Failure>;

    /// Sends the parts in order, as far as the send buffer has room, and returns the number of bytes sent.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer is full; `Reset` and others if the connection has failed.
    fn tcp_send(&mut self, socket: &mut Self::Socket, parts: &[VolatileSlice<'_>]) -> Result<usize, Failure>;

    /// Returns the memory that the socket's receive queue uses, in bytes, including the kernel's overhead.
    fn tcp_receive_memory(&mut self, socket: &mut Self::Socket) -> u32;

    /// Returns the number of bytes that the send buffer would accept now.
    fn tcp_send_room(&mut self, socket: &mut Self::Socket) -> u32;

    /// Requests one more event when the socket becomes writable, although no send was refused. Without this request,
    /// the kernel reports room only after a refused send (`SOCK_NOSPACE`).
    fn tcp_watch_room(&mut self, flow: FlowId, socket: &mut Self::Socket);

    /// Opens a TCP connection from a socket of the guest's network namespace to an address there, registered for events. The
    /// connection's state is checked once more before the call returns.
    ///
    /// # Errors
    /// `WouldBlock` if the host has no such socket at present and expects some; then
    /// [`Engine::handle_guest_sockets`](crate::Engine::handle_guest_sockets) is called. `Invalid` if it expects none, because the
    /// guest is not a namespace of this host, or the process that opens the sockets does not run. Those of [`Self::tcp_connect`].
    fn guest_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(Self::Socket, Connect), Failure> {
        let _ = (flow, to);
        Err(Failure::Invalid)
    }

    /// Moves about `most` bytes from the receive queue of `from` to `to`, as far as there is data and room. Returns the
    /// number of bytes that `to` has accepted. This implementation copies them; it leaves what `to` does not accept in the
    /// receive queue.
    ///
    /// # Errors
    /// One of the connections has failed.
    fn tcp_move(
        &mut self,
        from: &mut Self::Socket,
        to: &mut Self::Socket,
        most: usize,
    ) -> Result<(usize, MoveState), MoveError> {
        let mut buffer = [0; COPY];
        let mut moved = 0;
        while moved < most {
            let part = VolatileSlice::from(&mut buffer[..]);
            let len = match self.tcp_peek(from, 0, &[part]) {
                Ok(0) => return Ok((moved, MoveState::Ended)),
                Ok(len) => len,
                Err(Failure::WouldBlock) => return Ok((moved, MoveState::Drained)),
                Err(failure) => return Err(MoveError::Source(failure)),
            };
            let part = VolatileSlice::from(&mut buffer[..len]);
            let sent = match self.tcp_send(to, &[part]) {
                Ok(sent) => sent,
                Err(Failure::WouldBlock) => return Ok((moved, MoveState::Full)),
                Err(failure) => return Err(MoveError::Sink(failure)),
            };
            moved += sent;
            let discarded = u32::try_from(sent).unwrap_or(u32::MAX);
            self.tcp_discard(from, discarded).map_err(MoveError::Source)?;
            if sent < len {
                return Ok((moved, MoveState::Full));
            }
        }
        Ok((moved, MoveState::More))
    }

    /// Closes the sending direction of the connection (`shutdown(SHUT_WR)`).
    ///
    /// # Errors
    /// The connection has failed.
    fn tcp_shutdown(&mut self, socket: &mut Self::Socket) -> Result<(), Failure>;

    /// Returns and clears the pending error of a connection (`SO_ERROR`), after an event has reported one.
    fn tcp_error(&mut self, socket: &mut Self::Socket) -> Option<Failure>;

    /// Enables keepalive probes on the host connection, because the guest has sent a keepalive probe.
    fn tcp_keepalive(&mut self, socket: &mut Self::Socket);

    /// Closes a host socket of any kind.
    fn close(&mut self, socket: Self::Socket);

    /// Closes a TCP connection by a reset.
    fn abort(&mut self, socket: Self::Socket);

    /// Opens a UDP socket of the family of `family_of`, with the error queue, received TTL and DSCP enabled. It is
    /// bound explicitly to a free port that the host chooses, because a port from bind(0) is lost on disconnect.
    ///
    /// # Errors
    /// `Exhausted` if the host has no free descriptor, port or memory, and others.
    fn udp_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<Self::Socket, Failure>;

    /// Returns the host socket of the published UDP port at `index` of the configuration, registered for events of
    /// `flow`.
    ///
    /// # Errors
    /// `Invalid` if the socket has been returned before and not been closed.
    fn udp_published(&mut self, index: u32, flow: FlowId) -> Result<Self::Socket, Failure>;

    /// Connects a UDP socket to its only peer, or disconnects it if `to` is `None`.
    ///
    /// # Errors
    /// The destination cannot be reached: `NetUnreachable`, `Prohibited`, ...
    fn udp_connect(&mut self, socket: &mut Self::Socket, to: Option<SocketAddr>) -> Result<(), Failure>;

    /// Sends one datagram if `segment` is `None`, or datagrams of `segment` bytes, of which the last may be shorter.
    /// The destination is `to`, or the connected peer if `None`. The source address is `from` if a published port has
    /// to reply from the address to which a client has sent.
    ///
    /// # Errors
    /// No datagram was sent. After `TooBig` or `Invalid` the caller splits the datagrams and sends again; after
    /// `WouldBlock` it drops them.
    fn udp_send(
        &mut self,
        socket: &mut Self::Socket,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
        meta: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Failure>;

    /// Receives into the slices in order, several datagrams at once if `coalesced` is true and the host supports
    /// `UDP_GRO`.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram; otherwise an error of an earlier send (see [`Self::problem`]).
    fn udp_receive(
        &mut self,
        socket: &mut Self::Socket,
        into: &[VolatileSlice<'_>],
    ) -> Result<Received, Failure>;

    /// Opens a socket for echo requests in the family of `family_of`: a ping socket, or the raw socket that was opened
    /// before privileges were dropped. If the host permits the choice, the requests have the id `ident` on the network.
    ///
    /// # Errors
    /// `Prohibited` if the host permits neither a ping socket nor a raw socket.
    fn ping_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<Self::Socket, Failure>;

    /// Sends an echo request with this sequence number and data to the address `to`.
    ///
    /// # Errors
    /// No request was sent, with the same errors as [`Self::udp_send`].
    fn ping_send(
        &mut self,
        socket: &mut Self::Socket,
        to: IpAddr,
        meta: DatagramMeta,
        seq: u16,
        data: &[u8],
    ) -> Result<(), Failure>;

    /// Receives an echo reply of this socket; its data is copied to `into`.
    ///
    /// # Errors
    /// `WouldBlock` if there is no reply; otherwise an error of an earlier request (see [`Self::problem`]).
    fn ping_receive(&mut self, socket: &mut Self::Socket, into: &mut [u8]) -> Result<PingReply, Failure>;

    /// Returns and removes the next entry of the error queue of a UDP or ping socket; the bytes that it quotes of the
    /// sent datagram are copied to `into`.
    fn problem(&mut self, socket: &mut Self::Socket, into: &mut [u8]) -> Option<Problem>;
}

/// Size of the buffer by which [`Host::tcp_move`] copies.
const COPY: usize = 4 << 10;

/// An echo reply received from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingReply {
    /// Address of the sender of the reply.
    pub from: IpAddr,
    /// Sequence number of the reply.
    pub seq: u16,
    /// Number of data bytes in the caller's buffer.
    pub len: usize,
    /// TTL, DSCP and ECN of the reply.
    pub meta: DatagramMeta,
}
