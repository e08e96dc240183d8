//! What a relay's worker needs beside: every socket and every ring is given to it.

use libc::*;

use super::{Entry, Only, WHOLE, call, only};

pub(super) const ALLOWED: &[Entry] = &[
    call(
        SYS_clock_nanosleep,
        "batch clock: a datagram waits for others (--max-delay)",
    ),
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
