//! What every architecture has.

use libc::*;

use super::{Entry, Only, call, only};

/// All bits of an argument.
const WHOLE: u32 = u32::MAX;

/// Memory that code runs in is not made after the start.
const NOT_EXECUTABLE: Only = Only {
    argument: 2,
    mask: PROT_EXEC as u32,
    values: &[0],
};

/// SIGCANCEL and SIGSETXID.
const GLIBCS_SIGNALS: [u32; 2] = [32, 33];

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
    call(SYS_read, "tap: frames; mesh: a worker's doorbell"),
    call(SYS_write, "tap: frames; mesh: a worker's doorbell; log"),
    call(SYS_writev, "tap: frames in parts"),
    call(SYS_close, "sockets: end of a flow"),
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
        SYS_getsockopt,
        "sockets: pending errors; room in the send buffer; packet link: the type",
    ),
    call(SYS_setsockopt, "sockets: options of a new flow"),
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
    call(
        SYS_recvmmsg,
        "UDP: several datagrams; packet link: several frames",
    ),
    call(SYS_sendmmsg, "packet link: several frames"),
    call(SYS_ppoll, "links over sockets: whether the guest has hung up"),
    // Memory.
    call(SYS_brk, "allocator"),
    only(SYS_mmap, &[NOT_EXECUTABLE], "allocator; stacks of threads"),
    only(
        SYS_mprotect,
        &[NOT_EXECUTABLE],
        "allocator; guard pages of stacks",
    ),
    call(SYS_mremap, "allocator: a large table grows"),
    call(SYS_munmap, "allocator; stacks of threads"),
    call(SYS_madvise, "allocator: gives memory back"),
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
    call(SYS_futex, "threads: locks, and waiting for the end of one"),
    call(SYS_set_robust_list, "threads: start of one"),
    call(SYS_rseq, "threads: start of one"),
    call(SYS_sigaltstack, "threads: the stack for an overflow of theirs"),
    only(
        SYS_rt_sigaction,
        &[Only {
            argument: 0,
            mask: WHOLE,
            values: &GLIBCS_SIGNALS,
        }],
        "threads: glibc's own signals, at the start of the first one",
    ),
    call(SYS_rt_sigprocmask, "threads: start of one"),
    call(SYS_rt_sigreturn, "signals: the end of a handler, of SIGSYS too"),
    only(
        SYS_prctl,
        &[Only {
            argument: 0,
            mask: WHOLE,
            values: &[PR_SET_NAME as u32, PR_SET_VMA as u32],
        }],
        "threads: their names; allocator: names of its memory",
    ),
    call(SYS_gettid, "threads: the standard library's name of one"),
    call(SYS_sched_getaffinity, "allocator: how many arenas"),
    call(SYS_sched_yield, "mesh: another worker is about to finish"),
    call(SYS_getrandom, "ports and sequence numbers; keys of hashes"),
    call(SYS_exit, "threads: end of one"),
    call(SYS_exit_group, "end of the process"),
];
