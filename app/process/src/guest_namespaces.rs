//! Namespaces of a guest (namespaces(7)). They distinguish a process of the guest from one of the host, even if both have
//! the same user and files.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;

use pontoon_sys::peer::{self, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, geteuid};

/// Namespaces of a guest. Their files stay open, so that their inode numbers are not reused.
#[derive(Debug)]
pub struct GuestNamespaces {
    network: File,
    /// User namespace that owns the network namespace. `None` if that is this process's own user namespace, or not a
    /// descendant of it: such a user namespace also contains processes of the host.
    owner: Option<File>,
    /// PID namespace of the guest; `None` if it is this process's own, or not known.
    pid: Option<File>,
}

/// Device and inode number, which identify a namespace.
type Id = (u64, u64);

// Requests of ioctl_ns(2): _IO(0xb7, 1) and _IO(0xb7, 2).
const NS_GET_USERNS: libc::Ioctl = 0xb701;
const NS_GET_PARENT: libc::Ioctl = 0xb702;

/// Request that opens the network namespace of a socket (`<linux/sockios.h>`).
const SIOCGSKNS: libc::Ioctl = 0x894c;

impl GuestNamespaces {
    /// Opens the namespaces of a guest whose process 1 is `init`.
    ///
    /// # Errors
    /// The process has exited, or this process may not inspect it.
    pub fn of(init: Pid) -> io::Result<Self> {
        Self::new(open(init, "net")?, Some(init))
    }

    /// Returns the namespaces of a guest in the network namespace `network`. `process` is a process of the guest, if one is
    /// known.
    ///
    /// # Errors
    /// The process has exited, or this process may not inspect it.
    pub fn new(network: File, process: Option<Pid>) -> io::Result<Self> {
        let own = |kind: &str| id(&File::open(format!("/proc/self/ns/{kind}"))?);
        let owner = related(&network, NS_GET_USERNS)?;
        let pid = process.map(|process| open(process, "pid")).transpose()?;
        Ok(Self {
            network,
            owner: other_than(own("user")?, owner)?,
            pid: other_than(own("pid")?, pid)?,
        })
    }

    /// Returns true if the peer of `socket`, an accepted Unix stream, is in the guest: it connected by a socket of the guest's
    /// network namespace, or the process that connected is in the guest's network namespace, in its user namespace or PID
    /// namespace, or in a descendant of these.
    ///
    /// # Errors
    /// The process cannot be inspected, for example because it has exited.
    pub fn holds_peer(&self, socket: impl AsFd) -> io::Result<bool> {
        // Before Linux 6.5 the id may belong to another process by now, and the check of the process would be about that one;
        // the check of the socket needs no process id.
        if self.holds_socket(&socket)? {
            return Ok(true);
        }
        let peer = Peer::of(&socket)?;
        let Some(pid) = peer.pid else {
            // Every process in a descendant PID namespace has an id in this one.
            return match self.pid {
                Some(_) => Ok(false),
                None => Err(io::Error::other("it is outside this PID namespace")),
            };
        };
        // Only root may inspect a process of root. Without root, the user namespace of the guest maps no id of root.
        if self.owner.is_some() && peer.uid.is_root() && !geteuid().is_root() {
            return Ok(false);
        }
        let pidfd = peer::pidfd(&socket, pid)?;
        let holds = match self.holds_process(pid) {
            Err(error) if is_denial(&error) && self.is_outside(pid)? => false,
            holds => holds?,
        };
        // The id was not reused if the process still runs.
        let mut exited = [PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut exited, Some(&Timespec::default()))? {
            0 => Ok(holds),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Returns true if an accepted socket is in the guest's network namespace, or in one whose owner is the guest's user
    /// namespace or a descendant of it. The kernel creates the accepted socket in the network namespace of the socket that
    /// connected (`unix_stream_connect`), so the result depends neither on the process that has that socket now, nor on
    /// whether the connecting process still runs.
    fn holds_socket(&self, socket: impl AsFd) -> io::Result<bool> {
        let Some(network) = related(socket, SIOCGSKNS)? else {
            return Ok(false);
        };
        if id(&network)? == id(&self.network)? {
            return Ok(true);
        }
        match (&self.owner, related(&network, NS_GET_USERNS)?) {
            (Some(guest), Some(user)) => is_within(user, guest),
            (None, _) | (_, None) => Ok(false),
        }
    }

    /// Returns true if a process whose namespaces may not be opened is certainly outside the guest: it is in an outer user namespace,
    /// or is not dumpable, as pesto. Any process may read the depth of its PID namespace, the files of its network namespace, and
    /// the ids of its user namespace.
    fn is_outside(&self, pid: Pid) -> io::Result<bool> {
        if self.pid.is_some() && !is_below_own(pid)? {
            return Ok(true);
        }
        // Each network namespace has its own files in /proc.
        let devices = |process: &str| fs::metadata(format!("/proc/{process}/net/dev")).map(|file| file.ino());
        let own = File::open("/proc/self/ns/net")?;
        let is_here = devices(&pid.to_string())? == devices("self")?;
        Ok(is_here && id(&own)? != id(&self.network)? && (self.owner.is_none() || has_all_ids(pid)?))
    }

    /// Returns true if a process is in a namespace of the guest. Opening a namespace of a process requires ptrace access.
    fn holds_process(&self, pid: Pid) -> io::Result<bool> {
        if id(&open(pid, "net")?)? == id(&self.network)? {
            return Ok(true);
        }
        for (guest, kind) in [(&self.owner, "user"), (&self.pid, "pid")] {
            if let Some(guest) = guest
                && is_within(open(pid, kind)?, guest)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn open(pid: Pid, kind: &str) -> io::Result<File> {
    File::open(format!("/proc/{}/ns/{kind}", pid.as_raw_nonzero()))
}

fn is_denial(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Returns the namespace, unless it is that with the id `own`.
fn other_than(own: Id, namespace: Option<File>) -> io::Result<Option<File>> {
    Ok(match namespace {
        Some(namespace) if id(&namespace)? != own => Some(namespace),
        Some(_) | None => None,
    })
}

/// Returns true if `namespace` is `guest` or a descendant of it.
fn is_within(namespace: File, guest: &File) -> io::Result<bool> {
    let mut namespace = Some(namespace);
    while let Some(inner) = namespace {
        if id(&inner)? == id(guest)? {
            return Ok(true);
        }
        namespace = related(&inner, NS_GET_PARENT)?;
    }
    Ok(false)
}

/// Returns true if a process is in more PID namespaces than this process.
fn is_below_own(pid: Pid) -> io::Result<bool> {
    Ok(depth(&pid.to_string())? > depth("self")?)
}

/// Returns the number of PID namespaces in which a process has an id, counted from the PID namespace of the mounted
/// `/proc`.
fn depth(process: &str) -> io::Result<usize> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids = ids.ok_or(io::ErrorKind::Unsupported)?;
    Ok(ids.split_whitespace().count())
}

/// Returns true if a process has all user ids, as in the initial user namespace. Only root can create another user namespace with all
/// of them, and root may inspect its processes.
fn has_all_ids(process: Pid) -> io::Result<bool> {
    let map = fs::read_to_string(format!("/proc/{process}/uid_map"))?;
    let words: Vec<_> = map.split_whitespace().collect();
    // The id in between is the first one as this process sees it, which may have no such id.
    Ok(matches!(words[..], ["0", _, "4294967295"]))
}

fn id(namespace: &File) -> io::Result<Id> {
    let file = namespace.metadata()?;
    Ok((file.dev(), file.ino()))
}

/// Returns the namespace that the ioctl `request` on `of` opens; `None` if this process may not open it, because it is
/// outside this process's own namespace. No namespace of the guest is.
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
mod tests;
