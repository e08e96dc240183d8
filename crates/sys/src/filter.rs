//! Classic BPF programs on sockets (socket(7), `SO_ATTACH_FILTER`).

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::option::last_error;

/// Makes a program decide what a socket receives, in the place of any it has. An instruction is code, jump where true,
/// jump where false, operand.
///
/// # Errors
/// EINVAL: not a program that the kernel takes.
pub fn attach(socket: impl AsFd, program: impl IntoIterator<Item = (u16, u8, u8, u32)>) -> Result<(), Errno> {
    let mut program: Vec<_> = program
        .into_iter()
        .map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
        .collect();
    let header = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_mut_ptr(),
    };
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (at, fd) = ((&raw const header).cast(), socket.as_fd().as_raw_fd());
    // SAFETY: `header` is a live `sock_fprog` of `len` bytes that names `program`, which has as many instructions as it
    // says; the kernel copies them.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Lets nothing through.
///
/// # Errors
/// Not a socket.
pub fn refuse_all(socket: impl AsFd) -> Result<(), Errno> {
    attach(socket, [(0x06, 0, 0, 0)])
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn decides_what_is_received() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 8];
        refuse_all(&socket).unwrap();
        socket.send_to(b"no", to).unwrap();
        assert!(socket.recv(&mut buffer).is_err());
        // The first byte behind the UDP header decides.
        attach(
            &socket,
            [
                (0x30, 0, 0, 8),
                (0x15, 0, 1, b'y'.into()),
                (0x06, 0, 0, 99),
                (0x06, 0, 0, 0),
            ],
        )
        .unwrap();
        socket.send_to(b"no", to).unwrap();
        socket.send_to(b"yes", to).unwrap();
        assert_eq!(socket.recv(&mut buffer).unwrap(), 3);
        assert_eq!(attach(&socket, [(0x30, 0, 0, 8)]), Err(Errno::INVAL));
    }
}
