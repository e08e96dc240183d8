//! Permitted system calls of every sandboxed process, the engine and the relay's workers.

use libc::*;

use super::{ArgumentCondition, NOT_EXECUTABLE, PermittedCall, WHOLE, call, only};

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

pub(super) const ALLOWED: &[PermittedCall] = &[
    // Event loop of a worker.
    call(
        SYS_epoll_ctl,
        "event loop: registers each socket once, when it is opened",
    ),
    call(SYS_epoll_pwait, "loop: waits"),
    call(
        SYS_epoll_pwait2,
        "event loop: waits for events, with a timeout in nanoseconds",
    ),
    call(
        SYS_restart_syscall,
        "kernel: continues an interrupted wait after SIGCONT",
    ),
    call(
        SYS_clock_gettime,
        "event loop: reads the clock if the vDSO cannot",
    ),
    // Descriptors other than sockets.
    call(
        SYS_write,
        "log; tap: sends frames; mesh: wakes a worker (eventfd); events: notifies the supervisor (eventfd); vhost-net: notifies the kernel (eventfd)",
    ),
    call(
        SYS_close,
        "sockets: closes the socket of a flow or of a relay's output",
    ),
    // Host sockets.
    call(
        SYS_getsockopt,
        "sockets: reads pending errors and the room in the send buffer; packet link: reads the socket type",
    ),
    call(SYS_setsockopt, "sockets: sets the options in `options.rs`"),
    call(
        SYS_recvfrom,
        "TCP: discards data that the guest has acknowledged; stream link: receives frames",
    ),
    call(
        SYS_sendmsg,
        "sockets: sends payload; stream link: sends frames; supervisor's channel: sends messages",
    ),
    call(
        SYS_recvmsg,
        "sockets: peeks data, reads the error queue; supervisor's channel: receives messages",
    ),
    // Memory.
    call(SYS_brk, "allocator: extends the heap"),
    only(
        SYS_mmap,
        &[NOT_EXECUTABLE],
        "allocator; stacks of threads; relay: maps packet rings",
    ),
    only(
        SYS_mprotect,
        &[NOT_EXECUTABLE],
        "allocator; guard pages of thread stacks",
    ),
    call(SYS_mremap, "allocator: grows a large allocation"),
    call(
        SYS_munmap,
        "allocator; stacks of threads; relay: unmaps a removed packet ring; vhost-net: unmaps the memory of a failed device",
    ),
    call(SYS_madvise, "allocator: returns memory to the kernel"),
    // Calls of the standard library, the C library and the kernel.
    call(SYS_futex, "threads: locks, and waits for the end of a thread"),
    call(
        SYS_sigaltstack,
        "threads: sets the signal stack on which a stack overflow is handled",
    ),
    call(
        SYS_rt_sigprocmask,
        "threads: blocks signals while a thread starts",
    ),
    call(
        SYS_rt_sigreturn,
        "signals: returns from a handler, also that of SIGSYS",
    ),
    // Without it, a process that faults or aborts would not end: the standard library's handler sets the default action and
    // returns, and abort(3) does the same before its last instruction, which faults.
    only(
        SYS_rt_sigaction,
        &[ArgumentCondition {
            argument: 0,
            mask: WHOLE,
            values: &SETTABLE_SIGNALS,
        }],
        "faults, abort: the default action, which ends the process; threads: glibc's own signals",
    ),
    call(
        SYS_gettid,
        "threads: the standard library identifies the thread in messages",
    ),
    call(
        SYS_getrandom,
        "random numbers: ports, sequence numbers, keys of hashes",
    ),
    call(SYS_exit, "threads: ends a thread"),
    call(SYS_exit_group, "process: ends it"),
];
