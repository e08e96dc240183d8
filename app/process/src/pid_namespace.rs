//! PID namespaces (pid_namespaces(7)). By them a process of the guest is distinguished from one of the host, even if both
//! have the same user and files.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

use pontoon_sys::peer::{self, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, geteuid};

use crate::network_namespace::NetworkNamespace;

/// PID namespace of a guest, a descendant of this process's own. Its file stays open, so that its inode number is not
/// reused.
#[derive(Debug)]
pub struct PidNamespace {
    namespace: File,
    /// Network namespace of the guest, if it is not this process's own.
    network: Option<NetworkNamespace>,
}

/// Device and inode number, which identify a namespace.
pub(crate) type Id = (u64, u64);

// Request of ioctl_ns(2): _IO(0xb7, 2).
const NS_GET_PARENT: libc::Ioctl = 0xb702;

impl PidNamespace {
    /// Opens the PID namespace of the process `pid`; returns `None` if it is this process's own.
    ///
    /// # Errors
    /// The process has exited, or this process may not inspect it.
    pub fn of(pid: Pid) -> io::Result<Option<Self>> {
        let namespace = open(pid)?;
        if id(&namespace)? == own()? {
            return Ok(None);
        }
        let network = NetworkNamespace::of(pid)?;
        Ok(Some(Self { namespace, network }))
    }

    /// Returns true if the process that connected `socket` is in this PID namespace or in a descendant of it.
    ///
    /// # Errors
    /// The process cannot be inspected, for example because it has exited.
    pub fn holds_peer(&self, socket: impl AsFd) -> io::Result<bool> {
        // The check by process ids below can meet a reused id before Linux 6.5; the check by network namespace needs no
        // process id.
        if let Some(network) = &self.network
            && network.holds_peer(&socket)?
        {
            return Ok(true);
        }
        let peer = Peer::of(&socket)?;
        // Every process in a descendant namespace has an id in this one.
        let Some(pid) = peer.pid else {
            return Ok(false);
        };
        // Only root may inspect a process of root. Without root the guest has a user namespace, in which no process is the
        // host's root.
        if peer.uid.is_root() && !geteuid().is_root() {
            return Ok(false);
        }
        let pidfd = peer::pidfd(&socket, pid)?;
        // Any process may read the depth of the peer's PID namespace; opening the namespace requires ptrace access.
        let is_below_us = depth(&pid.to_string())? > depth("self")?;
        let holds = is_below_us && self.is_above(open(pid)?)?;
        // The id was not reused if the process still runs.
        let mut exited = [PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut exited, Some(&Timespec::default()))? {
            0 => Ok(holds),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Returns a PID namespace without processes, whose guest has the given network namespace.
    #[cfg(test)]
    pub(crate) fn for_test(network: Option<NetworkNamespace>) -> io::Result<Self> {
        let namespace = File::open("/proc/self/ns/uts")?;
        Ok(Self { namespace, network })
    }

    /// Returns true if `namespace` is this namespace or a descendant of it.
    fn is_above(&self, mut namespace: File) -> io::Result<bool> {
        let (this, own) = (id(&self.namespace)?, own()?);
        loop {
            match id(&namespace)? {
                here if here == this => return Ok(true),
                here if here == own => return Ok(false),
                _ => namespace = parent(&namespace)?,
            }
        }
    }
}

fn open(pid: Pid) -> io::Result<File> {
    File::open(format!("/proc/{}/ns/pid", pid.as_raw_nonzero()))
}

/// Returns the number of PID namespaces in which a process has an id, counted from the PID namespace of the mounted
/// `/proc`.
fn depth(process: &str) -> io::Result<usize> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids = ids.ok_or(io::ErrorKind::Unsupported)?;
    Ok(ids.split_whitespace().count())
}

fn own() -> io::Result<Id> {
    let file = fs::metadata("/proc/self/ns/pid")?;
    Ok((file.dev(), file.ino()))
}

pub(crate) fn id(namespace: &File) -> io::Result<Id> {
    let file = namespace.metadata()?;
    Ok((file.dev(), file.ino()))
}

fn parent(namespace: &File) -> io::Result<File> {
    // SAFETY: NS_GET_PARENT takes no argument; what it returns is a new descriptor, which has no other owner.
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::process::getpid;

    use super::*;

    fn namespace(kind: &str) -> PidNamespace {
        PidNamespace {
            namespace: File::open(format!("/proc/self/ns/{kind}")).unwrap(),
            network: NetworkNamespace::of(getpid()).unwrap(),
        }
    }

    #[test]
    fn process_of_the_own_namespace_is_in_no_descendant() {
        assert!(PidNamespace::of(getpid()).unwrap().is_none());
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(!namespace("pid").holds_peer(&socket).unwrap());
        let own = || File::open("/proc/self/ns/pid").unwrap();
        assert!(namespace("pid").is_above(own()).unwrap());
        // A UTS namespace is no descendant of a PID namespace.
        assert!(!namespace("uts").is_above(own()).unwrap());
    }

    #[test]
    fn process_that_cannot_be_inspected_is_an_error() {
        let null = File::open("/dev/null").unwrap();
        namespace("pid").holds_peer(null).unwrap_err();
        PidNamespace::of(Pid::from_raw(0x3fff_ffff).unwrap()).unwrap_err();
        // A UTS namespace has no parent namespace.
        namespace("pid")
            .is_above(File::open("/proc/self/ns/uts").unwrap())
            .unwrap_err();
    }
}
