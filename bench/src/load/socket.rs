//! Sockets with the options that the load client and the load server need.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pontoon_sys::Family;
use rustix::net::sockopt::{
    Timeout, set_ipv6_v6only, set_socket_keepalive, set_socket_recv_buffer_size, set_socket_timeout,
    set_tcp_keepidle, set_tcp_keepintvl,
};
use rustix::net::{SocketFlags, SocketType, bind, listen, socket_with};

use crate::job::JobMessage;

use super::unreachable;

/// Length of the accept queue (`backlog` of listen(2)), which the kernel limits to `net.core.somaxconn`.
const BACKLOG: i32 = 65535;

/// SO_RCVBUF in bytes, the same as netload and iperf3 request; the kernel limits it to `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Opens a TCP listener on `address`. The kernel chooses a port if it is 0.
pub(crate) fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = stream_socket(address, SocketFlags::CLOEXEC)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Opens a TCP listener on `port` of all addresses, for both IP families if the machine has IPv6.
pub(crate) fn listener_everywhere(port: u16) -> io::Result<TcpListener> {
    let address = SocketAddr::new(Family::V6.unspecified(), port);
    let dual = stream_socket(address, SocketFlags::CLOEXEC).and_then(|socket| {
        set_ipv6_v6only(&socket, false)?;
        bind(&socket, &address)?;
        Ok(socket)
    });
    match dual {
        Ok(socket) => {
            listen(&socket, BACKLOG)?;
            Ok(socket.into())
        }
        Err(_) => listener(SocketAddr::new(Family::V4.unspecified(), port)),
    }
}

/// Enables TCP keepalive, so that the kernel closes a connection whose peer has vanished. Accepted sockets
/// inherit the option.
pub(crate) fn keep_alive(socket: impl AsFd) -> io::Result<()> {
    set_socket_keepalive(&socket, true)?;
    set_tcp_keepidle(&socket, Duration::from_secs(60))?;
    set_tcp_keepintvl(&socket, Duration::from_secs(10))?;
    Ok(())
}

/// Sets the timeout of every blocking call (SO_RCVTIMEO, SO_SNDTIMEO), connect(2) included. Accepted sockets
/// inherit it.
pub(crate) fn bound_waits(socket: impl AsFd, timeout: Duration) -> io::Result<()> {
    set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    Ok(())
}

/// Opens an unconnected TCP socket of the address family of `address`.
pub(crate) fn stream_socket(address: SocketAddr, flags: SocketFlags) -> io::Result<OwnedFd> {
    let domain = Family::of(address.ip()).domain();
    Ok(socket_with(domain, SocketType::STREAM, flags, None)?)
}

/// Connects to `address`, with `timeout` for connect(2) and all later calls.
///
/// # Errors
/// `Unreachable`: nothing listens there, or no descriptor or port is available.
pub(crate) fn connect(address: SocketAddr, timeout: Duration) -> Result<TcpStream, JobMessage> {
    let open = || {
        let socket = TcpStream::connect_timeout(&address, timeout)?;
        bound_waits(&socket, timeout)?;
        Ok(socket)
    };
    open().map_err(|error: io::Error| unreachable(format_args!("cannot connect to {address}: {error}")))
}

/// Opens the UDP socket of a server port.
pub(crate) fn datagram_server(listen: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((listen, 0))?;
    set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    Ok(socket)
}

/// Opens a UDP socket connected to `address`, with a receive and send timeout.
///
/// # Errors
/// `Unreachable`: there is no route.
pub(crate) fn datagram_client(address: SocketAddr, timeout: Duration) -> Result<UdpSocket, JobMessage> {
    let open = || {
        let socket = UdpSocket::bind((Family::of(address.ip()).unspecified(), 0))?;
        socket.connect(address)?;
        bound_waits(&socket, timeout)?;
        Ok(socket)
    };
    open().map_err(|error: io::Error| unreachable(format_args!("cannot send to {address}: {error}")))
}
