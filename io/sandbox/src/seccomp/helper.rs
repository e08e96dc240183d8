//! Permitted system calls of the process that opens sockets in the guest's network namespace. It has no capability, and neither
//! connects nor sends on the sockets.

use libc::*;

use super::{ArgumentCondition, INTERNET, NOT_EXECUTABLE, PermittedCall, SOCKET_TYPE, WHOLE, call, only};

pub(super) const ALLOWED: &[PermittedCall] = &[
    // Work.
    call(SYS_ppoll, "requests: waits"),
    call(SYS_recvmsg, "requests: receives one"),
    call(SYS_sendmsg, "replies: sends sockets to the engine"),
    only(
        SYS_socket,
        &[
            INTERNET,
            ArgumentCondition {
                argument: 1,
                mask: SOCKET_TYPE,
                values: &[SOCK_STREAM as u32],
            },
            ArgumentCondition {
                argument: 2,
                mask: WHOLE,
                values: &[0],
            },
        ],
        "sockets: opens one",
    ),
    call(SYS_setsockopt, "sockets: sets the options in `options.rs`"),
    call(SYS_close, "sockets: closes its own copy"),
    // Memory, and calls of the standard library, the C library and the kernel.
    call(SYS_brk, "allocator: extends the heap"),
    only(SYS_mmap, &[NOT_EXECUTABLE], "allocator"),
    call(SYS_munmap, "allocator; standard library: frees the signal stack"),
    call(SYS_write, "standard library: the message of a panic"),
    call(
        SYS_sigaltstack,
        "standard library: removes the signal stack at the end",
    ),
    call(
        SYS_restart_syscall,
        "kernel: continues an interrupted wait after SIGCONT",
    ),
    call(
        SYS_rt_sigreturn,
        "signals: returns from a handler, also that of SIGSYS",
    ),
    call(SYS_futex, "standard library: locks"),
    call(SYS_exit_group, "process: ends it"),
];
