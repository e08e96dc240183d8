//! Published ports: the values of the option `--publish`, and the host sockets that are opened for them.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;

use pontoon_engine::config::{Protocol, Published};
use pontoon_process::error::{Error, reason};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect_unspec, listen, socket_with, sockopt,
};

mod default_options;
mod ports;

use default_options::DefaultOptions;
pub(crate) use ports::{PortRefusal, PortUndo, Ports};

/// Value of `--publish`: `[ADDR:]HOST[-END]:GUEST[-END][/tcp|/udp]`, the syntax of podman and docker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Transport protocol: TCP or UDP.
    pub protocol: Protocol,
    /// Host address to listen on; `None` means all addresses of both families.
    pub address: Option<IpAddr>,
    /// First port on the host.
    pub host: u16,
    /// First port of the guest.
    pub guest: u16,
    /// Number of consecutive ports, at least 1.
    pub count: u16,
}

impl FromStr for Publish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, protocol) = match text.rsplit_once('/') {
            None => (text, Protocol::Tcp),
            Some((text, "tcp")) => (text, Protocol::Tcp),
            Some((text, "udp")) => (text, Protocol::Udp),
            Some((_, other)) => return Err(format!("protocol '{other}' is neither tcp nor udp")),
        };
        let (host, guest) = text
            .rsplit_once(':')
            .ok_or("no guest port: the form is [ADDR:]HOST[-END]:GUEST[-END][/tcp|/udp]")?;
        let (address, host) = match host.rsplit_once(':') {
            None => (None, host),
            Some((address, host)) => (Some(parse_address(address)?), host),
        };
        let (host, host_end) = parse_ports(host)?;
        let (guest, guest_end) = parse_ports(guest)?;
        let count = host_end - host;
        if guest_end - guest != count {
            return Err("the two ranges differ in length".into());
        }
        Ok(Self {
            protocol,
            address,
            host,
            guest,
            count: count.checked_add(1).ok_or("too many ports")?,
        })
    }
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return inner
            .parse::<Ipv6Addr>()
            .map(IpAddr::V6)
            .map_err(|_| format!("'{inner}' is not an IPv6 address"));
    }
    if text.contains(':') {
        return Err(format!("an IPv6 address goes in brackets: [{text}]:HOST:GUEST"));
    }
    text.parse::<Ipv4Addr>()
        .map(IpAddr::V4)
        .map_err(|_| format!("'{text}' is not an IPv4 address"))
}

fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let port = |text: &str| match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err(format!("'{text}' is not a port (1 to 65535)")),
    };
    let (first, last) = match text.split_once('-') {
        None => (port(text)?, port(text)?),
        Some((first, last)) => (port(first)?, port(last)?),
    };
    if last < first {
        return Err(format!("'{text}' runs backwards"));
    }
    Ok((first, last))
}

impl Publish {
    /// Returns the host addresses and ports to listen on, each with the guest's port. If the value names no address,
    /// addresses of a family that the host lacks are included.
    fn endpoints(self, families: Families) -> impl Iterator<Item = (SocketAddr, u16)> {
        let named = self.address.into_iter();
        let any = match (self.address, families) {
            (Some(_), _) => &ANY[..0],
            (None, Families::V4) => &ANY[..1],
            (None, Families::V6) => &ANY[1..],
            (None, Families::Both) => &ANY[..],
        };
        let addresses: Vec<IpAddr> = named.chain(any.iter().copied()).collect();
        (0..self.count).flat_map(move |offset| {
            let at =
                move |address: &IpAddr| (SocketAddr::new(*address, self.host + offset), self.guest + offset);
            addresses.iter().map(at).collect::<Vec<_>>()
        })
    }

    /// Returns true if `self` and `other` need the same protocol, host address and port.
    fn collides(self, other: Self) -> bool {
        let addresses = match (self.address, other.address) {
            (None, _) | (_, None) => true,
            (Some(a), Some(b)) => {
                a == b || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()))
            }
        };
        let starts_inside = |a: Self, b: Self| a.host >= b.host && a.host - b.host < b.count;
        self.protocol == other.protocol
            && addresses
            && (starts_inside(self, other) || starts_inside(other, self))
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            None => {}
            Some(IpAddr::V4(address)) => write!(f, "{address}:")?,
            Some(IpAddr::V6(address)) => write!(f, "[{address}]:")?,
        }
        let range = |first: u16, f: &mut fmt::Formatter<'_>| match self.count {
            1 => write!(f, "{first}"),
            count => write!(f, "{first}-{}", first + (count - 1)),
        };
        range(self.host, f)?;
        write!(f, ":")?;
        range(self.guest, f)?;
        write!(f, "/{}", self.protocol)
    }
}

/// Address families that the guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv4 only.
    V4,
    /// IPv6 alone.
    V6,
    /// IPv4 and IPv6.
    Both,
}

/// Checks that no two values of `--publish` need the same port of the host.
///
/// # Errors
/// Two values need the same port; the text names both.
pub(crate) fn check(options: &[Publish]) -> Result<(), Error> {
    let mut sorted: Vec<_> = options.iter().enumerate().collect();
    sorted.sort_by_key(|(_, option)| option.host);
    // `open` has the earlier values whose port range may overlap the current one.
    let mut open: Vec<(usize, &Publish)> = Vec::new();
    for (index, option) in sorted {
        open.retain(|(_, other)| option.host - other.host < other.count);
        if let Some((other, _)) = open.iter().find(|(_, other)| other.collides(*option)) {
            let (first, second) = (index.min(*other), index.max(*other));
            return Err(Error::new(format!(
                "ports are published twice: {} and {}",
                options[first], options[second]
            )));
        }
        open.push((index, option));
    }
    Ok(())
}

fn open_socket(protocol: Protocol, host: SocketAddr) -> io::Result<OwnedFd> {
    let socket = unbound_socket(protocol, host)?;
    match protocol {
        Protocol::Tcp => {
            // SO_REUSEADDR is set because connections of an earlier run may be in TIME_WAIT. Two listeners still exclude
            // each other.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &host)?;
            listen(&socket, BACKLOG)?;
        }
        Protocol::Udp => bind(&socket, &host)?,
    }
    Ok(socket)
}

fn unbound_socket(protocol: Protocol, host: SocketAddr) -> io::Result<OwnedFd> {
    let family = match host {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let kind = match protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    if host.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// Makes published TCP sockets listen again, and binds UDP sockets again, before a new engine starts. The old engine shared
/// the sockets, and may have shut them down, connected them or set options.
///
/// # Errors
/// The options of new sockets cannot be read, so that those of the old engine would remain.
pub(crate) fn reopen_ports(published: &[Published], sockets: &[impl AsFd]) -> io::Result<()> {
    let [v4, v6] = ANY.map(|address| DefaultOptions::of((address, 0).into()));
    let (v4, v6) = (v4?, v6?);
    for (port, socket) in published.iter().zip(sockets) {
        let host = port.host;
        let reopened = match port.protocol {
            Protocol::Tcp => listen_again(socket, if host.is_ipv4() { &v4 } else { &v6 }),
            Protocol::Udp => bind_again(socket, host).map(|()| false),
        };
        match reopened {
            Ok(false) => {}
            Ok(true) => tracing::warn!("port {host}/tcp, which the engine had shut down, listens again"),
            Err(error) => tracing::warn!("cannot reopen port {host}/{}: {error}", port.protocol),
        }
    }
    Ok(())
}

/// Has the socket of a published TCP port listen again, non-blocking and with the options of a new socket, after a process that
/// shared it has shut it down or connected it; returns true if it was not listening. The socket stays bound to the port meanwhile.
///
/// # Errors
/// The kernel refuses a call, for example because another socket has the port.
fn listen_again(socket: impl AsFd, options: &DefaultOptions) -> io::Result<bool> {
    // O_NONBLOCK is a flag of the open file description, which the other process shared; without it an accept(2) without a
    // client would block.
    rustix::io::ioctl_fionbio(&socket, true)?;
    sockopt::set_socket_linger(&socket, None)?;
    options.restore(&socket);
    if sockopt::socket_acceptconn(&socket)? {
        return Ok(false);
    }
    connect_unspec(&socket)?;
    listen(&socket, BACKLOG)?;
    Ok(true)
}

/// Ends a connection that was made on a published socket by another process that shared it. With `SO_LINGER` set, the next
/// close(2) would otherwise wait until the connection's data is sent.
fn disconnect(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_socket_linger(&socket, None)?;
    Ok(connect_unspec(&socket)?)
}

/// Disconnects a socket if this is the last reference to it, which is dropped next. A socket that listens is left alone: its close(2)
/// never waits, and to disconnect it would reset the clients that an engine has still to accept when it closes the port.
///
/// An engine that runs shares the socket. If it connects the socket again after this call, the close(2) that follows here does not
/// wait either, as the engine's descriptor keeps the socket open. It waits only if a compromised engine also closes its descriptor
/// between the two calls, which the user's request to close the port triggers and not the engine. The program then hangs for as long
/// as `SO_LINGER` requests; no other guest or process is concerned.
pub(crate) fn disconnect_last(socket: &Arc<OwnedFd>) {
    if Arc::strong_count(socket) == 1 && sockopt::socket_acceptconn(socket) != Ok(true) {
        // An error means that the socket is not connected.
        let _ = disconnect(socket);
    }
}

/// Replaces the socket of a published UDP port by a new one with the same descriptor. A socket that was shut down stays so,
/// and the kernel does not report that state.
///
/// # Errors
/// The kernel refuses a call; the socket is unchanged, except that it is not connected.
fn bind_again(socket: impl AsFd, host: SocketAddr) -> io::Result<()> {
    disconnect(&socket)?;
    let new = unbound_socket(Protocol::Udp, host)?;
    // Both sockets are bound for a moment. Unlike SO_REUSEADDR, SO_REUSEPORT admits no socket of another user.
    sockopt::set_socket_reuseport(&socket, true)?;
    let replaced = replace_bound(&socket, &new, host);
    // The option is reset on the socket to which the descriptor now refers, also after an error.
    sockopt::set_socket_reuseport(&socket, false)?;
    replaced
}

/// Binds `new` to the address of `socket`, whose descriptor then refers to the new socket.
fn replace_bound(socket: impl AsFd, new: &OwnedFd, host: SocketAddr) -> io::Result<()> {
    sockopt::set_socket_reuseport(new, true)?;
    bind(new, &host)?;
    let (from, to) = (new.as_raw_fd(), socket.as_fd().as_raw_fd());
    // SAFETY: both descriptors are open. The second one stays open and refers to an equivalent socket afterwards.
    if unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn refused(host: SocketAddr, protocol: Protocol, error: &io::Error) -> Error {
    let port = host.port();
    let plain = Error::new(format!("cannot publish {host}/{protocol}: {}", reason(error)));
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            let listing = match protocol {
                Protocol::Tcp => "ss -ltnp",
                Protocol::Udp => "ss -lunp",
            };
            plain.advise(format!(
                "another port; '{listing} sport = :{port}' shows the process that uses it"
            ))
        }
        Some(libc::EACCES) => plain.advise(format!(
            "a port from 1024 up, or as root: sysctl net.ipv4.ip_unprivileged_port_start={port}"
        )),
        Some(libc::EADDRNOTAVAIL) => plain.advise("an address of this host, see 'ip addr'"),
        Some(libc::EMFILE) => plain.advise("fewer ports, or a higher 'ulimit -Hn'"),
        _ => plain,
    }
}

/// Host addresses on which a port is published if the option names no address.
const ANY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];

/// Length of the accept queue of a published TCP port; the host's `somaxconn` limits it further.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests;
