//! Targets of redirected flows: addresses and Unix sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use pontoon_engine::egress::EgressProtocol;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername, socket_with,
};

use super::is_no_host;

/// Target of a redirected flow.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RedirectTarget {
    /// Address and port; the port is 0 for echo requests.
    Address(SocketAddr),
    /// Absolute path of a Unix stream socket.
    Unix(PathBuf),
}

/// Parses the target `ADDR:PORT` or `unix:/PATH` of a flow to `destination`.
pub(super) fn parse(
    text: &str,
    protocol: EgressProtocol,
    destination: SocketAddr,
) -> Result<RedirectTarget, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        if protocol != EgressProtocol::Tcp {
            return Err(format!("{protocol} cannot be redirected to a Unix socket"));
        }
        if !path.starts_with('/') {
            return Err("the path of a Unix socket must be absolute: unix:/PATH".to_owned());
        }
        return Ok(RedirectTarget::Unix(path.into()));
    }
    let is_echo = protocol == EgressProtocol::Icmp;
    let address = text.parse::<IpAddr>().ok().filter(|_| is_echo);
    let to = match address {
        Some(address) => SocketAddr::new(address, 0),
        None => text
            .parse::<SocketAddr>()
            .map_err(|_| format!("'{}' is neither ADDR:PORT nor unix:/PATH", text.escape_debug()))?,
    };
    if is_no_host(to.ip()) || to.port() == 0 && !is_echo {
        return Err(format!("no flow can be redirected to {to}"));
    }
    if protocol != EgressProtocol::Tcp && to.is_ipv4() != destination.is_ipv4() {
        return Err(format!(
            "{protocol} cannot be redirected to another address family"
        ));
    }
    Ok(RedirectTarget::Address(to))
}

/// Connects to a Unix stream socket, without waiting for its backlog. A socket that is bound to one of the addresses `own` is
/// refused: this process is its client, whom it would permit what the guest then sends.
pub(super) fn connect_unix(path: &Path, own: &[SocketAddrAny]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    // The path may be another name of the socket.
    if getpeername(&socket)?.is_some_and(|name| own.contains(&name)) {
        return Err(io::Error::other("it is a control socket of this instance"));
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_or_absolute_paths() {
        use EgressProtocol::{Icmp, Tcp, Udp};
        let destination = "192.0.2.1:80".parse().unwrap();
        let is_valid = |text: &str, protocol| parse(text, protocol, destination).is_ok();
        for (text, accepted) in [
            ("127.0.0.1:80", [true, true, true]),
            ("[::1]:80", [true, false, false]),
            ("127.0.0.1", [false, false, true]),
            ("127.0.0.1:0", [false, false, true]),
            ("0.0.0.0:80", [false, false, false]),
            ("224.0.0.1:80", [false, false, false]),
            ("unix:/run/a.sock", [true, false, false]),
            ("unix:a.sock", [false, false, false]),
            ("unix:", [false, false, false]),
            ("localhost:80", [false, false, false]),
            ("", [false, false, false]),
        ] {
            assert_eq!(
                [Tcp, Udp, Icmp].map(|protocol| is_valid(text, protocol)),
                accepted,
                "{text}"
            );
        }
    }
}
