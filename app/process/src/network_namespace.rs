//! The network namespace of a guest, which distinguishes a socket that was created in it from the host's
//! (network_namespaces(7)).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};

use rustix::process::Pid;

use crate::pid_namespace::{Id, id};

/// Network namespace of a guest, and the user namespace that owns it.
#[derive(Debug)]
pub struct NetworkNamespace {
    file: File,
    /// User namespace that owns the guest's network namespace; `None` if it is this process's own, which owns the host's
    /// network namespace, too.
    owner: Option<Id>,
}

// Requests of ioctl_ns(2): _IO(0xb7, 1) and _IO(0xb7, 2).
const NS_GET_USERNS: libc::Ioctl = 0xb701;
const NS_GET_PARENT: libc::Ioctl = 0xb702;

/// Request that opens the network namespace of a socket (`<linux/sockios.h>`).
const SIOCGSKNS: libc::Ioctl = 0x894c;

impl NetworkNamespace {
    /// Opens the network namespace of the process `pid`; returns `None` if it is this process's own.
    ///
    /// # Errors
    /// The process has exited, or this process may not inspect it.
    pub fn of(pid: Pid) -> io::Result<Option<Self>> {
        let file = File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))?;
        if id(&file)? == id(&File::open("/proc/self/ns/net")?)? {
            return Ok(None);
        }
        let own = id(&File::open("/proc/self/ns/user")?)?;
        let owner = related(&file, NS_GET_USERNS)?;
        let owner = owner.as_ref().map(id).transpose()?;
        Ok(Some(Self {
            file,
            owner: owner.filter(|owner| *owner != own),
        }))
    }

    /// Returns true if the peer of `socket`, an accepted Unix stream, connected from this network namespace, or from one
    /// whose owner is this namespace's owner, a user namespace of the guest, or a descendant of it. The kernel creates the
    /// accepted socket in the network namespace of the connecting process (`unix_stream_connect`), so the result depends
    /// neither on the process that has the peer socket now, nor on whether the connecting process still runs.
    ///
    /// # Errors
    /// The kernel refuses the ioctl (`SIOCGSKNS` or ioctl_ns(2)).
    pub fn holds_peer(&self, socket: impl AsFd) -> io::Result<bool> {
        // EPERM means that the user namespace that owns the socket's network namespace is not a descendant of this
        // process's; a guest's always is.
        let Some(network) = related(socket, SIOCGSKNS)? else {
            return Ok(false);
        };
        if id(&network)? == id(&self.file)? {
            return Ok(true);
        }
        let Some(guest) = self.owner else {
            return Ok(false);
        };
        let mut user = related(&network, NS_GET_USERNS)?;
        while let Some(namespace) = user {
            if id(&namespace)? == guest {
                return Ok(true);
            }
            user = related(&namespace, NS_GET_PARENT)?;
        }
        Ok(false)
    }
}

/// Returns the namespace that the ioctl `request` on `of` opens; `None` if this process may not open it.
fn related(of: impl AsFd, request: libc::Ioctl) -> io::Result<Option<File>> {
    // SAFETY: these requests take no argument; what they return is a new descriptor, which has no other owner.
    unsafe {
        match libc::ioctl(of.as_fd().as_raw_fd(), request) {
            -1 => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EPERM) => Ok(None),
                error => Err(error),
            },
            descriptor => Ok(Some(File::from_raw_fd(descriptor as RawFd))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    use pontoon_test_support::process::in_child;
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;
    use crate::child::spawn::{self, Child};
    use crate::pid_namespace::PidNamespace;

    const NAME: &str =
        "network_namespace::tests::socket_connected_in_the_guest_is_recognized_whatever_process_holds_it";
    const SKIPPED: u8 = 77;

    /// Forks a process into user and network namespaces `deep` levels below this process's, which connects to `path`.
    fn connected(path: &Path, deep: u8) -> io::Result<Child> {
        spawn::fork(|| {
            for _ in 0..deep {
                // SAFETY: these flags do not unshare the descriptor table.
                if unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }.is_err() {
                    return SKIPPED;
                }
            }
            let _socket = UnixStream::connect(path);
            loop {
                let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                });
            }
        })
    }

    /// The processes are in the PID namespace of the test, like a process of the host that has reused the id of a guest's
    /// process.
    #[test]
    fn socket_connected_in_the_guest_is_recognized_whatever_process_holds_it() {
        let status = in_child(NAME, || match distinguishes_guests() {
            Ok(true) => 0,
            Ok(false) => 1,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => SKIPPED,
            Err(_) => 2,
        });
        if status == SKIPPED {
            eprintln!("SKIPPED: {NAME}: no user namespaces");
            return;
        }
        assert_eq!(status, 0);
    }

    fn distinguishes_guests() -> io::Result<bool> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path)?;
        let guest = connected(&path, 1)?;
        let one = accept(&listener)?;
        let namespaces = PidNamespace::for_test(NetworkNamespace::of(guest.pid())?)?;
        // Neither another guest nor a process outside any guest is in the namespace.
        let others = [1, 0].map(|deep| io::Result::Ok((connected(&path, deep)?, accept(&listener)?)));
        let mut right = namespaces.holds_peer(&one)?;
        for other in others {
            let (child, socket): (Child, _) = other?;
            right &= !namespaces.holds_peer(&socket)?;
            child.kill();
            let _ = child.wait();
        }
        guest.kill();
        let _ = guest.wait();
        Ok(right && namespaces.holds_peer(&one)?)
    }

    fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let wait = Timespec {
            tv_sec: 5,
            tv_nsec: 0,
        };
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(listener.accept()?.0),
        }
    }
}
