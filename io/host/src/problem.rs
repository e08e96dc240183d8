//! ICMP errors in the error queue of a host socket, as the engine's [`Problem`].

use std::os::fd::AsFd;

use pontoon_engine::host::Problem;
use pontoon_sys::errqueue::{self, ErrorOrigin, ErrorQueueEntry};
use rustix::io::Errno;

/// Removes entries from the error queue up to the next ICMP error, and returns that one. The bytes of the datagram that
/// caused it are written to `into`.
pub(super) fn next(socket: impl AsFd, into: &mut [u8]) -> Option<Problem> {
    loop {
        let entry = errqueue::next(&socket, into).ok()?;
        if let Some(problem) = problem(&entry) {
            return Some(problem);
        }
    }
}

/// Returns the entry as an ICMP error; `None` for an error of another kind.
fn problem(entry: &ErrorQueueEntry) -> Option<Problem> {
    let destination = entry.destination?;
    let (kind, code) = match entry.origin {
        ErrorOrigin::Icmp { kind, code } => (kind, code),
        ErrorOrigin::Local => local(entry.errno, destination.is_ipv4())?,
    };
    Some(Problem {
        destination,
        offender: entry.offender.filter(|_| entry.origin != ErrorOrigin::Local),
        kind,
        code,
        mtu: (entry.errno == Errno::MSGSIZE).then_some(entry.info),
        payload_len: entry.len,
    })
}

/// Returns the ICMP type and code (RFC 792, RFC 4443) that correspond to an error of the host's own stack.
fn local(errno: Errno, v4: bool) -> Option<(u8, u8)> {
    let (in_v4, in_v6) = match errno {
        Errno::MSGSIZE => ((3, 4), (2, 0)),
        Errno::NETUNREACH | Errno::NETDOWN => ((3, 0), (1, 0)),
        Errno::HOSTUNREACH | Errno::HOSTDOWN => ((3, 1), (1, 3)),
        Errno::ACCESS | Errno::PERM => ((3, 13), (1, 1)),
        Errno::CONNREFUSED => ((3, 3), (1, 4)),
        _ => return None,
    };
    Some(if v4 { in_v4 } else { in_v6 })
}
