//! The socket in the file system.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, listen, socket_with};

use crate::error::{Error, reason};

/// A listening socket, whose file goes when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, so that no other's is removed.
    file: (u64, u64),
}

impl Listener {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let cannot = |error: &io::Error| {
            let plain = Error::new(format!(
                "cannot open control socket {}: {}",
                path.display(),
                reason(error)
            ));
            match error.kind() {
                io::ErrorKind::AddrInUse => plain.advise("another path, or an end of who listens there"),
                io::ErrorKind::NotFound => plain.advise("a directory that is there"),
                _ => plain,
            }
        };
        remove_stale(path);
        let socket = bind(path).map_err(|error| cannot(&error))?;
        let file = fs::symlink_metadata(path).map_err(|error| cannot(&error))?;
        Ok(Self {
            socket,
            path: path.to_path_buf(),
            file: (file.dev(), file.ino()),
        })
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)
    }

    /// The next client, if there is one.
    pub(super) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                Ok(Some(stream))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = |file: fs::Metadata| (file.dev(), file.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode of the socket (`unix_bind_bsd` in Linux), so that it is nobody else's at any moment.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket of one that is dead. What is no socket, or has somebody behind it, stays.
fn remove_stale(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket
        && let Err(error) = UnixStream::connect(path)
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        let _ = fs::remove_file(path);
    }
}

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 16;
