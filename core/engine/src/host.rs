//! The engine's interface to the host: sockets.
//!
//! Every call is non-blocking and answers in place. A socket is registered for events once, when it is opened, edge
//! triggered, under the flow's [`Token`](crate::Token); the worker hands events on as
//! [`Readiness`]. Dropping a socket is not enough: give it back by [`Host::close`] or [`Host::abort`].

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::FlowId;
use vm_memory::VolatileSlice;

/// Why a call on a socket failed, by meaning.
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
    /// EMFILE, ENFILE, ENOBUFS, ENOMEM: the host is out of something.
    #[error("out of descriptors or memory")]
    Exhausted,
    /// EADDRINUSE.
    #[error("address in use")]
    InUse,
    /// EINVAL, EIO: this call with these arguments, on this socket, will not do.
    #[error("invalid")]
    Invalid,
    /// Anything else, by its number.
    #[error("errno {0}")]
    Other(i32),
}

/// The progress of an outgoing connection in the call that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// It stands.
    Done,
    /// An event will say.
    Pending,
}

/// An event on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Readiness {
    /// Data, a connection or the end of the stream to read.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
    /// The peer has closed its direction: all it sent is in the queue.
    pub end: bool,
    /// An error is pending on the socket or in its error queue.
    pub error: bool,
    /// Urgent data came (RFC 9293 section 3.8.5): a peek stops in front of it, with more to peek at.
    pub urgent: bool,
}

/// A connection that came in on a published port.
#[derive(Debug)]
pub struct Accepted<S> {
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

/// A receive's result: one datagram, or several of one size end to end.
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
    /// ICMP or ICMPv6 type of the complaint.
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

    /// Opens a TCP connection: nothing that is sent waits for more (TCP_NODELAY), registered for events, and looked at
    /// once more before answering, as on loopback and LANs it often stands already.
    ///
    /// # Errors
    /// The connection will not be: `Refused`, `NetUnreachable`, `Exhausted`, ...
    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(Self::Socket, Connect), Failure>;

    /// The outcome of a pending connect, after an event. `WouldBlock` while it is still pending.
    ///
    /// # Errors
    /// As [`Self::tcp_connect`].
    fn tcp_connected(&mut self, socket: &mut Self::Socket) -> Result<(), Failure>;

    /// Returns true if a connection to `to` that stands leads to the host itself, whatever addresses the engine was
    /// given as the host's: its own address is its peer's or, where more than one SYN may have been sent in the time
    /// `took`, the host has the peer's address now.
    fn tcp_reaches_host(&mut self, socket: &mut Self::Socket, to: IpAddr, took: Duration) -> bool;

    /// Takes a connection from the listener at `index` of the configuration. `flow` is what it is registered as.
    ///
    /// # Errors
    /// `WouldBlock` when there is none. `Exhausted` when there is no descriptor for it: an event reports the listener again
    /// when there may be one, because a socket was closed or some time has passed.
    fn tcp_accept(&mut self, listener: u32, flow: FlowId) -> Result<Accepted<Self::Socket>, Failure>;

    /// Returns true if [`Self::tcp_peek`] can begin anywhere at no cost (`SO_PEEK_OFF` on TCP: about Linux 6.10 for
    /// IPv4, 6.12 for IPv6). Otherwise keep what is in flight small.
    fn peeks_at_offset(&self, remote: IpAddr) -> bool;

    /// Copies stream data from `at` bytes after the head of the receive queue into `into`, in order, leaving it queued.
    /// 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there yet; `Reset` and others when the connection is gone.
    fn tcp_peek(
        &mut self,
        socket: &mut Self::Socket,
        at: u32,
        into: &[VolatileSlice<'_>],
    ) -> Result<usize, Failure>;

    /// Drops `len` bytes from the head of the receive queue.
    ///
    /// # Errors
    /// The connection is gone.
    fn tcp_discard(&mut self, socket: &mut Self::Socket, len: u32) -> Result<(), Failure>;

    /// Sends the parts, in order, as far as there is room. `Ok` may be short.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room at all; `Reset` and others when the connection is gone.
    fn tcp_send(&mut self, socket: &mut Self::Socket, parts: &[VolatileSlice<'_>]) -> Result<usize, Failure>;

    /// Memory that the receive queue takes, with the kernel's overhead.
    fn tcp_receive_memory(&mut self, socket: &mut Self::Socket) -> u32;

    /// Bytes that the send buffer would take now.
    fn tcp_send_room(&mut self, socket: &mut Self::Socket) -> u32;

    /// Asks for one more event when the socket is writable, even though no send was refused. Without this the kernel
    /// says nothing of room that no send was denied (`SOCK_NOSPACE`).
    fn tcp_watch_room(&mut self, flow: FlowId, socket: &mut Self::Socket);

    /// Ends our direction of the stream.
    ///
    /// # Errors
    /// The connection is gone.
    fn tcp_shutdown(&mut self, socket: &mut Self::Socket) -> Result<(), Failure>;

    /// Takes the error that is pending on a connection, after an event said that there is one (`SO_ERROR`).
    fn tcp_error(&mut self, socket: &mut Self::Socket) -> Option<Failure>;

    /// Turns keepalive probes on (a guest sent one).
    fn tcp_keepalive(&mut self, socket: &mut Self::Socket);

    /// Closes a socket of any kind.
    fn close(&mut self, socket: Self::Socket);

    /// Closes a TCP connection with a reset.
    fn abort(&mut self, socket: Self::Socket);

    /// Opens a UDP socket for sending to `family_of`'s family, bound to an explicit free port of the host's choosing
    /// (a port from bind(0) is lost on disconnect), with error queue, received TTL and DSCP on.
    ///
    /// # Errors
    /// `Exhausted` and others.
    fn udp_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<Self::Socket, Failure>;

    /// Takes over the socket of the published UDP port at `index` of the configuration and registers it for `flow`.
    ///
    /// # Errors
    /// `Invalid` when it was taken before.
    fn udp_published(&mut self, index: u32, flow: FlowId) -> Result<Self::Socket, Failure>;

    /// Connects a UDP socket to its only peer, or disconnects it.
    ///
    /// # Errors
    /// The destination cannot be reached: `NetUnreachable`, `Prohibited`, ...
    fn udp_connect(&mut self, socket: &mut Self::Socket, to: Option<SocketAddr>) -> Result<(), Failure>;

    /// Sends one datagram (`segment` none), or datagrams of `segment` bytes end to end (the last may be shorter), to
    /// `to` (none where connected), from `from` where a published port answers from the address that it was asked at.
    ///
    /// # Errors
    /// Nothing was sent. `TooBig`, `Invalid`: not in this form (split and try again); `WouldBlock`: dropped.
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
    /// `WouldBlock` when there is nothing; an error that some host reported (then look at [`Self::problem`]).
    fn udp_receive(
        &mut self,
        socket: &mut Self::Socket,
        into: &[VolatileSlice<'_>],
    ) -> Result<Received, Failure>;

    /// Opens a socket for echo requests to `family_of`'s family: a ping socket, or the raw socket that was opened
    /// before privileges were dropped. `ident` is the id that requests will carry on the wire where the host lets us
    /// choose it.
    ///
    /// # Errors
    /// `Prohibited` where the host allows neither.
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

    /// Takes the next entry from a UDP or ping socket's error queue, copying what had been sent to `into`.
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
