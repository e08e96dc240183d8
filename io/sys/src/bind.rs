//! Socket options for the interface and source port of a socket (socket(7), ip(7)).

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

/// Makes bind(2) with port 0 choose only the address. The port is chosen by connect(2), so one port serves any number of
/// destinations (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2; for IPv6 sockets, too).
///
/// # Errors
/// Not an IP socket.
pub fn without_port(socket: impl AsFd) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Limits the ports that the kernel chooses from, at a connect or a bind to port 0, to those of `ports` within the
/// ephemeral range (`IP_LOCAL_PORT_RANGE`, Linux 6.3; for IPv6 sockets too).
///
/// # Errors
/// ENOPROTOOPT: not on this kernel.
pub fn limit_ports(socket: impl AsFd, ports: &RangeInclusive<u16>) -> Result<(), Errno> {
    let value = u32::from(*ports.start()) | u32::from(*ports.end()) << 16;
    option::set_int(socket, libc::SOL_IP, IP_LOCAL_PORT_RANGE, value.cast_signed())
}

/// `include/uapi/linux/in.h`.
pub const IP_LOCAL_PORT_RANGE: i32 = 51;
