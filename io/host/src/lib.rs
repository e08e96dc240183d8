//! The implementation of the engine's trait `Host` with sockets of the kernel, and the events that these report.
//!
//! Every socket is registered with epoll once, when it is opened, edge triggered. Optional features of the kernel are
//! detected once, at the start. The error of a single call does not disable a feature, because the guest and any host
//! of the network can cause errors.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::config::{Protocol, Published, PublishedPath};
use pontoon_engine::host::{
    AcceptedConnection, Connect, DatagramMeta, KeepaliveTimes, MoveError, MoveState, PingReply, Problem,
    Received,
};
use pontoon_engine::{Failure, FlowId, Host};
use pontoon_event::Epoll;
use pontoon_sys::disabled::Disabled;
use pontoon_sys::{Family, tcp, udp as udp_sys};
#[cfg(test)]
use pontoon_test_support::namespace;
use rustix::io::Errno;
use tracing::{debug, info, warn};
use vm_memory::VolatileSlice;

mod failure;
mod given;
mod guest;
mod joined;
mod listen;
pub mod ping;
mod ports;
mod problem;
mod properties;
mod spare;
mod stream;
mod udp;

use failure::failure;
use guest::GuestSockets;
use joined::Mover;
use listen::PublishedSockets;
use ping::RawSocket;
use ports::{EphemeralPorts, TcpPortShare};
use spare::SpareSockets;

/// Source of the connections and datagrams that the engine sends from the host (`--outbound`). Packets to the host's loopback
/// have none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbound {
    /// Source address of packets to IPv4 destinations.
    pub v4: Option<Ipv4Addr>,
    /// Source address of packets to IPv6 destinations.
    pub v6: Option<Ipv6Addr>,
    /// Name of the interface to which sockets are bound (`SO_BINDTODEVICE`).
    pub interface: Option<String>,
}

/// The engine's `Host` of one worker: its epoll instance, published ports and shared sockets.
#[derive(Debug)]
pub struct KernelHost {
    epoll: Epoll,
    can: HostFeatures,
    outbound: Outbound,
    published: PublishedSockets,
    ports: EphemeralPorts,
    /// Limit on the local ports of TCP connections; `None` if the kernel has no `IP_LOCAL_PORT_RANGE`.
    tcp_ports: Option<TcpPortShare>,
    /// TCP sockets that were opened in advance for the next connections.
    streams: SpareSockets<OwnedFd>,
    /// UDP sockets that were opened in advance for the next endpoints.
    endpoints: SpareSockets<udp::UnboundSocket>,
    /// Sockets of the guest's network namespace, if the guest is a namespace of this host.
    guest: Option<GuestSockets>,
    /// Pipes and buffer for data between two sockets.
    mover: Mover,
    raw: [Option<RawSocket>; 2],
    ping_refused: bool,
    /// Stream socket that was passed with the verdict that is being handled.
    given: Option<OwnedFd>,
    /// Buffer for the bytes in front of those that a peek requests, on kernels without `SO_PEEK_OFF` for TCP.
    aside: Vec<u8>,
}

/// Optional features of the running kernel that the sockets use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFeatures {
    /// `SO_PEEK_OFF` for TCP works, for IPv4 and IPv6.
    pub peek_off: [bool; 2],
    /// UDP sockets have the option `UDP_SEGMENT` (GSO).
    pub udp_gso: bool,
    /// UDP sockets have the option `UDP_GRO`.
    pub udp_gro: bool,
}

/// An open host socket of a flow.
#[derive(Debug)]
pub enum Socket {
    /// Host socket of a TCP connection.
    Stream(stream::Stream),
    /// Host UDP socket of an endpoint of the guest.
    Udp(udp::UdpEndpoint),
    /// Host socket, or identifier on the shared raw socket, of an ICMP echo id.
    Ping(ping::Ping),
}

/// Returns the index of an address family in arrays of two.
const fn index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

impl HostFeatures {
    /// Tests each feature that `PONTOON_DISABLE` does not disable, and logs missing features once.
    #[must_use]
    pub fn probe(disabled: &Disabled) -> Self {
        let peek_off = match probe_peek_off(Family::V6, disabled) {
            // Linux supports it over IPv4 (6.10) since before it does over IPv6 (6.12).
            true => [true; 2],
            false => [probe_peek_off(Family::V4, disabled), false],
        };
        let (gso, gro) = udp_sys::offloads().unwrap_or((false, false));
        let (udp_gso, udp_gro) = (gso && !disabled.udp_gso, gro && !disabled.udp_gro);
        if !udp_gso {
            info!("the kernel has no UDP_SEGMENT: datagrams are sent one by one");
        }
        if !udp_gro {
            info!("the kernel has no UDP_GRO: datagrams are received one by one");
        }
        Self {
            peek_off,
            udp_gso,
            udp_gro,
        }
    }
}

/// Returns true if the kernel supports `SO_PEEK_OFF` for TCP over `family` and `PONTOON_DISABLE` does not disable it.
/// Otherwise one line is logged.
fn probe_peek_off(family: Family, disabled: &Disabled) -> bool {
    let can = match disabled.peek_off {
        true => Ok(false),
        false => tcp::peeks_at_offset(family),
    };
    match &can {
        Ok(true) => {}
        Ok(false) => {
            info!("the kernel has no SO_PEEK_OFF for TCP over {family:?}: data in flight is limited");
        }
        Err(error) => debug!("cannot test SO_PEEK_OFF over {family:?}, so it is not used: {error}"),
    }
    can.unwrap_or(false)
}

impl KernelHost {
    /// Creates the `Host` of a worker. `raw` are the raw ICMP and ICMPv6 sockets that the supervisor has opened.
    ///
    /// # Errors
    /// Errors of the system calls, for example EMFILE; a socket in `raw` is not a raw socket of its family.
    pub fn new(can: HostFeatures, outbound: Outbound, raw: [Option<OwnedFd>; 2]) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let aside = if can.peek_off == [true; 2] {
            Vec::new()
        } else {
            vec![0; stream::ASIDE]
        };
        let ports = EphemeralPorts::of_host();
        let mut host = Self {
            epoll,
            can,
            outbound,
            published: PublishedSockets::default(),
            tcp_ports: ports.for_tcp(),
            ports,
            streams: SpareSockets::new(),
            endpoints: SpareSockets::new(),
            guest: None,
            mover: Mover::new(),
            raw: [None, None],
            ping_refused: false,
            given: None,
            aside,
        };
        for (family, fd) in [Family::V4, Family::V6].into_iter().zip(raw) {
            // The interface may have disappeared before the restart of an engine. Then the guest cannot ping, as its
            // requests must not leave by another interface.
            let bound = |fd: &OwnedFd| {
                host.bind_ping(fd, family.unspecified())
                    .inspect_err(|error| {
                        warn!("the guest cannot ping over {family:?}: cannot bind to --outbound: {error}")
                    })
                    .is_ok()
            };
            let shared = |fd| RawSocket::new(fd, family, &host.epoll);
            host.raw[index(family)] = fd.filter(bound).map(shared).transpose()?;
        }
        Ok(host)
    }

    /// Sets the number of workers, each of which has a `Host`, so that they share the limit on local ports.
    pub fn set_workers(&mut self, workers: u8) {
        if let Some(ports) = &mut self.tcp_ports {
            ports.divide(workers);
        }
    }

    /// Opens sockets for the next flows in advance. It is called after the output of a turn was sent.
    pub fn prepare(&mut self) {
        self.streams.refill(stream::fresh);
        let coalesce = self.can.udp_gro;
        self.endpoints
            .refill(|family| udp::UnboundSocket::new(family, coalesce));
        self.refill_guest_sockets();
        self.retry_accept();
    }

    /// Registers listeners of published ports again when the pause after a failed accept(2) is over, because no event
    /// reports the clients in their backlogs. Returns the longest time for which the worker may sleep.
    pub fn retry_accept(&mut self) -> Option<Duration> {
        self.published.retry_accept(&self.epoll)
    }

    /// Returns the epoll instance in which the worker waits.
    #[must_use]
    pub fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Adds the socket of a published port, which is non-blocking and either listening (TCP) or bound (UDP). Returns
    /// the port's index, the lowest free one from 0.
    ///
    /// # Errors
    /// Errors of setsockopt(2) and epoll_ctl(2), for example ENOMEM.
    pub fn add_published(&mut self, published: Published, socket: Arc<OwnedFd>) -> io::Result<u32> {
        let may_join = matches!(
            published.path,
            PublishedPath::Shortest | PublishedPath::GuestLoopback
        );
        if published.protocol == Protocol::Tcp && may_join {
            self.want_guest_sockets(Family::of(published.host.ip()));
        }
        self.published
            .open(&self.epoll, published, socket, self.can.udp_gro)
    }

    /// Closes the socket of a published port. No flow may use the socket any more.
    pub fn remove_published(&mut self, index: u32) {
        self.published.close(&self.epoll, index);
    }

    /// Returns the index of a published port; `None` if it is not published.
    #[must_use]
    pub fn find_published(&self, published: &Published) -> Option<u32> {
        self.published.find(published.key())
    }

    /// Receives the next packet of the raw socket of `family`: see [`RawSocket::take`].
    pub fn take_shared(&mut self, family: Family) -> ping::TakenPacket {
        self.raw[index(family)]
            .as_mut()
            .map_or(ping::TakenPacket::Drained, RawSocket::take)
    }

    /// Binds `socket`, which will send to `towards`, to the address or interface of `--outbound`. A socket that sends
    /// to loopback is not bound.
    fn bind_outbound(&self, socket: impl AsFd, towards: IpAddr) -> Result<(), Errno> {
        if towards.is_loopback() {
            return Ok(());
        }
        match &self.outbound.interface {
            Some(name) => pontoon_sys::bind::to_device(socket, name),
            None => Ok(()),
        }
    }

    /// Returns the source address for a socket that sends to `towards`: that of `--outbound` if it has the same address
    /// family.
    fn source(&self, towards: IpAddr) -> Option<IpAddr> {
        match towards {
            _ if towards.is_loopback() => None,
            IpAddr::V4(_) => self.outbound.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.outbound.v6.map(IpAddr::V6),
        }
    }
}

impl Host for KernelHost {
    type Socket = Socket;

    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(Socket, Connect), Failure> {
        let (stream, connect) = self.open_stream(flow, to).map_err(failure)?;
        Ok((Socket::Stream(stream), connect))
    }

    fn tcp_connected(&mut self, socket: &mut Socket) -> Result<(), Failure> {
        socket.stream()?.connected().map_err(failure)
    }

    fn tcp_reaches_host(&mut self, socket: &mut Socket, to: IpAddr, took: Duration) -> bool {
        let bound = self.source(to).is_some();
        socket
            .stream()
            .is_ok_and(|stream| stream.reaches_host(to, took, bound))
    }

    fn tcp_accept(&mut self, listener: u32, flow: FlowId) -> Result<AcceptedConnection<Socket>, Failure> {
        let (stream, peer) = self.accept_stream(listener, flow).map_err(failure)?;
        Ok(AcceptedConnection {
            socket: Socket::Stream(stream),
            peer,
        })
    }

    fn tcp_assign(&mut self, flow: FlowId, socket: &mut Socket) -> Result<(), Failure> {
        // A new registration makes the kernel report the present state.
        self.epoll
            .rename(&*socket.stream()?, flow.into())
            .map_err(failure)
    }

    fn tcp_adopt(&mut self, flow: FlowId) -> Result<Socket, Failure> {
        self.adopt_stream(flow).map(Socket::Stream).map_err(failure)
    }

    fn peeks_at_offset(&self, remote: IpAddr) -> bool {
        self.can.peek_off[index(Family::of(remote))]
    }

    fn short_peek_is_last(&self, socket: &Socket) -> bool {
        match socket {
            Socket::Stream(stream) => stream.short_peek_is_last(),
            _ => true,
        }
    }

    fn tcp_peek(
        &mut self,
        socket: &mut Socket,
        at: u32,
        into: &[VolatileSlice<'_>],
    ) -> Result<usize, Failure> {
        socket.stream()?.peek(at, into, &mut self.aside).map_err(failure)
    }

    fn tcp_discard(&mut self, socket: &mut Socket, len: u32) -> Result<(), Failure> {
        socket.stream()?.discard(len).map_err(failure)
    }

    fn tcp_send(&mut self, socket: &mut Socket, parts: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        socket.stream()?.send(parts).map_err(failure)
    }

    fn tcp_receive_memory(&mut self, socket: &mut Socket) -> u32 {
        socket.stream().map_or(0, |stream| stream.receive_memory())
    }

    fn tcp_send_room(&mut self, socket: &mut Socket) -> u32 {
        socket.stream().map_or(0, |stream| stream.send_room())
    }

    fn tcp_watch_room(&mut self, flow: FlowId, socket: &mut Socket) {
        // A new registration makes the kernel check whether there is room, and note that a process waits for it
        // (`tcp_poll`). It fails only without memory; then the guest's window probes discover the room.
        if let Ok(stream) = socket.stream() {
            let _ = self.epoll.rename(&*stream, flow.into());
        }
    }

    fn guest_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(Socket, Connect), Failure> {
        let (stream, connect) = self.open_guest_stream(flow, to).map_err(failure)?;
        Ok((Socket::Stream(stream), connect))
    }

    fn tcp_move(
        &mut self,
        from: &mut Socket,
        to: &mut Socket,
        most: usize,
    ) -> Result<(usize, MoveState), MoveError> {
        let from = from.stream().map_err(MoveError::Source)?;
        let to = to.stream().map_err(MoveError::Sink)?;
        self.move_bytes(from, to, most)
    }

    fn tcp_shutdown(&mut self, socket: &mut Socket) -> Result<(), Failure> {
        socket.stream()?.shutdown().map_err(failure)
    }

    fn tcp_error(&mut self, socket: &mut Socket) -> Option<Failure> {
        socket.stream().ok()?.error().map(failure)
    }

    fn tcp_keepalive(&mut self, socket: &mut Socket, times: Option<KeepaliveTimes>) {
        if let Ok(stream) = socket.stream() {
            // If it fails, the connection is closed already.
            let _ = stream.keepalive(times);
        }
    }

    fn guest_sockets_late(&mut self) {
        self.pause_guest_sockets();
    }

    fn close(&mut self, socket: Socket) {
        match socket {
            Socket::Stream(mut stream) => {
                self.mover.forget(&mut stream);
                if let Some(ports) = self.tcp_ports.as_mut().filter(|_| !stream.is_of_guest()) {
                    ports.closed();
                }
                drop(stream);
            }
            Socket::Udp(endpoint) => {
                if let Some((index, fd)) = endpoint.into_published() {
                    self.published.return_udp(&self.epoll, index, fd);
                }
            }
            Socket::Ping(ping) => self.close_ping(ping),
        }
        self.published.rearm(&self.epoll);
    }

    fn abort(&mut self, socket: Socket) {
        if let Socket::Stream(stream) = &socket {
            stream.reset_on_close();
        }
        self.close(socket);
    }

    fn udp_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<Socket, Failure> {
        self.open_udp(flow, family_of).map(Socket::Udp).map_err(failure)
    }

    fn udp_published(&mut self, index: u32, flow: FlowId) -> Result<Socket, Failure> {
        let endpoint = self
            .published
            .take_udp(&self.epoll, index, flow)
            .map_err(failure)?;
        Ok(Socket::Udp(endpoint))
    }

    fn udp_connect(&mut self, socket: &mut Socket, to: Option<SocketAddr>) -> Result<(), Failure> {
        socket.udp()?.connect(to).map_err(failure)
    }

    fn udp_send(
        &mut self,
        socket: &mut Socket,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
        meta: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Failure> {
        if segment.is_some() && !self.can.udp_gso {
            return Err(Failure::Invalid);
        }
        socket
            .udp()?
            .send(to, from, meta, segment, parts)
            .map_err(failure)
    }

    fn udp_receive(&mut self, socket: &mut Socket, into: &[VolatileSlice<'_>]) -> Result<Received, Failure> {
        socket.udp()?.receive(into).map_err(failure)
    }

    fn ping_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<Socket, Failure> {
        match self.open_ping(flow, family_of) {
            Err(Errno::ACCESS | Errno::PERM) if !self.ping_refused => {
                self.ping_refused = true;
                warn!(
                    "the guest cannot ping: this user may open neither ping sockets nor raw ones \
                     (try: as root: sysctl net.ipv4.ping_group_range='0 2147483647')"
                );
                Err(Failure::Prohibited)
            }
            opened => opened.map(Socket::Ping).map_err(failure),
        }
    }

    fn ping_send(
        &mut self,
        socket: &mut Socket,
        to: IpAddr,
        meta: DatagramMeta,
        seq: u16,
        data: &[u8],
    ) -> Result<(), Failure> {
        self.send_ping(socket.ping()?, to, meta, seq, data)
            .map_err(failure)
    }

    fn ping_receive(&mut self, socket: &mut Socket, into: &mut [u8]) -> Result<PingReply, Failure> {
        self.receive_ping(socket.ping()?, into).map_err(failure)
    }

    fn problem(&mut self, socket: &mut Socket, into: &mut [u8]) -> Option<Problem> {
        match socket {
            Socket::Stream(_) => None,
            Socket::Udp(endpoint) => problem::next(endpoint.as_fd(), into),
            Socket::Ping(ping) => self.ping_problem(ping, into),
        }
    }
}

/// Each method returns the socket if it is of the requested type. Another type is an error of the caller, and the call
/// has no effect.
impl Socket {
    fn stream(&mut self) -> Result<&mut stream::Stream, Failure> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Udp(_) | Self::Ping(_) => Err(Failure::Invalid),
        }
    }

    fn udp(&mut self) -> Result<&mut udp::UdpEndpoint, Failure> {
        match self {
            Self::Udp(endpoint) => Ok(endpoint),
            Self::Stream(_) | Self::Ping(_) => Err(Failure::Invalid),
        }
    }

    fn ping(&mut self) -> Result<&mut ping::Ping, Failure> {
        match self {
            Self::Ping(ping) => Ok(ping),
            Self::Stream(_) | Self::Udp(_) => Err(Failure::Invalid),
        }
    }
}

#[cfg(test)]
mod tests;
