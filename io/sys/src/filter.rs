//! Classic BPF socket filters (socket(7), `SO_ATTACH_FILTER`).

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::option::last_error;

/// Attaches a classic BPF program that filters the packets a socket receives; it replaces an earlier one. The fields of
/// an instruction are those of `sock_filter`: code, jump if true, jump if false, operand.
///
/// # Errors
/// EINVAL: the kernel's verifier does not accept the program.
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
    // SAFETY: `header` is a live `sock_fprog` of `len` bytes that references `program` and its number of instructions; the
    // kernel copies them.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Attaches a filter that drops every packet that the socket would receive.
///
/// # Errors
/// Errors of setsockopt(2), for example ENOTSOCK.
pub fn refuse_all(socket: impl AsFd) -> Result<(), Errno> {
    attach(socket, [(0x06, 0, 0, 0)])
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn filter_drops_datagrams_that_do_not_match() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 8];
        refuse_all(&socket).unwrap();
        socket.send_to(b"no", to).unwrap();
        assert!(socket.recv(&mut buffer).is_err());
        // Accept if the first byte behind the UDP header is 'y'.
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
