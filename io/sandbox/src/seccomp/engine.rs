//! Additional system calls of the engine: it opens its own sockets, and its workers are threads.

use libc::*;

use super::{Entry, Only, WHOLE, call, only};

pub(super) const ALLOWED: &[Entry] = &[
    // Descriptors.
    call(
        SYS_read,
        "tap: frames; mesh: a worker's doorbell; vhost-net: whether it has failed",
    ),
    call(SYS_writev, "tap: frames in parts"),
    call(SYS_pwrite64, "capture: its file"),
    call(SYS_lseek, "capture: where what is whole of its file ends"),
    only(
        SYS_fcntl,
        &[Only {
            argument: 1,
            mask: WHOLE,
            values: &[F_GETFD as u32, F_DUPFD_CLOEXEC as u32],
        }],
        "links over sockets: a second registration of a guest's; standard library, built with assertions: what is closed \
         is open",
    ),
    only(
        SYS_ioctl,
        &[Only {
            argument: 1,
            mask: WHOLE,
            values: &[FIONBIO as u32],
        }],
        "vhost-user: what signals a guest is not to block",
    ),
    call(SYS_fstat, "vhost-user: how long a file of the guest's memory is"),
    // Sockets.
    only(
        SYS_socket,
        &[
            Only {
                argument: 0,
                mask: WHOLE,
                values: &[AF_INET as u32, AF_INET6 as u32],
            },
            Only {
                argument: 1,
                // Without the flags.
                mask: 0xf,
                values: &[SOCK_STREAM as u32, SOCK_DGRAM as u32],
            },
            Only {
                argument: 2,
                mask: WHOLE,
                values: &[0, IPPROTO_ICMP as u32, IPPROTO_ICMPV6 as u32],
            },
        ],
        "sockets: a flow's, TCP, UDP or echo",
    ),
    call(SYS_bind, "sockets: an explicit port; --outbound"),
    call(SYS_connect, "sockets: TCP; UDP with one peer"),
    call(
        SYS_accept4,
        "published TCP ports: a client; links over sockets: a guest",
    ),
    call(SYS_shutdown, "TCP: half-close"),
    call(SYS_getpeername, "TCP: whether a connect came to something"),
    call(
        SYS_getsockname,
        "TCP: whether a connect has reached the host itself",
    ),
    call(
        SYS_recvmmsg,
        "UDP: several datagrams; packet link: several frames",
    ),
    call(SYS_sendmmsg, "packet link: several frames"),
    call(
        SYS_ppoll,
        "links: whether the guest has hung up, or has frames that had to wait",
    ),
    // Threads, of which every worker but the first is one.
    only(
        SYS_clone,
        &[Only {
            argument: 0,
            // In none of the namespaces' bits: a thread, and nothing more.
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
        "threads: start of one",
    ),
    call(SYS_set_robust_list, "threads: start of one"),
    call(SYS_rseq, "threads: start of one"),
    only(
        SYS_prctl,
        &[Only {
            argument: 0,
            mask: WHOLE,
            values: &[PR_SET_NAME as u32, PR_SET_VMA as u32],
        }],
        "threads: their names; allocator: names of its memory",
    ),
    call(SYS_sched_getaffinity, "allocator: how many arenas"),
    call(SYS_sched_yield, "mesh: another worker is about to finish"),
];
