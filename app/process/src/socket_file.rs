//! Files of listening Unix sockets: their removal, and the detection of files whose socket is closed.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// File of a listening Unix socket, which is removed when this value is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode number: another file of the same name is not removed.
    id: (u64, u64),
}

impl SocketFile {
    /// Returns the file at `path`, to which a socket has been bound.
    ///
    /// # Errors
    /// The file does not exist or cannot be inspected.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self {
            id: id(path)?,
            path: path.to_owned(),
        })
    }

    /// Returns the path to which the socket was bound.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Returns true if no socket is bound to the socket file any more. The test connects a datagram socket: connect(2) returns
/// EPROTOTYPE if a stream socket exists, which the listening process does not notice, and does not block if the accept
/// queue of that socket is full.
#[must_use]
pub fn is_left_over(path: &Path) -> bool {
    let probed = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket && probed() == Err(Errno::CONNREFUSED)
}
