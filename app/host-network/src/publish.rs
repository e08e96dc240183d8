//! Published ports: the values of the option `--publish`, and the host sockets that are opened for them.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pontoon_engine::config::{Protocol, Published, PublishedKey};
use pontoon_process::error::{Error, reason};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect_unspec, listen, socket_with, sockopt,
};

mod default_options;
pub mod port_range;
mod ports;
pub mod spec;

use default_options::DefaultOptions;
use port_range::PortRange;
pub use ports::{AutoCounts, PortRefusal, PortUndo, Ports, limited};
pub use spec::Publish;

/// Limit on the values with `auto` of one option: each of them is compared with each listening port once a second.
pub const MOST_AUTOS: usize = 64;

/// Returns the error of a value with `auto` beyond the limit; `what` describes the failed change.
pub fn too_many_autos(what: impl Display) -> Error {
    Error::new(format!(
        "cannot {what}: there are {MOST_AUTOS} values with 'auto', which is the limit"
    ))
    .advise("several ranges in one value")
}

/// Time for which a process in the background waits for ports that are in use. Those of an instance whose namespace was removed
/// a moment ago are about to be closed: Podman starts an instance without waiting for the one before it to exit.
pub const RESTART_WAIT: Duration = Duration::from_millis(500);

/// Opens the host sockets of the values of `--publish`, and tries again for the time `wait` while a port is in use.
///
/// # Errors
/// An invalid value, or a port that cannot be opened.
pub fn open(ports: &mut Ports, values: &[Publish], wait: Duration) -> Result<(), Error> {
    check(values)?;
    let deadline = Instant::now() + wait;
    loop {
        match ports.change(&[], values) {
            Err(PortRefusal::InUse(_)) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(refusal) => return Err(refusal.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Checks that no two values of `--publish` need the same port of the host.
///
/// # Errors
/// Two values need the same port; the text names both.
pub fn check(options: &[Publish]) -> Result<(), Error> {
    let named = |(index, option): (usize, &Publish)| {
        let ranges = option.named().into_iter();
        ranges.map(move |range| (index, range)).collect::<Vec<_>>()
    };
    let mut sorted: Vec<_> = options.iter().enumerate().flat_map(named).collect();
    sorted.sort_by_key(|(_, range)| range.first);
    // `open` has the earlier ranges that may overlap the current one.
    let mut open: Vec<(usize, PortRange)> = Vec::new();
    for (index, range) in sorted {
        open.retain(|(_, other)| other.last >= range.first);
        let is_of_both = |(other, _): &&(usize, PortRange)| {
            *other != index && share_sockets(&options[*other], &options[index])
        };
        if let Some((other, _)) = open.iter().find(is_of_both) {
            let (first, second) = (index.min(*other), index.max(*other));
            return Err(Error::new(format!(
                "ports are published twice: {} and {}",
                options[first], options[second]
            )));
        }
        open.push((index, range));
    }
    Ok(())
}

/// Returns true if a port in both values would need two sockets that cannot be bound at the same time.
fn share_sockets(a: &Publish, b: &Publish) -> bool {
    let is_of_b = |protocol| b.protocols.iter().any(|other| other == protocol);
    let addresses = match (a.listens_at(), b.listens_at()) {
        (None, _) | (_, None) => true,
        (Some(a), Some(b)) => {
            a == b || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()))
        }
    };
    let interfaces = match (&a.interface, &b.interface) {
        (Some(a), Some(b)) => a == b,
        (None, _) | (_, None) => true,
    };
    a.protocols.iter().any(is_of_b) && addresses && interfaces
}

/// Opens the socket of a published port, bound to the interface with this index, if there is one.
///
/// # Errors
/// The kernel refuses a call, for example because another socket has the port.
pub fn open_socket(key: PublishedKey) -> io::Result<OwnedFd> {
    let socket = bound_socket(key)?;
    if key.protocol == Protocol::Tcp {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

/// Opens a socket that is bound to the address of a published port and, if the key has one, to the interface.
fn bound_socket(key: PublishedKey) -> io::Result<OwnedFd> {
    let socket = unbound_socket(key.protocol, key.host)?;
    if let Some(interface) = key.interface {
        pontoon_sys::bind::to_interface(&socket, interface)?;
    }
    if key.protocol == Protocol::Tcp {
        // Connections of an earlier run may be in TIME_WAIT. Two listeners still exclude each other.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &key.host)?;
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
pub fn reopen_ports(published: &[Published], sockets: &[impl AsFd]) -> io::Result<()> {
    let [v4, v6] = ANY.map(|address| DefaultOptions::of((address, 0).into()));
    let (v4, v6) = (v4?, v6?);
    for (port, socket) in published.iter().zip(sockets) {
        let host = port.host;
        let reopened = match port.protocol {
            Protocol::Tcp => listen_again(socket, if host.is_ipv4() { &v4 } else { &v6 }, port.interface),
            Protocol::Udp => bind_again(socket, port.key()).map(|()| false),
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
fn listen_again(
    socket: impl AsFd,
    options: &DefaultOptions,
    interface: Option<NonZeroU32>,
) -> io::Result<bool> {
    // O_NONBLOCK is a flag of the open file description, which the other process shared; without it an accept(2) without a
    // client would block.
    rustix::io::ioctl_fionbio(&socket, true)?;
    sockopt::set_socket_linger(&socket, None)?;
    options.restore(&socket);
    if let Some(interface) = interface {
        // Restoring the options has unbound the socket from the interface if this process is root. Otherwise the socket
        // is still bound, and this call fails.
        let _ = pontoon_sys::bind::to_interface(&socket, interface);
    }
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
pub fn disconnect_last(socket: &Arc<OwnedFd>) {
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
fn bind_again(socket: impl AsFd, key: PublishedKey) -> io::Result<()> {
    let host = key.host;
    disconnect(&socket)?;
    let new = unbound_socket(Protocol::Udp, host)?;
    if let Some(interface) = key.interface {
        pontoon_sys::bind::to_interface(&new, interface)?;
    }
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
        Some(libc::ENODEV) => plain.advise("an interface of this host, see 'ip link'"),
        Some(libc::EPERM) => plain.advise("Linux 5.7 or later, or root, for a port of an interface"),
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
