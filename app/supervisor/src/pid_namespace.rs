//! PID namespaces (pid_namespaces(7)). They tell a guest from its host, which may have the same user and the same files.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

use pontoon_sys::peer::{self, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, geteuid};

use crate::network_namespace::NetworkNamespace;

/// A PID namespace below our own. It is kept open, so that no other one gets its number.
#[derive(Debug)]
pub(crate) struct PidNamespace {
    namespace: File,
    /// That of the same process, where it is not our own one.
    network: Option<NetworkNamespace>,
}

/// Device and inode, which no two namespaces share.
pub(crate) type Id = (u64, u64);

// ioctl_ns(2): _IO(0xb7, 2).
const NS_GET_PARENT: libc::Ioctl = 0xb702;

impl PidNamespace {
    /// Where a process is; `None` where that is our own one.
    ///
    /// # Errors
    /// It is gone, or not ours to look at.
    pub(crate) fn of(pid: Pid) -> io::Result<Option<Self>> {
        let namespace = open(pid)?;
        if id(&namespace)? == own()? {
            return Ok(None);
        }
        let network = NetworkNamespace::of(pid)?;
        Ok(Some(Self { namespace, network }))
    }

    /// Whether the process that has connected `socket` is in here, or further below.
    ///
    /// # Errors
    /// It cannot be looked at, as one that is gone.
    pub(crate) fn holds_peer(&self, socket: impl AsFd) -> io::Result<bool> {
        // Process ids are looked at below, which before Linux 6.5 may be another process's by now. This does not need them.
        if let Some(network) = &self.network
            && network.holds_peer(&socket)?
        {
            return Ok(true);
        }
        let peer = Peer::of(&socket)?;
        // Who is below us is seen from here.
        let Some(pid) = peer.pid else {
            return Ok(false);
        };
        // Root is not ours to look at if we are another. We make a user namespace then, in which nobody is root out here.
        if peer.uid.is_root() && !geteuid().is_root() {
            return Ok(false);
        }
        let pidfd = peer::pidfd(&socket, pid)?;
        // How far down it is may be known by anybody, but where only by who may trace it.
        let is_below_us = depth(&pid.to_string())? > depth("self")?;
        let holds = is_below_us && self.is_above(open(pid)?)?;
        // While it lives, its id is nobody else's.
        let mut dead = [PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut dead, Some(&Timespec::default()))? {
            0 => Ok(holds),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// One in which no process is, with a network namespace.
    #[cfg(test)]
    pub(crate) fn for_test(network: Option<NetworkNamespace>) -> io::Result<Self> {
        let namespace = File::open("/proc/self/ns/uts")?;
        Ok(Self { namespace, network })
    }

    /// Whether `namespace` is this one, or further below.
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

/// In how many PID namespaces a process has an id, from that of `/proc` on.
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
    // SAFETY: NS_GET_PARENT takes no argument; what it returns is a new descriptor of ours alone.
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
    fn who_is_in_our_own_is_in_none_below() {
        assert!(PidNamespace::of(getpid()).unwrap().is_none());
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(!namespace("pid").holds_peer(&socket).unwrap());
        let own = || File::open("/proc/self/ns/pid").unwrap();
        assert!(namespace("pid").is_above(own()).unwrap());
        // Any other one.
        assert!(!namespace("uts").is_above(own()).unwrap());
    }

    #[test]
    fn who_cannot_be_looked_at_is_said_to_be() {
        let null = File::open("/dev/null").unwrap();
        namespace("pid").holds_peer(null).unwrap_err();
        PidNamespace::of(Pid::from_raw(0x3fff_ffff).unwrap()).unwrap_err();
        // No namespace has one of another kind above it.
        namespace("pid")
            .is_above(File::open("/proc/self/ns/uts").unwrap())
            .unwrap_err();
    }
}
