//! The trait [`Host`], by which the engine uses the host's sockets.
//!
//! Every call is non-blocking. A socket is registered for events once, when it is opened, edge triggered, with the flow's
//! [`Token`](crate::Token); the worker passes events to the engine as [`Readiness`]. A socket must not be dropped: it is
//! returned by [`Host::close`] or [`Host::abort`].

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::FlowId;
use vm_memory::VolatileSlice;

/// The reason why a call on a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing to read, or no room to write, now.
    #[error("would block")]
    WouldBlock,
    /// ECONNREFUSED.
    #[error("connection refused")]
    Refused,
    /// ECONNRESET, EPIPE, ECONNABORTED.
    #[error("connection reset")]
    Reset,
    /// ETIMEDOUT.
    #[error("timed out")]
    TimedOut,
    /// ENETUNREACH, ENETDOWN, EADDRNOTAVAIL.
    #[error("network unreachable")]
    NetUnreachable,
    /// EHOSTUNREACH, EHOSTDOWN.
    #[error("host unreachable")]
    HostUnreachable,
    /// EACCES, EPERM.
    #[error("prohibited")]
    Prohibited,
    /// EMSGSIZE: larger than the route's MTU or than the socket takes.
    #[error("message too long")]
    TooBig,
    /// EMFILE, ENFILE, ENOBUFS, ENOMEM: a resource of the host is exhausted.
    #[error("out of descriptors or memory")]
    Exhausted,
    /// EADDRINUSE.
    #[error("address in use")]
    InUse,
    /// EINVAL, EIO: the call is not possible with these arguments on this socket.
    #[error("invalid")]
    Invalid,
    /// Anything else, by its number.
    #[error("errno {0}")]
    Other(i32),
}

/// The progress of an outgoing connection in the call that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// The connection is established.
    Done,
    /// An event reports the outcome.
    Pending,
}

/// An event on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Readiness {
    /// Data, a connection or the end of the stream to read.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
    /// The peer has closed its direction: all of its data is in the queue.
    pub end: bool,
    /// An error is pending on the socket or in its error queue.
    pub error: bool,
    /// Urgent data was received (RFC 9293 section 3.8.5): a peek stops in front of it although more data follows.
    pub urgent: bool,
}

/// A connection that was accepted on a published port.
#[derive(Debug)]
pub struct AcceptedConnection<S> {
    /// The connection.
    pub socket: S,
    /// The client's address.
    pub peer: SocketAddr,
}

/// Per-datagram properties, carried both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramMeta {
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// IPv4: DF.
    pub dont_fragment: bool,
}

/// The result of a receive: one datagram, or several of one size end to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in all.
    pub len: usize,
    /// Bytes of each datagram but the last (`UDP_GRO`); `len` for one datagram.
    pub stride: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The host address that it was sent to, where the socket is bound to a wildcard.
    pub to: Option<IpAddr>,
    /// TTL, DSCP.
    pub meta: DatagramMeta,
}

/// An entry of a socket's error queue: an ICMP error that some router or host sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The destination of the datagram.
    pub destination: SocketAddr,
    /// The sender of the error; `None` for the host's own stack.
    pub offender: Option<IpAddr>,
    /// ICMP or ICMPv6 type.
    pub kind: u8,
    /// ICMP or ICMPv6 code.
    pub code: u8,
    /// Next-hop MTU, for "too big".
    pub mtu: Option<u32>,
    /// The part of the datagram that the queue holds: payload bytes copied to the caller's buffer.
    pub payload_len: usize,
}

/// Host sockets as the engine needs them.
pub trait Host {
    /// An open socket.
    type Socket;

    /// Opens a TCP connection with TCP_NODELAY, registered for events. Its state is checked once more before the call returns,
    /// as on loopback and LANs it is often established already.
    ///
    /// # Errors
    /// The connection failed: `Refused`, `NetUnreachable`, `Exhausted`, ...
    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(Self::Socket, Connect), Failure>;

    /// The outcome of a pending connect, after an event. `WouldBlock` while it is still pending.
    ///
    /// # Errors
    /// As [`Self::tcp_connect`].
    fn tcp_connected(&mut self, socket: &mut Self::Socket) -> Result<(), Failure>;

    /// Returns true if an established connection to `to` leads to the host itself, independent of the engine's list of the
    /// host's addresses: its own address is its peer's or, if more than one SYN may have been sent in the time `took`, the
    /// host has the peer's address now.
    fn tcp_reaches_host(&mut self, socket: &mut Self::Socket, to: IpAddr, took: Duration) -> bool;

    /// Takes a connection from the listener at `index` of the configuration. `flow` is what it is registered as.
    ///
    /// # Errors
    /// `WouldBlock` when there is none. `Exhausted` when there is no descriptor for it: an event reports the listener again
    /// when there may be one, because a socket was closed or some time has passed.
    fn tcp_accept(
        &mut self,
        listener: u32,
        flow: FlowId,
    ) -> Result<AcceptedConnection<Self::Socket>, Failure>;

    /// Returns true if [`Self::tcp_peek`] can begin at any offset without a cost (`SO_PEEK_OFF` on TCP: about Linux 6.10 for
    /// IPv4, 6.12 for IPv6). Otherwise the caller keeps the data in flight small.
    fn peeks_at_offset(&self, remote: IpAddr) -> bool;

    /// Copies stream data from `at` bytes after the head of the receive queue into `into`, in order, leaving it queued.
    /// 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if there is no data yet; `Reset` and others if the connection has failed.
    fn tcp_peek(
        &mut self,
        socket: &mut Self::Socket,
        at: u32,
        into: &[VolatileSlice<'_>],
    ) -> Result<usize, Failure>;

    /// Drops `len` bytes from the head of the receive queue.
    ///
    /// # Errors
    /// The connection has ended.
    fn tcp_discard(&mut self, socket: &mut Self::Socket, len: u32) -> Result<(), Failure>;

    /// Sends the parts, in order, as far as there is room. Fewer bytes may be sent.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room at all; `Reset` and others if the connection has failed.
    fn tcp_send(&mut self, socket: &mut Self::Socket, parts: &[VolatileSlice<'_>]) -> Result<usize, Failure>;

    /// Returns the memory of the receive queue, with the kernel's overhead.
    fn tcp_receive_memory(&mut self, socket: &mut Self::Socket) -> u32;

    /// Returns the bytes that the send buffer would accept now.
    fn tcp_send_room(&mut self, socket: &mut Self::Socket) -> u32;

    /// Requests one more event for when the socket is writable, although no send was refused. Without this the kernel reports
    /// room only after a refused send (`SOCK_NOSPACE`).
    fn tcp_watch_room(&mut self, flow: FlowId, socket: &mut Self::Socket);

    /// Shuts the socket down for writing.
    ///
    /// # Errors
    /// The connection has ended.
    fn tcp_shutdown(&mut self, socket: &mut Self::Socket) -> Result<(), Failure>;

    /// Takes the pending error of a connection, after an event has reported one (`SO_ERROR`).
    fn tcp_error(&mut self, socket: &mut Self::Socket) -> Option<Failure>;

    /// Enables keepalive probes, as the guest has sent one.
    fn tcp_keepalive(&mut self, socket: &mut Self::Socket);

    /// Closes a socket of any kind.
    fn close(&mut self, socket: Self::Socket);

    /// Closes a TCP connection with a reset.
    fn abort(&mut self, socket: Self::Socket);

    /// Opens a UDP socket for sending to `family_of`'s family, bound explicitly to a free port that the host chooses
    /// (a port from bind(0) is lost on disconnect), with error queue, received TTL and DSCP on.
    ///
    /// # Errors
    /// `Exhausted` and others.
    fn udp_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<Self::Socket, Failure>;

    /// Returns the socket of the published UDP port at `index` of the configuration, registered for `flow`.
    ///
    /// # Errors
    /// `Invalid` if the socket was returned before.
    fn udp_published(&mut self, index: u32, flow: FlowId) -> Result<Self::Socket, Failure>;

    /// Connects a UDP socket to its only peer, or disconnects it.
    ///
    /// # Errors
    /// The destination cannot be reached: `NetUnreachable`, `Prohibited`, ...
    fn udp_connect(&mut self, socket: &mut Self::Socket, to: Option<SocketAddr>) -> Result<(), Failure>;

    /// Sends one datagram (`segment` none), or datagrams of `segment` bytes end to end (the last may be shorter), to
    /// `to` (none if connected), from `from` if a published port has to reply from the address that a client has used.
    ///
    /// # Errors
    /// No datagram was sent. `TooBig`, `Invalid`: split and send again; `WouldBlock`: dropped.
    fn udp_send(
        &mut self,
        socket: &mut Self::Socket,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
        meta: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Failure>;

    /// Receives into the slices, in order, with `UDP_GRO` where `coalesced` and the host can.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram; an error that a host reported (see [`Self::problem`]).
    fn udp_receive(
        &mut self,
        socket: &mut Self::Socket,
        into: &[VolatileSlice<'_>],
    ) -> Result<Received, Failure>;

    /// Opens a socket for echo requests to `family_of`'s family: a ping socket, or the raw socket that was opened
    /// before privileges were dropped. `ident` is the id of the requests on the wire if the host permits a
    /// choice.
    ///
    /// # Errors
    /// `Prohibited` if the host allows neither.
    fn ping_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<Self::Socket, Failure>;

    /// Sends an echo request with this sequence number and data.
    ///
    /// # Errors
    /// As [`Self::udp_send`].
    fn ping_send(
        &mut self,
        socket: &mut Self::Socket,
        to: IpAddr,
        meta: DatagramMeta,
        seq: u16,
        data: &[u8],
    ) -> Result<(), Failure>;

    /// Receives an echo reply for this socket: sequence number, sender; the data goes to `into`.
    ///
    /// # Errors
    /// As [`Self::udp_receive`].
    fn ping_receive(&mut self, socket: &mut Self::Socket, into: &mut [u8]) -> Result<PingReply, Failure>;

    /// Takes the next entry from a UDP or ping socket's error queue, copying the datagram that was sent to `into`.
    fn problem(&mut self, socket: &mut Self::Socket, into: &mut [u8]) -> Option<Problem>;
}

/// An echo reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingReply {
    /// The sender of the reply.
    pub from: IpAddr,
    /// Sequence number.
    pub seq: u16,
    /// Bytes of data, in the caller's buffer.
    pub len: usize,
    /// TTL and DSCP of the reply.
    pub meta: DatagramMeta,
}
