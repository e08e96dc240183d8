//! Conversion of an errno of a host socket into a [`Failure`] of the engine.

use pontoon_engine::Failure;
use rustix::io::Errno;

/// Returns the engine's failure for `errno`.
pub(super) fn failure(errno: Errno) -> Failure {
    match errno {
        Errno::AGAIN | Errno::INTR | Errno::INPROGRESS | Errno::ALREADY => Failure::WouldBlock,
        Errno::CONNREFUSED => Failure::Refused,
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => Failure::Reset,
        Errno::TIMEDOUT => Failure::TimedOut,
        Errno::NETUNREACH | Errno::NETDOWN | Errno::ADDRNOTAVAIL => Failure::NetUnreachable,
        Errno::HOSTUNREACH | Errno::HOSTDOWN => Failure::HostUnreachable,
        Errno::ACCESS | Errno::PERM => Failure::Prohibited,
        Errno::MSGSIZE => Failure::TooBig,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => Failure::Exhausted,
        Errno::ADDRINUSE => Failure::InUse,
        Errno::INVAL | Errno::IO => Failure::Invalid,
        other => Failure::Other(other.raw_os_error()),
    }
}
