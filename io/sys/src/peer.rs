//! Credentials and pidfd of the process at the other end of a Unix socket (unix(7), `SO_PEERCRED`, `SO_PEERPIDFD`).

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Uid, pidfd_open};

use crate::option;

/// Credentials of the process at the other end of a Unix socket, from the time of its connect(2) (`SO_PEERCRED`).
#[derive(Debug)]
pub struct Peer {
    /// Process id of the peer in this process's PID namespace; `None` if the peer has no id in it (0, which rustix's
    /// type cannot express).
    pub pid: Option<Pid>,
    /// User id of the peer in this process's user namespace.
    pub uid: Uid,
}

impl Peer {
    /// Returns the credentials of the process that has connected `socket`.
    ///
    /// # Errors
    /// The socket is not a connected Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut credentials = [0; size_of::<libc::ucred>()];
        let len = option::get(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials)?;
        if len != credentials.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let field = |at: usize| <[u8; 4]>::try_from(&credentials[at..at + 4]).unwrap_or_default();
        Ok(Self {
            pid: Pid::from_raw(i32::from_ne_bytes(field(0))),
            uid: Uid::from_raw(u32::from_ne_bytes(field(4))),
        })
    }
}

/// Returns a pidfd of the process that has connected `socket`, whose process id is `pid`. The descriptor refers to that
/// process even if its id has been reused since, except on kernels before Linux 6.5 (no `SO_PEERPIDFD`).
///
/// # Errors
/// The peer has exited, and other errors of getsockopt(2) and pidfd_open(2).
pub fn pidfd(socket: impl AsFd, pid: Pid) -> io::Result<OwnedFd> {
    let mut number = [0; size_of::<libc::c_int>()];
    match option::get(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, &mut number) {
        // SAFETY: the kernel has written a new descriptor, which no other value owns.
        Ok(4) => Ok(unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes(number)) }),
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        Err(Errno::NOPROTOOPT) => Ok(pidfd_open(pid, PidfdFlags::empty())?),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{getpid, getuid};

    use super::*;

    #[test]
    fn peer_of_a_socket_pair_is_this_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&socket).unwrap();
        assert_eq!((peer.pid, peer.uid), (Some(getpid()), getuid()));
        let pidfd = pidfd(&socket, getpid()).unwrap();
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
        assert!(Peer::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
