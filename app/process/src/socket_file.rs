//! Files of listening Unix sockets: their creation in place of files whose socket is closed, and their removal.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

/// File of a listening Unix socket, which is removed when this value is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode number: another file of the same name is not removed.
    id: (u64, u64),
    /// Copy of the socket: while it is open, no other process replaces the file.
    _socket: OwnedFd,
}

impl SocketFile {
    /// Binds a Unix socket to a new file at `path`. A socket file is replaced if no socket is bound to it any more.
    ///
    /// # Errors
    /// EADDRINUSE: there is a file at the path that is not replaced. Otherwise the file cannot be created.
    pub fn bind(path: &Path, socket: impl AsFd) -> io::Result<Self> {
        let wait = match path.exists() {
            true => LOCK_WAIT,
            false => LOCK_WAIT_WITHOUT_FILE,
        };
        Self::bind_locked(path, &socket, wait)
    }

    /// Binds a Unix socket to a new file at the first of `paths` at which that is possible, also while other processes do the same. A
    /// socket file of this user is replaced if no socket is bound to it any more.
    ///
    /// # Errors
    /// EADDRINUSE: there is a file that is not replaced at each path. Otherwise no file can be created at the last path that has none.
    pub fn bind_first(paths: &[PathBuf], socket: impl AsFd) -> io::Result<Self> {
        let mut last = Errno::ADDRINUSE.into();
        for path in paths.iter().filter(|path| is_free(path)) {
            match Self::bind_locked(path, &socket, LOCK_WAIT) {
                Ok(file) => return Ok(file),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Binds a socket at `path` while its directory is locked, or after the time `wait` without the lock.
    fn bind_locked(path: &Path, socket: impl AsFd, wait: Duration) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let lock = lock_directory(path, wait);
        let bind = || rustix::net::bind(&socket, &address);
        match bind() {
            Err(Errno::ADDRINUSE) if lock.is_some() && is_left_over(path) => {
                fs::remove_file(path)?;
                bind()?;
            }
            bound => bound?,
        }
        Ok(Self {
            id: id(path)?,
            path: path.to_owned(),
            _socket: socket.as_fd().try_clone_to_owned()?,
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

/// Lock of a directory, which is released when this value is dropped.
struct DirectoryLock(OwnedFd);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // A child that another thread has forked meanwhile may hold a copy of the descriptor, so closing does not suffice.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Locks the directory of `path`. Two processes that start at the same path
/// would otherwise remove each other's file: the removal of a file is not atomic with its test, and the kernel creates the
/// file of a socket before it binds the socket (`unix_bind_bsd` in Linux). Returns `None` if the directory cannot be locked,
/// for example because it may not be read or another process keeps it locked for the time `wait`.
fn lock_directory(path: &Path, wait: Duration) -> Option<DirectoryLock> {
    let parent = path.parent()?;
    let directory = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let deadline = Instant::now() + wait;
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(DirectoryLock(directory)),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => thread::sleep(LOCK_PAUSE),
            Err(_) => return None,
        }
    }
}

/// Time limit for the lock of a directory with a file that may have to be replaced, which is not possible without the lock, or in which
/// several processes bind sockets at the first path that is free.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Time limit for the lock if there is no file at the path. Processes of this program hold it for less than a millisecond;
/// RootlessKit locks the directory of the socket for as long as it runs, and waits for the program.
const LOCK_WAIT_WITHOUT_FILE: Duration = Duration::from_millis(5);

/// Time between two attempts to lock a directory.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Returns true if no socket is bound to the socket file any more. The test connects a datagram socket: connect(2) returns
/// EPROTOTYPE if a stream socket exists, which the listening process does not notice, and does not block if the accept
/// queue of that socket is full.
fn is_left_over(path: &Path) -> bool {
    let probed = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket && probed() == Err(Errno::CONNREFUSED)
}

/// Returns true if a socket can be bound to a file at `path`: there is no file, or one of this user to which no socket is bound
/// any more. Another process may create the file afterwards.
fn is_free(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(file) => file.uid() == geteuid().as_raw() && is_left_over(path),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Barrier;

    use rustix::fs::FileType;

    use super::*;

    fn new_socket() -> OwnedFd {
        socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    /// Returns a new socket that listens at `path`, and its file.
    fn start(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
        let socket = new_socket();
        let file = SocketFile::bind(path, &socket)?;
        rustix::net::listen(&socket, 8)?;
        Ok((socket.into(), file))
    }

    /// Creates a socket file to which no socket is bound.
    fn leave_over(path: &Path) {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Socket, mode, 0).unwrap();
    }

    /// Starts at `path` in several threads at the same time, while `also` runs, and returns what has started.
    fn start_together(path: &Path, also: impl FnOnce() + Send) -> Vec<(UnixListener, SocketFile)> {
        const STARTERS: usize = 8;
        let barrier = Barrier::new(STARTERS + 1);
        let outcomes: Vec<_> = thread::scope(|scope| {
            let start = || {
                barrier.wait();
                start(path)
            };
            let starters: Vec<_> = (0..STARTERS).map(|_| scope.spawn(start)).collect();
            barrier.wait();
            also();
            starters
                .into_iter()
                .map(|starter| starter.join().unwrap())
                .collect()
        });
        let started = |outcome: io::Result<_>| match outcome {
            Ok(started) => Some(started),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
                None
            }
        };
        outcomes.into_iter().filter_map(started).collect()
    }

    fn assert_reachable(path: &Path, listener: &UnixListener) {
        let _client = UnixStream::connect(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener.accept().unwrap();
    }

    #[test]
    fn one_of_many_starters_replaces_a_file_without_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        for round in 0..200 {
            leave_over(&path);
            let started = start_together(&path, || {});
            assert_eq!(started.len(), 1, "in round {round}");
            assert_reachable(&path, &started[0].0);
            drop(started);
            assert!(!path.exists());
        }
    }

    #[test]
    fn one_of_many_starters_creates_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        for round in 0..200 {
            let started = start_together(&path, || {});
            assert_eq!(started.len(), 1, "in round {round}");
            assert_reachable(&path, &started[0].0);
        }
    }

    #[test]
    fn each_of_many_starters_gets_another_of_several_paths() {
        const STARTERS: usize = 24;
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..STARTERS)
            .map(|number| directory.path().join(number.to_string()))
            .collect();
        for _ in 0..50 {
            leave_over(&paths[1]);
            let barrier = Barrier::new(STARTERS);
            let start = || {
                let socket = new_socket();
                barrier.wait();
                SocketFile::bind_first(&paths, socket).unwrap()
            };
            let files: Vec<_> = thread::scope(|scope| {
                let starters: Vec<_> = (0..STARTERS).map(|_| scope.spawn(start)).collect();
                starters
                    .into_iter()
                    .map(|starter| starter.join().unwrap())
                    .collect()
            });
            let mut bound: Vec<_> = files.iter().map(|file| file.path().to_owned()).collect();
            bound.sort();
            bound.dedup();
            assert_eq!(bound.len(), STARTERS);
            let error = SocketFile::bind_first(&paths, new_socket()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn process_that_ends_keeps_the_file_of_another_that_starts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        for _ in 0..200 {
            let (listener, file) = start(&path).unwrap();
            let started = start_together(&path, move || drop((listener, file)));
            assert!(started.len() <= 1);
            if let [(listener, _)] = &started[..] {
                assert_reachable(&path, listener);
            }
        }
    }

    #[test]
    fn file_is_in_use_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (listener, file) = start(&path).unwrap();
        drop(listener);
        assert_eq!(start(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(file);
        assert!(!path.exists());
        drop(start(&path).unwrap());
    }

    #[test]
    fn new_file_is_created_at_once_in_a_directory_that_another_program_locks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _lock = lock_directory(&path, LOCK_WAIT).unwrap();
        let begin = Instant::now();
        drop(start(&path).unwrap());
        assert!(begin.elapsed() < LOCK_WAIT / 2, "{:?}", begin.elapsed());
    }

    #[test]
    fn file_without_socket_is_kept_while_the_directory_is_locked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        leave_over(&path);
        let lock = lock_directory(&path, LOCK_WAIT).unwrap();
        assert_eq!(start(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(lock);
        drop(start(&path).unwrap());
    }
}
