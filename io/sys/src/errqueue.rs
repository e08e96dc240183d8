//! Reading of the error queue of datagram and raw sockets (`IP_RECVERR` in ip(7), `sock_extended_err`).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::address::{self, array};
use crate::message::{self, RecvMode};
use crate::{cmsg, udp};

/// Size of `sock_extended_err` in bytes; the address of the host that has reported the error follows it.
const EXTENDED_LEN: usize = 16;

/// Origin of an error in the error queue (`ee_origin`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// The network stack of the host itself (`SO_EE_ORIGIN_LOCAL`).
    Local,
    /// An ICMP or ICMPv6 error message that the host has received (`SO_EE_ORIGIN_ICMP`, `SO_EE_ORIGIN_ICMP6`).
    Icmp {
        /// Type of the ICMP message.
        kind: u8,
        /// Code of the ICMP message.
        code: u8,
    },
}

/// An entry of a socket's error queue: a datagram that was sent, and the error that was reported for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorQueueEntry {
    /// Error number (`ee_errno`).
    pub errno: Errno,
    /// Origin of the error: the host's stack or an ICMP message.
    pub origin: ErrorOrigin,
    /// MTU of the path in bytes, if the error is EMSGSIZE (`ee_info`).
    pub info: u32,
    /// Address of the host or router that has reported the error (`SO_EE_OFFENDER`).
    pub offender: Option<IpAddr>,
    /// Destination of the datagram that caused the error.
    pub destination: Option<SocketAddr>,
    /// Number of bytes of the datagram in the caller's buffer. For ping and raw ICMP sockets the first eight are the
    /// ICMP header.
    pub len: usize,
}

/// Removes the oldest entry from the error queue, and copies the bytes of the datagram that the kernel has kept to
/// `into`.
///
/// # Errors
/// EAGAIN: the error queue is empty.
pub fn next(socket: impl AsFd, into: &mut [u8]) -> Result<ErrorQueueEntry, Errno> {
    let mut control = [0; udp::CONTROL];
    let received = message::receive(
        socket,
        &[VolatileSlice::from(into)],
        &mut control,
        RecvMode::Error,
    )?;
    let control = control.get(..received.control_len).unwrap_or_default();
    let entry = cmsg::decode(control)
        .filter(|message| {
            matches!(
                (message.level, message.kind),
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
            )
        })
        .find_map(|message| decode(message.data));
    // The kernel adds this control message to every entry of the error queue; without it the error is not known.
    let entry = entry.ok_or(Errno::AGAIN)?;
    Ok(ErrorQueueEntry {
        destination: received.address,
        len: received.len,
        ..entry
    })
}

/// Decodes `sock_extended_err` and the reporting host's address behind it.
fn decode(data: &[u8]) -> Option<ErrorQueueEntry> {
    let errno = i32::from_ne_bytes(array(data, 0)?);
    let errno = (1..4096)
        .contains(&errno)
        .then(|| Errno::from_raw_os_error(errno))?;
    let [origin, kind, code] = array(data, 4)?;
    Some(ErrorQueueEntry {
        errno,
        origin: match origin {
            libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 => ErrorOrigin::Icmp { kind, code },
            _ => ErrorOrigin::Local,
        },
        info: u32::from_ne_bytes(array(data, 8)?),
        offender: address::decode(data.get(EXTENDED_LEN..)?).map(|address| address.ip()),
        destination: None,
        len: 0,
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::Family;

    #[test]
    fn next_returns_the_datagram_that_was_refused() {
        for (family, kind, code) in [(Family::V4, 3, 3), (Family::V6, 1, 4)] {
            let Ok(closed) = UdpSocket::bind((family.loopback(), 0)) else {
                crate::skipped("a_refused_datagram_comes_back", family);
                continue;
            };
            let to = closed.local_addr().unwrap();
            // This frees the port even if a child process of another test holds a copy of the descriptor.
            rustix::net::connect_unspec(&closed).unwrap();
            let socket = UdpSocket::bind((family.loopback(), 0)).unwrap();
            udp::enable_recv_info(&socket, family).unwrap();
            socket.send_to(b"anybody?", to).unwrap();

            let mut sent = [0; 64];
            let entry = next(&socket, &mut sent).unwrap();
            assert_eq!(entry.errno, Errno::CONNREFUSED);
            assert_eq!(entry.origin, ErrorOrigin::Icmp { kind, code });
            assert_eq!(entry.offender, Some(family.loopback()));
            assert_eq!(entry.destination, Some(to));
            assert_eq!(&sent[..entry.len], b"anybody?");
            assert_eq!(next(&socket, &mut sent).unwrap_err(), Errno::AGAIN);
        }
    }

    #[test]
    fn decode_refuses_truncated_entries() {
        let mut whole = [0; EXTENDED_LEN];
        whole[0] = 111;
        assert_eq!(
            decode(&whole).map(|entry| entry.errno),
            Some(Errno::from_raw_os_error(111))
        );
        for len in 0..EXTENDED_LEN {
            assert_eq!(decode(&whole[..len]), None);
        }
        assert_eq!(decode(&[0; EXTENDED_LEN]), None);
    }
}
