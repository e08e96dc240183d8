//! TCP sockets of the host: peek offset, discarding of received data, free space of the send buffer (tcp(7),
//! socket(7)).

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::address::{Family, array};
use crate::option;

/// Makes `MSG_PEEK` start `at` bytes behind the head of the receive queue (`SO_PEEK_OFF`). A peek advances the offset
/// by the number of bytes copied; removal of data from the queue decreases it by as many.
///
/// # Errors
/// EOPNOTSUPP: the kernel does not support `SO_PEEK_OFF` for TCP.
pub fn set_peek_offset(socket: impl AsFd, at: u32) -> Result<(), Errno> {
    let at = i32::try_from(at).map_err(|_| Errno::INVAL)?;
    option::set_int(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, at)
}

/// Discards up to `len` bytes from the head of the receive queue, without copying them. Returns the number of discarded
/// bytes.
///
/// # Errors
/// EAGAIN: the queue is empty. ECONNRESET and others: the connection has ended.
pub fn discard(socket: impl AsFd, len: usize) -> Result<usize, Errno> {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC, TCP copies nothing, so the kernel does not access the null pointer (tcp(7)).
    let dropped = unsafe { libc::recv(socket.as_fd().as_raw_fd(), std::ptr::null_mut(), len, flags) };
    usize::try_from(dropped).map_err(|_| option::last_error())
}

/// Returns an estimate of the bytes that the send buffer still accepts: `SO_SNDBUF` less the queued data, with a
/// reserve for the kernel's overhead (`SO_MEMINFO`).
///
/// # Errors
/// Errors of getsockopt(2), for example ENOTSOCK.
pub fn send_room(socket: impl AsFd) -> Result<u32, Errno> {
    let [limit, queued] = memory(socket, [libc::SK_MEMINFO_SNDBUF, libc::SK_MEMINFO_WMEM_QUEUED])?;
    // The kernel also counts the overhead of each segment: up to a sixth at MTU 1500 (Linux 6.18).
    Ok(limit.saturating_sub(queued) / 4 * 3)
}

/// Returns an estimate of the bytes that a Unix stream socket still accepts: the kernel counts the sent data that the peer
/// has not read as memory of the sender (`SK_MEMINFO_WMEM_ALLOC`).
///
/// # Errors
/// Errors of getsockopt(2), for example ENOTSOCK.
pub fn unix_send_room(socket: impl AsFd) -> Result<u32, Errno> {
    let [limit, used] = memory(socket, [libc::SK_MEMINFO_SNDBUF, libc::SK_MEMINFO_WMEM_ALLOC])?;
    Ok(limit.saturating_sub(used) / 4 * 3)
}

/// Returns the bytes of kernel memory that the receive queue uses, data and overhead (`SK_MEMINFO_RMEM_ALLOC`).
///
/// # Errors
/// Errors of getsockopt(2), for example ENOTSOCK.
pub fn receive_memory(socket: impl AsFd) -> Result<u32, Errno> {
    memory(socket, [libc::SK_MEMINFO_RMEM_ALLOC]).map(|[queued]| queued)
}

fn memory<const N: usize>(socket: impl AsFd, indices: [i32; N]) -> Result<[u32; N], Errno> {
    let mut bytes = [0; 4 * 9];
    option::get(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut bytes)?;
    let word = |index: i32| {
        let at = usize::try_from(index).ok()? * 4;
        Some(u32::from_ne_bytes(array(&bytes, at)?))
    };
    Ok(indices.map(|index| word(index).unwrap_or(0)))
}

/// Makes the next close(2) reset the connection (`SO_LINGER` with a timeout of zero).
///
/// # Errors
/// Errors of setsockopt(2), for example ENOTSOCK.
pub fn reset_on_close(socket: impl AsFd) -> Result<(), Errno> {
    rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO))
}

/// Returns true if `SO_PEEK_OFF` works for TCP of this address family, tested on a loopback connection. Kernels before
/// about 6.10 (IPv4) and 6.12 (IPv6) refuse the option or maintain the offset incorrectly.
///
/// # Errors
/// The loopback connection could not be made.
pub fn peeks_at_offset(family: Family) -> io::Result<bool> {
    let listener = TcpListener::bind((family.loopback(), 0))?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let server = listener.accept()?.0;
    if set_peek_offset(&server, 1).is_err() {
        return Ok(false);
    }
    server.set_read_timeout(Some(Duration::from_secs(1)))?;
    client.write_all(b"abcd")?;
    let next = || {
        let mut byte = [0];
        let got = rustix::net::recv(&server, &mut byte[..], RecvFlags::PEEK).map(|(len, _)| len);
        (got == Ok(1)).then_some(byte[0])
    };
    let before = [next(), next()] == [Some(b'b'), Some(b'c')];
    Ok(before && discard(&server, 1) == Ok(1) && next() == Some(b'd'))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn discard_removes_bytes_from_the_receive_queue() {
        let (mut client, mut server) = connection();
        client.write_all(b"drop keep").unwrap();
        assert_eq!(discard(&server, 5), Ok(5));
        let mut rest = [0; 4];
        server.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"keep");
        assert_eq!(discard(&server, 1), Err(Errno::AGAIN));
        client.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(discard(&server, 1), Ok(0));
    }

    #[test]
    fn receive_memory_is_that_of_the_queue() {
        let (mut client, mut server) = connection();
        assert_eq!(receive_memory(&server), Ok(0));
        client.write_all(&[0; 10_000]).unwrap();
        server.peek(&mut [0]).unwrap();
        assert!(receive_memory(&server).unwrap() >= 10_000);
        server.read_exact(&mut [0; 10_000]).unwrap();
        assert_eq!(receive_memory(&server), Ok(0));
    }

    #[test]
    fn send_room_shrinks_while_the_peer_does_not_read() {
        let (client, _server) = connection();
        client.set_nonblocking(true).unwrap();
        let before = send_room(&client).unwrap();
        assert!(before > 0);
        while (&client).write(&[0; 65536]).is_ok() {}
        assert!(send_room(&client).unwrap() < before / 2);
    }

    #[test]
    fn close_resets_the_connection_after_reset_on_close() {
        let (client, mut server) = connection();
        reset_on_close(&client).unwrap();
        drop(client);
        assert_eq!(
            server.read(&mut [0]).unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
    }

    #[test]
    fn probe_of_the_peek_offset_agrees_with_the_option() {
        let (client, _server) = connection();
        let accepted = set_peek_offset(&client, 0).is_ok();
        assert_eq!(peeks_at_offset(Family::V4).unwrap(), accepted);
    }
}
