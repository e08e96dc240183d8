//! PID namespaces (pid_namespaces(7)). They distinguish a guest from its host, which may have the same user and files.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

use pontoon_sys::peer::{self, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, geteuid};

use crate::network_namespace::NetworkNamespace;

/// A PID namespace below this process's own. It is kept open, so that its inode number is not reused.
#[derive(Debug)]
pub struct PidNamespace {
    namespace: File,
    /// The network namespace of the same process, if it is not this process's own.
    network: Option<NetworkNamespace>,
}

/// Device and inode, which identify a namespace.
pub(crate) type Id = (u64, u64);

// ioctl_ns(2): _IO(0xb7, 2).
const NS_GET_PARENT: libc::Ioctl = 0xb702;

impl PidNamespace {
    /// Opens the PID namespace of a process; `None` if it is this process's own.
    ///
    /// # Errors
    /// The process has exited, or may not be inspected.
    pub fn of(pid: Pid) -> io::Result<Option<Self>> {
        let namespace = open(pid)?;
        if id(&namespace)? == own()? {
            return Ok(None);
        }
        let network = NetworkNamespace::of(pid)?;
        Ok(Some(Self { namespace, network }))
    }

    /// Returns true if the process that connected `socket` is in this namespace or in a descendant of it.
    ///
    /// # Errors
    /// The process cannot be inspected, for example because it has exited.
    pub fn holds_peer(&self, socket: impl AsFd) -> io::Result<bool> {
        // The check of process ids below can meet a reused id before Linux 6.5. This check does not need them.
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
        // The depth of its namespace may be read by any process, the namespace itself only with ptrace access.
        let is_below_us = depth(&pid.to_string())? > depth("self")?;
        let holds = is_below_us && self.is_above(open(pid)?)?;
        // The id was not reused if the process still runs.
        let mut exited = [PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut exited, Some(&Timespec::default()))? {
            0 => Ok(holds),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Returns a namespace without processes, with a network namespace.
    #[cfg(test)]
    pub(crate) fn for_test(network: Option<NetworkNamespace>) -> io::Result<Self> {
        let namespace = File::open("/proc/self/ns/uts")?;
        Ok(Self { namespace, network })
    }

    /// Returns true if `namespace` is this one or a descendant of it.
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

/// Returns the number of PID namespaces in which a process has an id, from that of `/proc` downwards.
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
        // A namespace that is not an ancestor.
        assert!(!namespace("uts").is_above(own()).unwrap());
    }

    #[test]
    fn process_that_cannot_be_inspected_is_an_error() {
        let null = File::open("/dev/null").unwrap();
        namespace("pid").holds_peer(null).unwrap_err();
        PidNamespace::of(Pid::from_raw(0x3fff_ffff).unwrap()).unwrap_err();
        // A UTS namespace has no parent.
        namespace("pid")
            .is_above(File::open("/proc/self/ns/uts").unwrap())
            .unwrap_err();
    }
}
