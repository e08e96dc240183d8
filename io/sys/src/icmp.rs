//! Ping sockets (icmp(7), `ping_group_range` in ip(7)) and filters of raw ICMP sockets.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, ipproto, socket_with};

use crate::address::Family;
use crate::option;

/// `ICMP_FILTER` at level `SOL_RAW` (linux/icmp.h).
const ICMP_FILTER: i32 = 1;
/// `ICMPV6_FILTER` at level `SOL_ICMPV6` (linux/icmpv6.h).
const ICMPV6_FILTER: i32 = 1;
const SOL_RAW: i32 = 255;

/// Opens a ping socket. The kernel chooses the identifier of its echo requests, computes checksums, and delivers only
/// replies with that identifier.
///
/// # Errors
/// EACCES: no group of the process is in `net.ipv4.ping_group_range`.
pub fn open_ping(family: Family) -> Result<OwnedFd, Errno> {
    let protocol = match family {
        Family::V4 => ipproto::ICMP,
        Family::V6 => ipproto::ICMPV6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family.domain(), SocketType::DGRAM, flags, Some(protocol))
}

/// Makes a raw ICMP or ICMPv6 socket receive echo replies only. Messages in its error queue are not filtered.
///
/// # Errors
/// Errors of setsockopt(2), for example ENOPROTOOPT for a socket that is not a raw ICMP socket of `family`.
pub fn only_echo_replies(socket: impl AsFd, family: Family) -> Result<(), Errno> {
    match family {
        // One bit for each of the types 0 to 31; a set bit drops the type. Echo reply is type 0.
        Family::V4 => option::set(socket, SOL_RAW, ICMP_FILTER, &(!1_u32).to_ne_bytes()),
        // One bit for each type, in eight words. Echo reply is type 129: word 4, bit 1.
        Family::V6 => {
            let mut words = [u32::MAX; 8];
            words[4] = !2;
            let mut bytes = [0; 32];
            for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            option::set(socket, libc::SOL_ICMPV6, ICMPV6_FILTER, &bytes)
        }
    }
}
