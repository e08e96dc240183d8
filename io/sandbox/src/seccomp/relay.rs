//! System calls that a relay worker needs beside the common ones. It opens no socket, as the supervisor passes it all.

use libc::*;

use super::{Entry, Only, WHOLE, call, only};

pub(super) const ALLOWED: &[Entry] = &[
    call(
        SYS_clock_nanosleep,
        "batch clock: a datagram waits for others (--max-delay)",
    ),
    #[cfg(target_arch = "x86_64")]
    call(SYS_poll, "loop: waits"),
    call(SYS_ppoll, "loop: waits"),
    only(
        SYS_fcntl,
        &[Only {
            argument: 1,
            mask: WHOLE,
            values: &[F_GETFD as u32],
        }],
        "standard library, built with assertions: what is closed is open",
    ),
];
