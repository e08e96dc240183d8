//! Permitted system calls of aarch64 only: none, as the architecture lacks the older calls that have successors, such
//! as epoll_wait(2).

use super::PermittedCall;

pub(super) const ALLOWED: &[PermittedCall] = &[];
