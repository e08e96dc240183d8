//! TCP sockets of the host, each of which carries one TCP connection of the guest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use pontoon_engine::FlowId;
use pontoon_engine::host::{Connect, KeepaliveTimes};
use pontoon_sys::message::{self, RecvMode};
use pontoon_sys::{Family, tcp};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, Shutdown, SocketFlags, SocketType, acceptfrom_with, bind, connect, getpeername, getsockname,
    recv, shutdown, socket_with, sockopt,
};
use vm_memory::VolatileSlice;

use super::joined::Transit;
use super::ports::TcpPortShare;
use super::{KernelHost, index};

/// Limit on the bytes in flight to the guest on kernels without `SO_PEEK_OFF` for TCP: every peek copies them into a
/// buffer that nothing reads.
pub(super) const ASIDE: usize = 256 << 10;

/// Limit on the slices of one peek, which is the number that the engine passes. If it were lower, bytes for the
/// remaining slices would be missing.
const MAX_INTO: usize = 512;

/// The host socket of a TCP connection: a TCP socket, or a Unix stream socket to which the decider has redirected it.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    kind: StreamKind,
    peek: PeekPosition,
    sent: NoDelayState,
    /// True if the last data was more than one buffer, so that the next is moved by splice(2).
    pub(super) has_much: bool,
    /// Bytes of this socket in a pipe, if it is joined with another one.
    pub(super) transit: Option<Box<Transit>>,
}

/// Protocols of stream sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamKind {
    Tcp,
    /// TCP, in the guest's network namespace.
    GuestTcp,
    Unix,
}

/// Size of the buffer into which data of Unix sockets is discarded.
const SCRATCH: usize = 16 << 10;

/// Progress towards TCP_NODELAY on a socket. Until the option is set, the kernel may delay the last part of the data
/// (Nagle's algorithm, RFC 896). The first segment is never delayed, and many connections send no more than one, so the
/// option is not set before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoDelayState {
    Nothing,
    Something,
    NoDelay,
}

/// Bytes of data that fit into the smallest segment (default MSS, RFC 9293 section 3.7.1).
const ONE_SEGMENT: usize = 536;

/// Position in the socket's receive queue at which the kernel's next peek begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeekPosition {
    /// At the head of the queue, always: the kernel has no `SO_PEEK_OFF` for TCP.
    Head,
    /// At the head of the queue, as `SO_PEEK_OFF` was not set yet. It is set at the first peek elsewhere; most
    /// connections are short and need none.
    NotYet,
    /// The next peek begins this number of bytes behind the head of the queue.
    At(u32),
}

/// Time after a connect(2) in which only one SYN was sent: Linux repeats the SYN after 1 s (`TCP_TIMEOUT_INIT`), and
/// the route may have changed by then.
const FIRST_SYN: Duration = Duration::from_millis(900);

/// Addresses that no host has, one for each address family (RFC 1112 section 4, RFC 6666).
const NOWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x0100, 0, 0, 0, 0, 0, 0, 1)),
];

/// Returns true if `address` is an address of this host, tested by binding a socket to it. If sockets can be bound to
/// any address (sysctl `ip_nonlocal_bind`), the test is not possible and false is returned.
fn is_own(address: IpAddr) -> bool {
    let family = Family::of(address);
    let can_bind = |address| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socket_with(family.domain(), SocketType::DGRAM, flags, None)
            .and_then(|fd| bind(&fd, &SocketAddr::new(address, 0)))
            .is_ok()
    };
    can_bind(address) && !can_bind(NOWHERE[index(family)])
}

/// Opens a TCP socket for the next connection.
pub(super) fn fresh(family: Family) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(family.domain(), SocketType::STREAM, flags, None)?;
    if family == Family::V6 {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    // Urgent data is received inline, as part of the stream (RFC 6093); otherwise the kernel would omit it from the
    // stream.
    sockopt::set_socket_oobinline(&fd, true)?;
    Ok(fd)
}

/// Connects a socket, and checks once more if the connection is established. On loopback and in a LAN it is often established or
/// refused already; a second connect(2) returns the result.
pub(super) fn begin_connect(fd: BorrowedFd<'_>, to: SocketAddr) -> Result<Connect, Errno> {
    match connect(fd, &to) {
        Ok(()) => Ok(Connect::Done),
        Err(Errno::INPROGRESS) => match connect(fd, &to) {
            Ok(()) | Err(Errno::ISCONN) => Ok(Connect::Done),
            Err(Errno::ALREADY) => Ok(Connect::Pending),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}

impl KernelHost {
    pub(super) fn open_stream(&mut self, flow: FlowId, to: SocketAddr) -> Result<(Stream, Connect), Errno> {
        let family = Family::of(to.ip());
        let fd = self.streams.take(family, || fresh(family))?;
        if let Some(ports) = self.tcp_ports.as_mut().and_then(TcpPortShare::limit_next) {
            pontoon_sys::bind::limit_ports(&fd, ports)?;
        }
        self.bind_outbound(&fd, to.ip())?;
        if let Some(source) = self.source(to.ip()) {
            // Otherwise bind(2) would reserve the port for all destinations.
            pontoon_sys::bind::without_port(&fd)?;
            bind(&fd, &SocketAddr::from((source, 0)))?;
        }
        let stream = self.stream(fd, family);
        let connect = begin_connect(stream.fd.as_fd(), to)?;
        self.epoll.add(&stream.fd, flow.into())?;
        self.count_stream();
        Ok((stream, connect))
    }

    pub(super) fn accept_stream(
        &mut self,
        listener: u32,
        flow: FlowId,
    ) -> Result<(Stream, SocketAddr), Errno> {
        let (fd, peer) = self.published.accept(listener, |listener| {
            acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
        })?;
        let peer = peer
            .and_then(|peer| SocketAddr::try_from(peer).ok())
            .ok_or(Errno::AFNOSUPPORT)?;
        let is_of_guest = self.published.is_in_guest(listener);
        let stream = match is_of_guest {
            true => Stream::accepted_in_guest(fd),
            false => self.stream(fd, Family::of(peer.ip())),
        };
        self.epoll.add(&stream.fd, flow.into()).inspect_err(|_| {
            // The listener is edge triggered, and its event was for all clients in its backlog; so the others would not
            // be reported.
            self.published.report_later(listener);
        })?;
        if !is_of_guest {
            self.count_stream();
        }
        Ok((stream, peer))
    }

    pub(super) fn count_stream(&mut self) {
        if let Some(ports) = &mut self.tcp_ports {
            ports.opened();
        }
    }

    fn stream(&self, fd: OwnedFd, family: Family) -> Stream {
        let peek = if self.can.peek_off[index(family)] {
            PeekPosition::NotYet
        } else {
            PeekPosition::Head
        };
        Stream {
            fd,
            kind: StreamKind::Tcp,
            peek,
            sent: NoDelayState::Nothing,
            has_much: false,
            transit: None,
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stream {
    /// Wraps a connected Unix stream socket. Every kernel that has `SO_PEEK_OFF` has it for Unix sockets.
    pub(super) const fn unix(fd: OwnedFd) -> Self {
        Self {
            fd,
            kind: StreamKind::Unix,
            peek: PeekPosition::NotYet,
            // The option is one of TCP.
            sent: NoDelayState::NoDelay,
            has_much: false,
            transit: None,
        }
    }

    /// Wraps a TCP socket of the guest's network namespace, on which the helper has set TCP_NODELAY.
    pub(super) const fn of_guest(fd: OwnedFd) -> Self {
        Self {
            fd,
            kind: StreamKind::GuestTcp,
            peek: PeekPosition::NotYet,
            sent: NoDelayState::NoDelay,
            has_much: false,
            transit: None,
        }
    }

    /// Wraps a TCP socket that was accepted from a listener in the guest's network namespace.
    pub(super) fn accepted_in_guest(fd: OwnedFd) -> Self {
        let mut stream = Self::of_guest(fd);
        stream.sent = NoDelayState::Nothing;
        stream
    }

    /// Returns true if the socket belongs to the guest's network namespace, and so does its port.
    pub(super) fn is_of_guest(&self) -> bool {
        self.kind == StreamKind::GuestTcp
    }

    /// Returns the result of a connect(2) that was in progress.
    pub(super) fn connected(&self) -> Result<(), Errno> {
        if let Some(error) = self.error() {
            return Err(error);
        }
        match getpeername(&self.fd) {
            Ok(_) => Ok(()),
            Err(Errno::NOTCONN) => Err(Errno::AGAIN),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the connection leads to the host itself. The kernel connects to an own address from that same
    /// address, if the host had the address when the kernel chose the source. This is not certain if more than one SYN
    /// may have been sent or if the source is `bound` by `--outbound`; then the host's present addresses are checked.
    ///
    /// A connect(2) during which the host gains the address is not detected: the kernel has chosen the source before, and the
    /// SYN reaches the host. Such a connection ends when the engine is notified of the address. A check of the addresses for
    /// each connect would need three to six more system calls.
    pub(super) fn reaches_host(&self, to: IpAddr, took: Duration, bound: bool) -> bool {
        let own = getsockname(&self.fd)
            .ok()
            .and_then(|own| SocketAddr::try_from(own).ok());
        own.is_none_or(|own| own.ip() == to) || ((bound || took >= FIRST_SYN) && is_own(to))
    }

    /// Returns true if a peek that returns fewer bytes than fit has reached the end of the receive queue.
    pub(super) fn short_peek_is_last(&self) -> bool {
        self.kind != StreamKind::Unix
    }

    pub(super) fn peek(
        &mut self,
        at: u32,
        into: &[VolatileSlice<'_>],
        aside: &mut [u8],
    ) -> Result<usize, Errno> {
        match self.peek {
            PeekPosition::Head => return self.peek_from_head(at, into, aside),
            PeekPosition::NotYet if at == 0 => {
                return Ok(message::receive(&self.fd, into, &mut [], RecvMode::Peek)?.len);
            }
            PeekPosition::At(next) if next == at => {}
            PeekPosition::NotYet | PeekPosition::At(_) => {
                tcp::set_peek_offset(&self.fd, at)?;
                self.peek = PeekPosition::At(at);
            }
        }
        let len = message::receive(&self.fd, into, &mut [], RecvMode::Peek)?.len;
        // The kernel has advanced its peek offset by the number of bytes copied.
        self.peek = PeekPosition::At(at.saturating_add(u32::try_from(len).unwrap_or(u32::MAX)));
        Ok(len)
    }

    /// Peeks at offset `at` without `SO_PEEK_OFF`: the first `at` bytes are copied into `aside` and ignored.
    fn peek_from_head(&self, at: u32, into: &[VolatileSlice<'_>], aside: &mut [u8]) -> Result<usize, Errno> {
        let at = usize::try_from(at).map_err(|_| Errno::INVAL)?;
        let front = VolatileSlice::from(aside.get_mut(..at).ok_or(Errno::INVAL)?);
        let mut parts = ArrayVec::<_, { MAX_INTO + 1 }>::new();
        parts.push(front);
        parts.extend(into.iter().copied().take(MAX_INTO));
        let look = || {
            message::receive(&self.fd, &parts, &mut [], RecvMode::Peek)
                .map(|peeked| peeked.len.saturating_sub(at))
        };
        match look()? {
            // The queue ends at offset `at`: no data yet, or the end of the stream, which recvmsg(2) reports as 0 only
            // at the head.
            0 if at > 0 && !self.ended()? => Err(Errno::AGAIN),
            // Data may have arrived between the two calls, with the FIN.
            0 if at > 0 => look(),
            len => Ok(len),
        }
    }

    /// Returns true if the peer has sent its FIN and the receive queue contains no urgent data.
    ///
    /// # Errors
    /// The pending error of the connection, which a peek does not return while there is data.
    fn ended(&self) -> Result<bool, Errno> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::RDHUP | PollFlags::PRI)];
        rustix::event::poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        )?;
        let events = fds[0].revents();
        if events.contains(PollFlags::ERR)
            && let Some(error) = self.error()
        {
            return Err(error);
        }
        // A peek stops in front of urgent data, behind which there is more data.
        Ok(events.intersects(PollFlags::RDHUP | PollFlags::HUP) && !events.contains(PollFlags::PRI))
    }

    pub(super) fn discard(&mut self, len: u32) -> Result<(), Errno> {
        let mut left = len;
        while left > 0 {
            let most = usize::try_from(left).map_err(|_| Errno::INVAL)?;
            let dropped = match self.kind {
                StreamKind::Tcp | StreamKind::GuestTcp => tcp::discard(&self.fd, most)?,
                StreamKind::Unix => self.read_and_drop(most)?,
            };
            if dropped == 0 {
                return Err(Errno::CONNRESET);
            }
            left = left.saturating_sub(u32::try_from(dropped).unwrap_or(u32::MAX));
        }
        // The kernel has decreased its peek offset by the number of discarded bytes.
        if let PeekPosition::At(next) = &mut self.peek {
            *next = next.saturating_sub(len);
        }
        Ok(())
    }

    /// Discards up to `most` bytes of a Unix socket, for which `MSG_TRUNC` discards nothing.
    fn read_and_drop(&self, most: usize) -> Result<usize, Errno> {
        let mut scratch = [0; SCRATCH];
        let into = scratch.get_mut(..most.min(SCRATCH)).ok_or(Errno::INVAL)?;
        Ok(recv(&self.fd, into, RecvFlags::DONTWAIT)?.0)
    }

    /// Sets TCP_NODELAY before a send of `len` bytes that the kernel might delay without it.
    pub(super) fn before_send(&mut self, len: usize) -> Result<(), Errno> {
        match self.sent {
            NoDelayState::NoDelay => {}
            NoDelayState::Nothing if len <= ONE_SEGMENT => self.sent = NoDelayState::Something,
            NoDelayState::Nothing | NoDelayState::Something => {
                sockopt::set_tcp_nodelay(&self.fd, true)?;
                self.sent = NoDelayState::NoDelay;
            }
        }
        Ok(())
    }

    pub(super) fn send(&mut self, parts: &[VolatileSlice<'_>]) -> Result<usize, Errno> {
        self.before_send(parts.iter().map(VolatileSlice::len).sum())?;
        // A stream socket may accept a part of the data; the caller sends the remaining bytes later.
        let parts = parts.get(..message::MAX_PARTS).unwrap_or(parts);
        message::send(&self.fd, parts, None, &[])
    }

    pub(super) fn receive_memory(&self) -> u32 {
        tcp::receive_memory(&self.fd).unwrap_or(0)
    }

    pub(super) fn send_room(&self) -> u32 {
        let room = match self.kind {
            StreamKind::Tcp | StreamKind::GuestTcp => tcp::send_room(&self.fd),
            StreamKind::Unix => tcp::unix_send_room(&self.fd),
        };
        room.unwrap_or(0)
    }

    pub(super) fn shutdown(&self) -> Result<(), Errno> {
        shutdown(&self.fd, Shutdown::Write)
    }

    /// Returns and clears the pending error of the socket (`SO_ERROR`).
    pub(super) fn error(&self) -> Option<Errno> {
        sockopt::socket_error(&self.fd).ok()?.err()
    }

    /// Enables TCP keepalive probes, at these times, or at those of the socket's network namespace.
    pub(super) fn keepalive(&self, times: Option<KeepaliveTimes>) -> Result<(), Errno> {
        sockopt::set_socket_keepalive(&self.fd, true)?;
        if let Some(times) = times {
            sockopt::set_tcp_keepidle(&self.fd, times.idle)?;
            sockopt::set_tcp_keepintvl(&self.fd, times.interval)?;
            sockopt::set_tcp_keepcnt(&self.fd, times.probes.into())?;
        }
        Ok(())
    }

    /// Makes close(2) reset the connection. If it fails, the connection is closed already.
    pub(super) fn reset_on_close(&self) {
        let _ = tcp::reset_on_close(&self.fd);
    }
}
