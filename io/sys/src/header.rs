//! Message headers in the kernel's layout, and the system calls that take them: sendmsg(2), recvmsg(2), sendmmsg(2) and
//! recvmmsg(2). Those of libc depend on the C library: the fields of musl's headers have other types, its `sendmsg`
//! copies the control messages, and its `sendmmsg` makes one system call for each message.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use crate::option::last_error;

/// Header of one message: `struct user_msghdr` of the kernel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MessageHeader {
    pub(crate) name: *mut libc::c_void,
    pub(crate) name_len: u32,
    pub(crate) parts: *const libc::iovec,
    pub(crate) part_count: usize,
    pub(crate) control: *mut libc::c_void,
    pub(crate) control_len: usize,
    pub(crate) flags: libc::c_int,
}

/// Header of one message of several: `struct mmsghdr` of the kernel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BatchedHeader {
    pub(crate) header: MessageHeader,
    /// Number of bytes that were sent or received.
    pub(crate) len: u32,
}

impl MessageHeader {
    /// Returns a header that references `count` iovecs, without address and control messages.
    pub(crate) fn new(parts: *const libc::iovec, count: usize) -> Self {
        Self {
            name: ptr::null_mut(),
            name_len: 0,
            parts,
            part_count: count,
            control: ptr::null_mut(),
            control_len: 0,
            flags: 0,
        }
    }

    /// Returns the header as one of several.
    pub(crate) fn batched(self) -> BatchedHeader {
        BatchedHeader { header: self, len: 0 }
    }
}

/// Calls sendmsg(2). Returns the number of bytes.
///
/// # Safety
/// `header` references memory that is readable until this function returns.
pub(crate) unsafe fn send(
    socket: BorrowedFd<'_>,
    header: &MessageHeader,
    flags: libc::c_int,
) -> Result<usize, Errno> {
    let fd = socket.as_raw_fd();
    // SAFETY: the caller's.
    result(unsafe { libc::syscall(libc::SYS_sendmsg, fd, ptr::from_ref(header), flags) })
}

/// Calls recvmsg(2). Returns the number of bytes.
///
/// # Safety
/// `header` references memory that is writable until this function returns, and to which no Rust reference exists.
pub(crate) unsafe fn receive(
    socket: BorrowedFd<'_>,
    header: &mut MessageHeader,
    flags: libc::c_int,
) -> Result<usize, Errno> {
    let fd = socket.as_raw_fd();
    // SAFETY: the caller's.
    result(unsafe { libc::syscall(libc::SYS_recvmsg, fd, ptr::from_mut(header), flags) })
}

/// Calls sendmmsg(2). Returns the number of messages.
///
/// # Safety
/// `headers` reference memory that is readable until this function returns.
pub(crate) unsafe fn send_batch(
    socket: BorrowedFd<'_>,
    headers: &mut [BatchedHeader],
    flags: libc::c_int,
) -> Result<usize, Errno> {
    let (fd, at, count) = (socket.as_raw_fd(), headers.as_mut_ptr(), headers.len());
    // SAFETY: the caller's.
    result(unsafe { libc::syscall(libc::SYS_sendmmsg, fd, at, count, flags) })
}

/// Calls recvmmsg(2) without a timeout. Returns the number of messages.
///
/// # Safety
/// `headers` reference memory that is writable until this function returns, and to which no Rust reference exists.
pub(crate) unsafe fn receive_batch(
    socket: BorrowedFd<'_>,
    headers: &mut [BatchedHeader],
    flags: libc::c_int,
) -> Result<usize, Errno> {
    let (fd, at, count) = (socket.as_raw_fd(), headers.as_mut_ptr(), headers.len());
    let none = ptr::null_mut::<libc::timespec>();
    // SAFETY: the caller's.
    result(unsafe { libc::syscall(libc::SYS_recvmmsg, fd, at, count, flags, none) })
}

fn result(returned: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| last_error())
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layout_is_that_of_the_kernel() {
        assert_eq!(size_of::<MessageHeader>(), 56);
        assert_eq!(size_of::<BatchedHeader>(), 64);
        let offsets = [
            offset_of!(MessageHeader, name_len),
            offset_of!(MessageHeader, parts),
            offset_of!(MessageHeader, part_count),
            offset_of!(MessageHeader, control),
            offset_of!(MessageHeader, control_len),
            offset_of!(MessageHeader, flags),
        ];
        assert_eq!(offsets, [8, 16, 24, 32, 40, 48]);
        assert_eq!(offset_of!(BatchedHeader, len), 56);
    }
}
