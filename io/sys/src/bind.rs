//! Socket options for the interface and source port of a socket (socket(7), ip(7)).

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::option;

/// Binds a socket to an interface (`SO_BINDTODEVICE`; without privilege since Linux 5.7).
///
/// # Errors
/// ENODEV: the interface does not exist.
pub fn to_device(socket: impl AsFd, name: &str) -> Result<(), Errno> {
    option::set(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_bytes())
}

/// Binds a socket to the interface with the index `index` (`SO_BINDTOIFINDEX`, Linux 5.0; without privilege since Linux
/// 5.7).
///
/// # Errors
/// ENODEV: the interface does not exist; EPERM: the socket is bound to an interface already, and the caller lacks CAP_NET_RAW.
pub fn to_interface(socket: impl AsFd, index: NonZeroU32) -> Result<(), Errno> {
    option::set_int(
        socket,
        libc::SOL_SOCKET,
        libc::SO_BINDTOIFINDEX,
        index.get().cast_signed(),
    )
}

/// Makes bind(2) with port 0 bind only the address of the socket (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2; for IPv6
/// sockets, too). The source port is chosen by connect(2), so one port can serve connections to different destinations.
///
/// # Errors
/// Errors of setsockopt(2), for example ENOPROTOOPT for a socket that is not an IP socket.
pub fn without_port(socket: impl AsFd) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Limits the source ports from which the kernel chooses, at connect(2) or at bind(2) with port 0, to the intersection
/// of `ports` and the ephemeral range (`IP_LOCAL_PORT_RANGE`, Linux 6.3; for IPv6 sockets too).
///
/// # Errors
/// ENOPROTOOPT: the kernel is older than Linux 6.3.
pub fn limit_ports(socket: impl AsFd, ports: &RangeInclusive<u16>) -> Result<(), Errno> {
    let value = u32::from(*ports.start()) | u32::from(*ports.end()) << 16;
    option::set_int(socket, libc::SOL_IP, IP_LOCAL_PORT_RANGE, value.cast_signed())
}

/// Socket option of level `SOL_IP` (`include/uapi/linux/in.h`).
pub const IP_LOCAL_PORT_RANGE: i32 = 51;
