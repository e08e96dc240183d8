//! System calls of every process that forwards packets.

use libc::*;

use super::{Entry, NOT_EXECUTABLE, Only, WHOLE, call, only};

/// Signals whose actions may be set: those of faults and of abort(3), then glibc's SIGCANCEL and SIGSETXID.
const SETTABLE_SIGNALS: [u32; 7] = [
    SIGILL as u32,
    SIGABRT as u32,
    SIGBUS as u32,
    SIGFPE as u32,
    SIGSEGV as u32,
    32,
    33,
];

pub(super) const ALLOWED: &[Entry] = &[
    // The loop.
    call(
        SYS_epoll_ctl,
        "loop: registers each socket once, when it is opened",
    ),
    call(SYS_epoll_pwait, "loop: waits"),
    call(SYS_epoll_pwait2, "loop: waits, to the nanosecond"),
    call(SYS_restart_syscall, "kernel: goes on waiting after SIGCONT"),
    call(SYS_clock_gettime, "loop: the time, where the vDSO has no clock"),
    // Descriptors.
    call(
        SYS_write,
        "log; tap: frames; mesh: a worker's doorbell; vhost-net: the kernel's",
    ),
    call(SYS_close, "sockets: end of a flow, or of an output"),
    // Sockets.
    call(
        SYS_getsockopt,
        "sockets: pending errors; room in the send buffer; packet link: the type",
    ),
    call(SYS_setsockopt, "sockets: those options that may be set"),
    call(
        SYS_recvfrom,
        "TCP: discards what the guest has acknowledged; stream link: frames",
    ),
    call(
        SYS_sendmsg,
        "sockets: gathered payload; stream link: frames; supervisor's channel",
    ),
    call(
        SYS_recvmsg,
        "sockets: peeked data; error queue; supervisor's channel",
    ),
    // Memory.
    call(SYS_brk, "allocator"),
    only(
        SYS_mmap,
        &[NOT_EXECUTABLE],
        "allocator; stacks of threads; relay: a ring's memory",
    ),
    only(
        SYS_mprotect,
        &[NOT_EXECUTABLE],
        "allocator; guard pages of stacks",
    ),
    call(SYS_mremap, "allocator: a large table grows"),
    call(
        SYS_munmap,
        "allocator; stacks of threads; relay: a ring that goes; vhost-net: one that has failed",
    ),
    call(SYS_madvise, "allocator: gives memory back"),
    // The standard library's and the kernel's own.
    call(SYS_futex, "threads: locks, and waiting for the end of one"),
    call(SYS_sigaltstack, "threads: the stack for an overflow of theirs"),
    call(SYS_rt_sigprocmask, "threads: start of one"),
    call(SYS_rt_sigreturn, "signals: the end of a handler, of SIGSYS too"),
    // Without it, a process that faults or aborts would not end: the standard library's handler sets the default action and
    // returns, and abort(3) does the same before its last instruction, which faults.
    only(
        SYS_rt_sigaction,
        &[Only {
            argument: 0,
            mask: WHOLE,
            values: &SETTABLE_SIGNALS,
        }],
        "faults, abort: the default action, which ends the process; threads: glibc's own signals",
    ),
    call(SYS_gettid, "threads: the standard library's name of one"),
    call(SYS_getrandom, "ports and sequence numbers; keys of hashes"),
    call(SYS_exit, "threads: end of one"),
    call(SYS_exit_group, "end of the process"),
];
