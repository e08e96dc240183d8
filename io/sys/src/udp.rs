//! Datagram sockets: segmentation, coalescing, and control messages of datagrams (udp(7), ip(7), ipv6(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, socket_with};

use crate::address::{Family, array};
use crate::{cmsg, option};

/// Size in bytes of a buffer for the control messages of one receive; larger than all of them together.
pub const CONTROL: usize = 256;

/// Control messages of one send: a segment size (`UDP_SEGMENT`) and a source address (`IP_PKTINFO`).
pub type SendControl = cmsg::ControlEncoder<{ cmsg::space(2) + cmsg::space(20) }>;

/// Control messages of a received datagram, decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ancillary {
    /// Length of each datagram if several were coalesced (`UDP_GRO`); the last one may be shorter.
    pub stride: Option<usize>,
    /// TTL or hop limit in the datagram's IP header.
    pub hop_limit: Option<u8>,
    /// TOS or traffic class in the datagram's IP header.
    pub traffic_class: Option<u8>,
    /// Address of this host at which the datagram was received.
    pub to: Option<IpAddr>,
    /// Destination address in the datagram's IP header: an address of this host or a multicast group.
    pub destination: Option<IpAddr>,
    /// Time of arrival since 1970 (`SO_TIMESTAMPNS`).
    pub at: Option<Duration>,
}

impl Ancillary {
    /// Decodes the control messages of a received datagram; unknown ones are ignored.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the kernel's ints hold one byte")]
    #[expect(clippy::cast_sign_loss, reason = "the kernel's ints hold one byte")]
    pub fn decode(control: &[u8]) -> Self {
        let mut beside = Self::default();
        for message in cmsg::decode(control) {
            match (message.level, message.kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    beside.stride = message.int().and_then(|size| usize::try_from(size).ok());
                }
                (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                    beside.hop_limit = message.int().map(|value| value as u8);
                }
                // The value of IP_TOS is one byte; the other values are ints.
                (libc::SOL_IP, libc::IP_TOS) => beside.traffic_class = message.data.first().copied(),
                (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                    beside.traffic_class = message.int().map(|value| value as u8);
                }
                // in_pktinfo: interface, local address, destination in the header.
                (libc::SOL_IP, libc::IP_PKTINFO) => {
                    let address =
                        |at| array::<4>(message.data, at).map(|octets| Ipv4Addr::from(octets).into());
                    (beside.to, beside.destination) = (address(4), address(8));
                }
                // timespec: seconds, nanoseconds.
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    let number = |at| array(message.data, at).map(i64::from_ne_bytes);
                    let seconds = number(0).and_then(|seconds| u64::try_from(seconds).ok());
                    let nanoseconds = number(8).and_then(|nanoseconds| u32::try_from(nanoseconds).ok());
                    beside.at = seconds
                        .zip(nanoseconds)
                        .map(|(seconds, nanoseconds)| Duration::new(seconds, nanoseconds));
                }
                // in6_pktinfo: address, interface.
                (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                    let destination = array::<16>(message.data, 0).map(Ipv6Addr::from);
                    // A multicast group is not a local address.
                    beside.to = destination.filter(|to| !to.is_multicast()).map(Into::into);
                    beside.destination = destination.map(Into::into);
                }
                _ => {}
            }
        }
        beside
    }
}

/// Makes one send split its payload into datagrams of `size` bytes (`UDP_SEGMENT` as control message, Linux 4.18).
pub fn push_segment(control: &mut SendControl, size: u16) {
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
}

/// Makes every send on the socket split its payload into datagrams of `size` bytes (`UDP_SEGMENT` as option, Linux
/// 4.18).
///
/// # Errors
/// ENOPROTOOPT: the kernel does not support `UDP_SEGMENT`.
pub fn set_segment(socket: impl AsFd, size: u16) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, size.into())
}

/// Sets the source address of one send on a socket that is bound to a wildcard address.
pub fn push_source(control: &mut SendControl, source: IpAddr) {
    match source {
        IpAddr::V4(v4) => {
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&v4.octets());
            control.push(libc::SOL_IP, libc::IP_PKTINFO, &info);
        }
        IpAddr::V6(v6) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&v6.octets());
            control.push(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
        }
    }
}

/// Enables the error queue, and control messages with TTL and TOS (hop limit and traffic class) of received datagrams.
///
/// # Errors
/// ENOPROTOOPT: not a datagram or raw socket of `family`.
pub fn enable_recv_info(socket: impl AsFd, family: Family) -> Result<(), Errno> {
    let (level, names) = match family {
        Family::V4 => (
            libc::SOL_IP,
            [libc::IP_RECVERR, libc::IP_RECVTTL, libc::IP_RECVTOS],
        ),
        Family::V6 => (
            libc::SOL_IPV6,
            [libc::IPV6_RECVERR, libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS],
        ),
    };
    names
        .into_iter()
        .try_for_each(|name| option::set_int(&socket, level, name, 1))
}

/// Enables control messages with the destination address of received datagrams (`IP_PKTINFO`, `IPV6_RECVPKTINFO`).
///
/// # Errors
/// ENOPROTOOPT: not a socket of `family`.
pub fn enable_pktinfo(socket: impl AsFd, family: Family) -> Result<(), Errno> {
    match family {
        Family::V4 => option::set_int(socket, libc::SOL_IP, libc::IP_PKTINFO, 1),
        Family::V6 => option::set_int(socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1),
    }
}

/// Enables control messages with the time of arrival of received datagrams (`SO_TIMESTAMPNS`).
///
/// # Errors
/// Errors of setsockopt(2), for example ENOTSOCK.
pub fn enable_timestamps(socket: impl AsFd) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Sets the TTL or hop limit of datagrams that the socket sends. The value 0 is refused.
///
/// # Errors
/// EINVAL: the value is 0.
pub fn set_hop_limit(socket: impl AsFd, family: Family, value: u8) -> Result<(), Errno> {
    match family {
        Family::V4 => option::set_int(socket, libc::SOL_IP, libc::IP_TTL, value.into()),
        Family::V6 if value == 0 => Err(Errno::INVAL),
        Family::V6 => option::set_int(socket, libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS, value.into()),
    }
}

/// Sets the TOS or traffic class byte (DSCP and ECN) of datagrams that the socket sends.
///
/// # Errors
/// ENOPROTOOPT: not a socket of `family`.
pub fn set_traffic_class(socket: impl AsFd, family: Family, value: u8) -> Result<(), Errno> {
    match family {
        Family::V4 => option::set_int(socket, libc::SOL_IP, libc::IP_TOS, value.into()),
        Family::V6 => option::set_int(socket, libc::SOL_IPV6, libc::IPV6_TCLASS, value.into()),
    }
}

/// Forbids or permits the host to fragment datagrams that the socket sends. If fragmentation is forbidden, a datagram
/// larger than the known path MTU is refused with EMSGSIZE, and an entry of the error queue contains the MTU.
///
/// # Errors
/// ENOPROTOOPT: not a socket of `family`.
pub fn set_dont_fragment(socket: impl AsFd, family: Family, value: bool) -> Result<(), Errno> {
    match (family, value) {
        (Family::V4, true) => {
            option::set_int(socket, libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
        }
        (Family::V4, false) => option::set_int(
            socket,
            libc::SOL_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DONT,
        ),
        (Family::V6, true) => option::set_int(
            socket,
            libc::SOL_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        ),
        // IPV6_PMTUDISC_WANT: this host fragments to the path MTU, as IPv6 routers do not fragment.
        (Family::V6, false) => option::set_int(
            socket,
            libc::SOL_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_WANT,
        ),
    }
}

/// Makes one receive return several datagrams of the same length (`UDP_GRO`, Linux 5.0).
///
/// # Errors
/// ENOPROTOOPT: the kernel does not support `UDP_GRO`.
pub fn coalesce(socket: impl AsFd) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Returns the number of datagrams that the kernel has dropped because the socket's receive buffer was full
/// (`SO_MEMINFO`, Linux 4.12).
///
/// # Errors
/// ENOTSOCK; ENOPROTOOPT: the kernel is older than Linux 4.12.
pub fn dropped(socket: impl AsFd) -> Result<u32, Errno> {
    // `SK_MEMINFO_DROPS` is the ninth of `SK_MEMINFO_*` (linux/sock_diag.h).
    let mut answer = [0; 36];
    option::get(socket, libc::SOL_SOCKET, SO_MEMINFO, &mut answer)?;
    array(&answer, 32).map(u32::from_ne_bytes).ok_or(Errno::IO)
}

const SO_MEMINFO: i32 = 55;

/// Returns true for each of `UDP_SEGMENT` and `UDP_GRO`, in this order, that the kernel supports.
///
/// # Errors
/// Errors of socket(2): no free descriptor or memory.
pub fn offloads() -> Result<(bool, bool), Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(Family::V4.domain(), SocketType::DGRAM, flags, None)?;
    // Both options are set to their default: to enable UDP_GRO, the kernel may have to patch its own code on all CPUs, which
    // was a sixth of the start of a network (Linux 6.18, 2 CPUs, 2026-11-24).
    let supports = |name| option::set_int(&socket, libc::SOL_UDP, name, 0).is_ok();
    Ok((supports(libc::UDP_SEGMENT), supports(libc::UDP_GRO)))
}

#[cfg(test)]
mod tests;
