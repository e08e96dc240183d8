//! Permitted system calls of a relay worker only. It opens no socket, because its supervisor passes all descriptors.

use libc::*;

use super::{ArgumentCondition, PermittedCall, WHOLE, call, only};

pub(super) const ALLOWED: &[PermittedCall] = &[
    call(
        SYS_clock_nanosleep,
        "batch timer: a datagram waits for others of its batch (--max-delay)",
    ),
    #[cfg(target_arch = "x86_64")]
    call(SYS_poll, "loop: waits"),
    call(SYS_ppoll, "loop: waits"),
    only(
        SYS_fcntl,
        &[ArgumentCondition {
            argument: 1,
            mask: WHOLE,
            values: &[F_GETFD as u32],
        }],
        "standard library built with assertions: checks that a descriptor to be closed is open",
    ),
];
