//! Datagram sockets: segmentation, coalescing, and ancillary data (udp(7), ip(7), ipv6(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, socket_with};

use crate::address::{Family, array};
use crate::{cmsg, option};

/// Bytes of the control messages of a receive, with room to spare.
pub const CONTROL: usize = 256;

/// Control messages of one send: a segment size and a source address.
pub type SendControl = cmsg::Encoder<{ cmsg::space(2) + cmsg::space(20) }>;

/// Ancillary data of a received datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ancillary {
    /// Bytes of each of several coalesced datagrams but the last (`UDP_GRO`).
    pub stride: Option<usize>,
    /// TTL or hop limit.
    pub hop_limit: Option<u8>,
    /// TOS or traffic class.
    pub traffic_class: Option<u8>,
    /// Local address that it was received on.
    pub to: Option<IpAddr>,
    /// Destination address in its header: the local address or a group.
    pub destination: Option<IpAddr>,
    /// Time of arrival, since 1970 (`SO_TIMESTAMPNS`).
    pub at: Option<Duration>,
}

impl Ancillary {
    /// Decodes control messages.
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
                // A byte, unlike the others.
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
                    // A group is not a local address.
                    beside.to = destination.filter(|to| !to.is_multicast()).map(Into::into);
                    beside.destination = destination.map(Into::into);
                }
                _ => {}
            }
        }
        beside
    }
}

/// Makes one send several datagrams of `size` bytes (`UDP_SEGMENT`, Linux 4.18).
pub fn push_segment(control: &mut SendControl, size: u16) {
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
}

/// Makes every send several datagrams of `size` bytes (`UDP_SEGMENT`, Linux 4.18).
///
/// # Errors
/// ENOPROTOOPT: this kernel does not support it.
pub fn set_segment(socket: impl AsFd, size: u16) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, size.into())
}

/// Sets the source address of a send on a socket that is bound to a wildcard.
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

/// Enables the error queue, and the TTL and TOS (hop limit and traffic class) of received datagrams.
///
/// # Errors
/// Not a datagram or raw socket of that family.
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

/// Enables the destination address of received datagrams.
///
/// # Errors
/// Not a socket of that family.
pub fn enable_pktinfo(socket: impl AsFd, family: Family) -> Result<(), Errno> {
    match family {
        Family::V4 => option::set_int(socket, libc::SOL_IP, libc::IP_PKTINFO, 1),
        Family::V6 => option::set_int(socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1),
    }
}

/// Enables the time of arrival of received datagrams.
///
/// # Errors
/// Not a socket.
pub fn enable_timestamps(socket: impl AsFd) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Sets TTL or hop limit of sent datagrams. 0 cannot be sent and is refused.
///
/// # Errors
/// EINVAL.
pub fn set_hop_limit(socket: impl AsFd, family: Family, value: u8) -> Result<(), Errno> {
    match family {
        Family::V4 => option::set_int(socket, libc::SOL_IP, libc::IP_TTL, value.into()),
        Family::V6 if value == 0 => Err(Errno::INVAL),
        Family::V6 => option::set_int(socket, libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS, value.into()),
    }
}

/// Sets DSCP and ECN of sent datagrams.
///
/// # Errors
/// Not a socket of that family.
pub fn set_traffic_class(socket: impl AsFd, family: Family, value: u8) -> Result<(), Errno> {
    match family {
        Family::V4 => option::set_int(socket, libc::SOL_IP, libc::IP_TOS, value.into()),
        Family::V6 => option::set_int(socket, libc::SOL_IPV6, libc::IPV6_TCLASS, value.into()),
    }
}

/// Sets whether the host may fragment sent datagrams. If it may not, a datagram larger than the path's known MTU is refused
/// with EMSGSIZE, and the MTU is in the error queue.
///
/// # Errors
/// Not a socket of that family.
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
        // WANT: the sender fragments to the path MTU, as IPv6 routers do not.
        (Family::V6, false) => option::set_int(
            socket,
            libc::SOL_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_WANT,
        ),
    }
}

/// Makes one receive return several datagrams of one size (`UDP_GRO`, Linux 5.0).
///
/// # Errors
/// ENOPROTOOPT: this kernel does not support it.
pub fn coalesce(socket: impl AsFd) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Returns the datagrams that the socket has dropped because its buffer was full (`SO_MEMINFO`, Linux 4.12).
///
/// # Errors
/// Not a socket, or a kernel before this.
pub fn dropped(socket: impl AsFd) -> Result<u32, Errno> {
    // `SK_MEMINFO_DROPS` is the ninth of `SK_MEMINFO_*` (linux/sock_diag.h).
    let mut answer = [0; 36];
    option::get(socket, libc::SOL_SOCKET, SO_MEMINFO, &mut answer)?;
    array(&answer, 32).map(u32::from_ne_bytes).ok_or(Errno::IO)
}

const SO_MEMINFO: i32 = 55;

/// Returns whether this kernel has `UDP_SEGMENT` and `UDP_GRO`, in this order.
///
/// # Errors
/// Out of descriptors or memory.
pub fn offloads() -> Result<(bool, bool), Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(Family::V4.domain(), SocketType::DGRAM, flags, None)?;
    let gso = option::set_int(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
    Ok((gso, coalesce(&socket).is_ok()))
}

#[cfg(test)]
mod tests;
