//! The system calls that no safe crate here wraps.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A packet socket that sends and receives whole Ethernet frames on the interface of index `ifindex`.
pub(crate) fn packet_socket(ifindex: u32) -> io::Result<OwnedFd> {
    let protocol = 0x0003_u16.to_be(); // ETH_P_ALL
    // SAFETY: `socket` takes no pointer.
    let raw = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            i32::from(protocol),
        )
    };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: `sockaddr_ll` is integers and arrays of them, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET.cast_unsigned() as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = ifindex.cast_signed();
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `socket` is open, and `address` is a live `sockaddr_ll` of `len` bytes that the call only reads.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(socket)
    }
}
