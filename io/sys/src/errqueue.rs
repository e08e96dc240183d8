//! The error queue of datagram and raw sockets (`IP_RECVERR` in ip(7), `sock_extended_err`).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::address::{self, array};
use crate::message::{self, Take};
use crate::{cmsg, udp};

/// Bytes of `sock_extended_err`, which is followed by the offender's address.
const EXTENDED_LEN: usize = 16;

/// Origin of an error (`ee_origin`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The host's own stack.
    Local,
    /// An ICMP or ICMPv6 message.
    Icmp {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
    },
}

/// An entry of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorQueueEntry {
    /// The error.
    pub errno: Errno,
    /// Origin of the error.
    pub origin: Origin,
    /// The MTU, if the error is EMSGSIZE.
    pub info: u32,
    /// Address of the host or router that has reported the error.
    pub offender: Option<IpAddr>,
    /// Destination of the datagram.
    pub destination: Option<SocketAddr>,
    /// Bytes of the datagram in the caller's buffer. For ping and raw ICMP sockets the first eight are the ICMP header.
    pub len: usize,
}

/// Removes the next entry. The datagram is copied to `into`, as far as the queue holds it.
///
/// # Errors
/// EAGAIN: the queue is empty.
pub fn next(socket: impl AsFd, into: &mut [u8]) -> Result<ErrorQueueEntry, Errno> {
    let mut control = [0; udp::CONTROL];
    let received = message::receive(socket, &[VolatileSlice::from(into)], &mut control, Take::Error)?;
    let control = control.get(..received.control_len).unwrap_or_default();
    let entry = cmsg::decode(control)
        .filter(|message| {
            matches!(
                (message.level, message.kind),
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
            )
        })
        .find_map(|message| decode(message.data));
    // The kernel adds one to every entry. Without it nothing is known about the error.
    let entry = entry.ok_or(Errno::AGAIN)?;
    Ok(ErrorQueueEntry {
        destination: received.address,
        len: received.len,
        ..entry
    })
}

/// Decodes `sock_extended_err` and the address behind it.
fn decode(data: &[u8]) -> Option<ErrorQueueEntry> {
    let errno = i32::from_ne_bytes(array(data, 0)?);
    let errno = (1..4096)
        .contains(&errno)
        .then(|| Errno::from_raw_os_error(errno))?;
    let [origin, kind, code] = array(data, 4)?;
    Some(ErrorQueueEntry {
        errno,
        origin: match origin {
            libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 => Origin::Icmp { kind, code },
            _ => Origin::Local,
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
    fn returns_a_refused_datagram() {
        for (family, kind, code) in [(Family::V4, 3, 3), (Family::V6, 1, 4)] {
            let Ok(closed) = UdpSocket::bind((family.loopback(), 0)) else {
                crate::skipped("a_refused_datagram_comes_back", family);
                continue;
            };
            let to = closed.local_addr().unwrap();
            drop(closed);
            let socket = UdpSocket::bind((family.loopback(), 0)).unwrap();
            udp::enable_recv_info(&socket, family).unwrap();
            socket.send_to(b"anybody?", to).unwrap();

            let mut sent = [0; 64];
            let entry = next(&socket, &mut sent).unwrap();
            assert_eq!(entry.errno, Errno::CONNREFUSED);
            assert_eq!(entry.origin, Origin::Icmp { kind, code });
            assert_eq!(entry.offender, Some(family.loopback()));
            assert_eq!(entry.destination, Some(to));
            assert_eq!(&sent[..entry.len], b"anybody?");
            assert_eq!(next(&socket, &mut sent).unwrap_err(), Errno::AGAIN);
        }
    }

    #[test]
    fn refuses_truncated_entries() {
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
