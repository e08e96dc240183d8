//! Guest that another program has started: an existing network namespace, in which a tap is created that exists until the
//! namespace is removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pontoon_process::child::spawn::{self, Child};
use pontoon_process::error::{Context as _, Error, reason};
use pontoon_process::guest_namespaces::GuestNamespaces;
use pontoon_sys::seqpacket;
use rustix::fs::inotify;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, pidfd_open, set_dumpable_behavior};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::guest::handshake::FromGuest;
use crate::guest::{tap, userns};
use crate::host::file_watch::FileWatch;
use crate::options::Target;

/// Open network namespace of a guest, and the event that marks its end.
#[derive(Debug)]
pub(crate) struct Attached {
    namespace: File,
    path: PathBuf,
    /// Process whose namespace it is, if the path names one.
    pid: Option<Pid>,
    end: NamespaceEnd,
    /// Child that has opened the tap, until [`Self::reap`].
    child: Option<Child>,
}

/// Event that marks the end of the guest's network namespace.
#[derive(Debug)]
enum NamespaceEnd {
    /// The process whose namespace it is exits; the value is its pidfd.
    Process(OwnedFd),
    /// The namespace file is removed.
    File,
    /// None: the program continues until a signal ends it.
    Never,
}

// Requests of ioctl_ns(2): _IO(0xb7, 1) and _IO(0xb7, 3).
const NS_GET_USERNS: libc::Ioctl = 0xb701;
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;

impl Attached {
    /// Opens the network namespace `target`, and watches for its end unless `stay`; `files` watches a namespace file.
    ///
    /// # Errors
    /// The namespace does not exist, this process may not open it, the file is not a network namespace, or it is the host's
    /// own.
    pub(crate) fn open(target: &Target, stay: bool, files: &mut FileWatch) -> Result<Self, Error> {
        let path = match target {
            Target::Pid(pid) => PathBuf::from(format!("/proc/{pid}/ns/net")),
            Target::Path(path) => path.clone(),
        };
        let shown = path.display();
        let cannot = |error: &io::Error| {
            let plain = Error::new(format!(
                "cannot open network namespace {shown}: {}",
                reason(error)
            ));
            match error.kind() {
                io::ErrorKind::NotFound => {
                    plain.advise("the id of a running process, or a file in /run/netns")
                }
                io::ErrorKind::PermissionDenied => plain.advise("as the user that created it, or as root"),
                _ => plain,
            }
        };
        // The watch is set up before the namespace is opened, so that its end cannot be missed.
        let pid = process_of(&path);
        let end = match pid {
            _ if stay => NamespaceEnd::Never,
            Some(pid) => NamespaceEnd::Process(
                pidfd_open(pid, PidfdFlags::empty())
                    .map_err(|_| cannot(&io::Error::from_raw_os_error(libc::ENOENT)))?,
            ),
            None => {
                watch(&path, files).map_err(|error| cannot(&error))?;
                NamespaceEnd::File
            }
        };
        let namespace = open_namespace(&path).map_err(|error| cannot(&error))?;
        if ns_type(namespace.as_fd()).ok() != Some(libc::CLONE_NEWNET) {
            return Err(Error::new(format!("{shown} is not a network namespace"))
                .advise("/run/netns/NAME, or /proc/PID/ns/net"));
        }
        if same_file(&namespace, Path::new("/proc/self/ns/net")) {
            return Err(Error::new(format!("{shown} is the host's own network namespace"))
                .advise("a process in its own namespace, such as one of 'unshare -Urn'"));
        }
        Ok(Self {
            namespace,
            path,
            pid,
            end,
            child: None,
        })
    }

    /// Returns the namespaces of the guest.
    ///
    /// # Errors
    /// A namespace cannot be opened.
    pub(crate) fn namespaces(&self) -> io::Result<GuestNamespaces> {
        GuestNamespaces::new(self.namespace.try_clone()?, self.pid)
    }

    /// Opens the tap in the namespace, through a child that enters it. The child exits while the caller continues; [`Self::reap`]
    /// has to be called later.
    ///
    /// # Errors
    /// No permission to change the namespace, or the tap cannot be created.
    pub(crate) fn make_tap(&mut self, plan: &tap::TapConfig) -> Result<tap::CreatedTap, Error> {
        let (ours, theirs) = seqpacket::pair().context("cannot make a socket pair")?;
        let child = spawn::fork(|| {
            let alone = isolate(&[self.namespace.as_fd(), theirs.as_fd()])
                .context("cannot close inherited file descriptors");
            let message = match alone.and_then(|()| self.enter()).and_then(|()| tap::create(plan)) {
                Ok(tap) => FromGuest::Tap(tap),
                Err(error) => FromGuest::Failed(error),
            };
            u8::from(message.send(&theirs).is_err())
        })
        .context("cannot fork")?;
        drop(theirs);
        let message = FromGuest::receive(&ours).context("cannot receive from the child")?;
        self.child = Some(child);
        match message {
            Some(FromGuest::Tap(tap)) => Ok(tap),
            Some(FromGuest::Failed(error)) => Err(error),
            other => Err(Error::new(format!(
                "unexpected message from the child in {}: {other:?}",
                self.path.display()
            ))),
        }
    }

    /// Reaps the child that has opened the tap.
    pub(crate) fn reap(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = child.wait();
        }
    }

    fn enter(&self) -> Result<(), Error> {
        enter(&self.namespace).map_err(|error| {
            Error::io(format_args!("cannot enter {}", self.path.display()), &error)
                .advise("as the user that created it, or as root")
        })
    }

    /// Returns the network namespace.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(crate) fn network(&self) -> io::Result<File> {
        self.namespace.try_clone()
    }

    /// Returns the pidfd to poll for reading, if the exit of a process marks the end.
    #[must_use]
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.end {
            NamespaceEnd::Process(pidfd) => Some(pidfd.as_fd()),
            NamespaceEnd::File | NamespaceEnd::Never => None,
        }
    }

    /// Returns true if the namespace file was removed or replaced. The file itself is checked, because inotify reports
    /// events of the whole directory.
    #[must_use]
    pub(crate) fn file_is_gone(&self) -> bool {
        matches!(self.end, NamespaceEnd::File) && !same_file(&self.namespace, &self.path)
    }
}

/// Closes all descriptors of this process, a child, except `keep`, and makes the process not dumpable. The child is about to
/// enter a user namespace whose root may trace its processes, while the child's root directory, memory and descriptors are still
/// the host's.
pub(super) fn isolate(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    spawn::close_all_but(keep)
}

/// Enters a network namespace; if that needs capabilities, it enters the user namespace that owns it first.
pub(super) fn enter(namespace: &File) -> io::Result<()> {
    if userns::needed() {
        let owner = File::from(owner(namespace.as_fd())?);
        // Entering the own user namespace again is an error (setns(2)).
        if !same_file(&owner, Path::new("/proc/self/ns/user")) {
            setns(&owner, LinkNameSpaceType::User)?;
        }
    }
    setns(namespace, LinkNameSpaceType::Network)
}

fn setns(namespace: &File, kind: LinkNameSpaceType) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(kind))?)
}

/// Returns the process that a path in `/proc` names.
fn process_of(path: &Path) -> Option<Pid> {
    let mut parts = path.strip_prefix("/proc").ok()?.iter();
    parts.next()?.to_str()?.parse().ok().and_then(Pid::from_raw)
}

/// Opens a namespace file. A FIFO in its place does not block.
fn open_namespace(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Watches the directory of a namespace file, and that of the file to which a symbolic link leads.
fn watch(path: &Path, files: &mut FileWatch) -> io::Result<()> {
    let events = inotify::WatchFlags::DELETE
        | inotify::WatchFlags::MOVED_FROM
        | inotify::WatchFlags::DELETE_SELF
        | inotify::WatchFlags::MOVE_SELF;
    // A path below /proc leads to no file with a path.
    let behind_links = fs::canonicalize(path).ok();
    for file in [Some(path), behind_links.as_deref()].into_iter().flatten() {
        let directory = match file.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        files.add(directory, events)?;
    }
    Ok(())
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn ns_type(namespace: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: NS_GET_NSTYPE takes no argument and accesses no memory of this process.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_NSTYPE) } {
        -1 => Err(io::Error::last_os_error()),
        kind => Ok(kind),
    }
}

/// Returns the user namespace that owns a network namespace; EPERM if it is neither this process's nor a descendant of it.
fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: NS_GET_USERNS takes no argument; what it returns is a new descriptor, which has no other owner.
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use pontoon_test_support::process::in_child;
    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn process_of_a_proc_path_is_found() {
        let pid = |path: &str| process_of(Path::new(path)).map(|pid| pid.as_raw_nonzero().get());
        assert_eq!(pid("/proc/17/ns/net"), Some(17));
        assert_eq!(pid("/proc/self/ns/net"), None);
        assert_eq!(pid("/run/netns/17"), None);
    }

    #[test]
    fn isolated_child_has_no_other_descriptors_and_is_not_dumpable() {
        const NAME: &str =
            "guest::attach::tests::isolated_child_has_no_other_descriptors_and_is_not_dumpable";
        let (_ours, theirs) = seqpacket::pair().unwrap();
        let attached = Attached {
            namespace: File::open("/proc/self/ns/net").unwrap(),
            path: PathBuf::new(),
            pid: None,
            end: NamespaceEnd::File,
            child: None,
        };
        let status = in_child(NAME, || {
            let isolated = isolate(&[attached.namespace.as_fd(), theirs.as_fd()]).is_ok();
            // The child has three standard descriptors, the namespace, the socket, and the directory that it reads.
            let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
            let hidden = dumpable_behavior() == Ok(DumpableBehavior::NotDumpable);
            let sees = same_file(&attached.namespace, Path::new("/proc/self/ns/net"));
            u8::from(!(isolated && open == 6 && hidden && sees))
        });
        assert_eq!(status, 0);
    }

    #[test]
    fn errors_of_targets_name_the_reason() {
        let line = |path: &str| {
            Attached::open(&Target::Path(path.into()), false, &mut FileWatch::default())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            line("/run/no-such-directory/x"),
            "cannot open network namespace /run/no-such-directory/x: no such file or directory \
             (try: the id of a running process, or a file in /run/netns)"
        );
        assert!(line("/etc/passwd").starts_with("/etc/passwd is not a network namespace (try: "));
        assert!(line("/proc/self/ns/user").starts_with("/proc/self/ns/user is not a network namespace"));
        assert!(line("/proc/self/ns/net").contains("is the host's own network namespace"));
        assert!(
            Attached::open(&Target::Pid(0x3fff_ffff), false, &mut FileWatch::default())
                .unwrap_err()
                .to_string()
                .contains("/proc/1073741823/ns/net: no such file or directory")
        );
    }
}
