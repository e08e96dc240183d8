//! Permitted system calls of x86-64 only: older calls that have successors.

use libc::SYS_epoll_wait;

use super::{Entry, call};

pub(super) const ALLOWED: &[Entry] = &[call(SYS_epoll_wait, "loop: waits")];
