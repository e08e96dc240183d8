//! Listening sockets of a control server: Unix sockets and TCP.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use pontoon_process::error::{Error, reason};
use pontoon_process::guest_namespaces::GuestNamespaces;
use pontoon_process::socket_file::SocketFile;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, accept_with, listen, socket_with, sockopt,
};

/// Listening socket from which a control server accepts clients.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    place: ListenAddress,
    /// Namespaces of the guest, whose processes are refused as clients.
    refused: Option<Rc<GuestNamespaces>>,
    /// True if a refused client has been logged.
    warned: bool,
}

/// Address of a listening socket: a Unix socket file, or a TCP address.
#[derive(Debug)]
enum ListenAddress {
    File(SocketFile),
    Address(SocketAddr),
}

impl Listener {
    /// Listens on a Unix socket at `path`, to which only this user may connect.
    ///
    /// # Errors
    /// Another process listens at the path, or the path cannot be used.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let cannot = |error: &io::Error| {
            let plain = Error::new(format!(
                "cannot open control socket {}: {}",
                path.display(),
                reason(error)
            ));
            match error.kind() {
                io::ErrorKind::AddrInUse => {
                    plain.advise("another path, or stop the process that listens there")
                }
                io::ErrorKind::NotFound => plain.advise("an existing directory"),
                _ => plain,
            }
        };
        let (socket, file) = bind(path).map_err(|error| cannot(&error))?;
        Ok(Self {
            socket,
            place: ListenAddress::File(file),
            refused: None,
            warned: false,
        })
    }

    /// Listens on the TCP address `address`.
    ///
    /// # Errors
    /// The address is in use, or is not an address of this host.
    pub fn tcp(address: SocketAddr) -> Result<Self, Error> {
        let socket = bind_tcp(address).map_err(|error| {
            let plain = Error::new(format!("cannot listen on {address}: {}", reason(&error.into())));
            match error {
                Errno::ADDRINUSE => plain.advise("another port"),
                Errno::ADDRNOTAVAIL => plain.advise("an address of this host, see 'ip addr'"),
                _ => plain,
            }
        })?;
        Ok(Self {
            socket,
            place: ListenAddress::Address(address),
            refused: None,
            warned: false,
        })
    }

    /// Returns true if the listener is a Unix socket in the file system.
    pub fn is_file(&self) -> bool {
        matches!(self.place, ListenAddress::File(_))
    }

    /// Returns the address to which the listener is bound.
    pub fn name(&self) -> Option<SocketAddrAny> {
        rustix::net::getsockname(&self.socket).ok()
    }

    /// Returns the TCP port, if the listener has a TCP address.
    pub fn port(&self) -> Option<u16> {
        SocketAddr::try_from(self.name()?)
            .ok()
            .map(|address| address.port())
    }

    /// Refuses clients in the namespaces `guest` from now on.
    pub fn refuse(&mut self, guest: Option<Rc<GuestNamespaces>>) {
        self.refused = guest;
    }

    /// Returns true if `client` may send requests. A client whose namespaces cannot be inspected is refused, because it may
    /// be a process of the guest.
    pub(crate) fn admits(&mut self, client: impl AsFd) -> bool {
        let Some(guest) = &self.refused else {
            return true;
        };
        let reason = match guest.holds_peer(client) {
            Ok(false) => return true,
            Ok(true) => "it is a process of the guest".to_owned(),
            Err(error) => format!("cannot inspect the peer: {error}"),
        };
        // The refusal is logged once, so that the guest cannot fill the log.
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!("refused a client of {self}: {reason}");
        }
        false
    }

    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)
    }

    /// Accepts the next client; returns `None` if none is connecting.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        loop {
            match accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(stream) => return Ok(Some(stream)),
                Err(Errno::AGAIN) => return Ok(None),
                // ECONNABORTED means that the client has disconnected before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ListenAddress::File(file) => write!(f, "{}", file.path().display()),
            ListenAddress::Address(address) => write!(f, "{address}"),
        }
    }
}

fn bind(path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file inherits the mode of the socket (`unix_bind_bsd` in Linux), so that no other user can connect at any time.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    let file = SocketFile::bind(path, &socket)?;
    listen(&socket, BACKLOG)?;
    Ok((socket, file))
}

fn bind_tcp(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // SO_REUSEADDR is set because connections of an earlier run may be in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Clients that may wait to be accepted, as for published ports: the default of `net.core.somaxconn`. Clients of the guest,
/// which are refused, wait in the same queue; if it is full, a connect that does not block fails.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use rustix::net::SocketAddrUnix;

    use super::*;

    /// Tests that clients which do not block can connect while many others, for example of the guest, wait.
    #[test]
    fn a_thousand_clients_may_wait_to_be_accepted() {
        let path = std::env::temp_dir().join(format!("pontoon-listener-{}", std::process::id()));
        let listener = Listener::open(&path).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let connect = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::net::connect(&client, &address)
        };
        for count in 0..1000 {
            assert_eq!(connect(), Ok(()), "after {count}");
        }
        for _ in 0..1000 {
            assert!(listener.accept().unwrap().is_some());
        }
    }
}
