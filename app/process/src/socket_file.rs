//! Removes the files of listening Unix sockets, and detects files that are left over.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// The file of a listening socket, which is removed on drop.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: another file of the same name is not removed.
    id: (u64, u64),
}

impl SocketFile {
    /// Returns the file that a socket was bound to.
    ///
    /// # Errors
    /// The file does not exist or cannot be inspected.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self {
            id: id(path)?,
            path: path.to_owned(),
        })
    }

    /// Returns the path that the socket was bound to.
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

/// Returns true if a socket file has no socket any more. A datagram socket is used for the test: connect(2) returns
/// EPROTOTYPE if a stream socket exists, which the listening process does not notice, and does not block if its queue is
/// full.
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
