//! What x86-64 has beside: calls of the time before their successors.

use libc::SYS_epoll_wait;

use super::{Entry, call};

pub(super) const ALLOWED: &[Entry] = &[call(SYS_epoll_wait, "loop: waits")];
