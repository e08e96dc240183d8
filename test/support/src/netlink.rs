//! Netlink requests (netlink(7)) that overflow a socket's receive buffer.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{SendFlags, send, sockopt};

/// Sends a request (NLMSG_NOOP) that has no effect and that the kernel acknowledges.
pub fn request_acknowledgement(socket: impl AsFd) {
    // `struct nlmsghdr`: length, NLMSG_NOOP, NLM_F_REQUEST | NLM_F_ACK, sequence number and port.
    let mut header = [0; 16];
    header[..4].copy_from_slice(&16_u32.to_ne_bytes());
    header[4..6].copy_from_slice(&1_u16.to_ne_bytes());
    header[6..8].copy_from_slice(&5_u16.to_ne_bytes());
    send(socket, &header, SendFlags::empty()).unwrap();
}

/// Fills the receive buffer of a socket, so that the kernel drops its next reply and reports ENOBUFS.
pub fn overflow(socket: OwnedFd) -> OwnedFd {
    sockopt::set_socket_recv_buffer_size(&socket, 0).unwrap();
    (0..100).for_each(|_| request_acknowledgement(&socket));
    socket
}
