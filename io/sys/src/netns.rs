//! Network namespaces of sockets.

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::option;

/// Socket option with the cookie of the socket's network namespace (asm-generic/socket.h, since Linux 5.14).
const SO_NETNS_COOKIE: i32 = 71;

/// Returns the cookie of the network namespace in which a socket was created. The kernel assigns each namespace a cookie that
/// no other one has until the next boot.
///
/// # Errors
/// ENOPROTOOPT: the kernel does not support the option.
pub fn cookie(socket: impl AsFd) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    option::get(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn sockets_of_one_namespace_have_the_same_cookie() {
        let bound = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (one, other) = (cookie(bound()).unwrap(), cookie(bound()).unwrap());
        assert!(one != 0 && one == other);
    }
}
