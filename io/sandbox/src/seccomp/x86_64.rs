//! Permitted system calls of x86-64 only: older calls that have successors.

use libc::SYS_epoll_wait;

use super::{PermittedCall, call};

pub(super) const ALLOWED: &[PermittedCall] = &[call(SYS_epoll_wait, "loop: waits")];
