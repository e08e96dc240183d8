//! Permitted system calls of the engine only: it opens sockets of its own, and its workers are threads.

use libc::*;

use super::{ArgumentCondition, INTERNET, PermittedCall, SOCKET_TYPE, WHOLE, call, only};

pub(super) const ALLOWED: &[PermittedCall] = &[
    // Descriptors other than sockets.
    call(
        SYS_read,
        "tap: receives frames; mesh: resets a worker's doorbell (eventfd); vhost-net: checks for a failure (eventfd)",
    ),
    call(
        SYS_writev,
        "tap: sends a frame whose header and payload are in separate buffers",
    ),
    call(SYS_pwrite64, "capture: its file"),
    call(
        SYS_lseek,
        "capture: finds the end of the last complete record in its file",
    ),
    only(
        SYS_fcntl,
        &[ArgumentCondition {
            argument: 1,
            mask: WHOLE,
            values: &[
                F_GETFD as u32,
                F_DUPFD_CLOEXEC as u32,
                F_GETFL as u32,
                F_SETPIPE_SZ as u32,
            ],
        }],
        "links over sockets: a second registration of a guest's; standard library, built with assertions: what is closed \
         is open; sockets of the guest's namespace: checks that they are non-blocking; clients on this host: the size of a pipe",
    ),
    only(
        SYS_ioctl,
        &[ArgumentCondition {
            argument: 1,
            mask: WHOLE,
            values: &[FIONBIO as u32],
        }],
        "vhost-user: what signals a guest is not to block",
    ),
    call(
        SYS_fstat,
        "vhost-user: reads the length of a file with the guest's memory",
    ),
    // Host sockets.
    only(
        SYS_socket,
        &[
            INTERNET,
            ArgumentCondition {
                argument: 1,
                mask: SOCKET_TYPE,
                values: &[SOCK_STREAM as u32, SOCK_DGRAM as u32],
            },
            ArgumentCondition {
                argument: 2,
                mask: WHOLE,
                values: &[0, IPPROTO_ICMP as u32, IPPROTO_ICMPV6 as u32],
            },
        ],
        "sockets: opens the TCP, UDP or ping socket of a flow",
    ),
    call(
        SYS_bind,
        "sockets: binds to an ephemeral port or to the address of --outbound",
    ),
    call(SYS_connect, "sockets: connects TCP, and UDP with one peer"),
    call(
        SYS_accept4,
        "published TCP ports: accepts a client; links over sockets: accepts a guest",
    ),
    call(SYS_shutdown, "TCP: half-close"),
    call(
        SYS_pipe2,
        "clients on this host: a pipe for data between two sockets",
    ),
    call(
        SYS_splice,
        "clients on this host: moves data between a socket and a pipe; it works with any two of the process's descriptors, \
         one of them a pipe, and gives access to no others",
    ),
    call(SYS_getpeername, "TCP: checks whether a connect has succeeded"),
    call(
        SYS_getsockname,
        "TCP: checks whether the connection leads to the host itself",
    ),
    call(
        SYS_recvmmsg,
        "UDP: receives several datagrams; packet link: receives several frames",
    ),
    call(SYS_sendmmsg, "packet link: sends several frames"),
    call(
        SYS_ppoll,
        "links: checks whether the guest has disconnected or has sent more frames",
    ),
    // Threads: every worker but the first is started as one.
    only(
        SYS_clone,
        &[ArgumentCondition {
            argument: 0,
            // CLONE_THREAD must be set, and none of the namespace flags: the call can only start a thread.
            mask: (CLONE_THREAD
                | CLONE_NEWUSER
                | CLONE_NEWNS
                | CLONE_NEWPID
                | CLONE_NEWNET
                | CLONE_NEWIPC
                | CLONE_NEWUTS
                | CLONE_NEWCGROUP) as u32,
            values: &[CLONE_THREAD as u32],
        }],
        "threads: starts a thread",
    ),
    call(
        SYS_set_robust_list,
        "threads: the C library at the start of a thread",
    ),
    call(SYS_rseq, "threads: the C library at the start of a thread"),
    only(
        SYS_prctl,
        &[ArgumentCondition {
            argument: 0,
            mask: WHOLE,
            values: &[PR_SET_NAME as u32, PR_SET_VMA as u32],
        }],
        "threads: sets their names; allocator: names its memory mappings",
    ),
    call(
        SYS_sched_getaffinity,
        "allocator: determines the number of arenas",
    ),
    call(
        SYS_sched_yield,
        "mesh: waits for another worker that is about to finish writing",
    ),
];
