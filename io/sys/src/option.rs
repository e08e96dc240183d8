//! Calls of setsockopt(2) and getsockopt(2) for options that rustix has no function for.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Sets an option to bytes in the form that it expects.
///
/// # Errors
/// The kernel's.
pub fn set(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let fd = socket.as_fd().as_raw_fd();
    let len = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel reads `len` bytes at `value`, which is borrowed.
    let result = unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Sets a socket option whose value is an int.
pub(crate) fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    set(socket, level, name, &value.to_ne_bytes())
}

/// Reads the value of a socket option into `value`, and returns the number of bytes that the kernel has written.
///
/// # Errors
/// Those of getsockopt(2).
pub fn get(socket: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
    let fd = socket.as_fd().as_raw_fd();
    let mut len = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel writes at most `len` bytes at `value`, which is exclusively borrowed, and the number to `len`.
    let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    if result == 0 {
        Ok(usize::try_from(len).unwrap_or(0))
    } else {
        Err(last_error())
    }
}

/// Returns `errno` of the libc call that has just failed.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
