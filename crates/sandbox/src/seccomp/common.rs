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
    call(SYS_ppoll, "mesh: a worker's doorbell; control channel"),
    call(SYS_restart_syscall, "kernel: goes on waiting after SIGCONT"),
    call(SYS_clock_gettime, "loop: the time, where the vDSO has no clock"),
    call(SYS_clock_nanosleep, "threads: sleep"),
    // Frames and files that were handed over.
    call(SYS_read, "tap: frames; eventfd"),
    call(SYS_readv, "tap: frames"),
    call(SYS_write, "tap: frames; log; eventfd; capture"),
    call(SYS_writev, "tap: frames; log"),
    call(SYS_close, "sockets: end of a flow"),
    // Sockets.
    only(
        SYS_socket,
        Only {
            argument: 0,
            mask: WHOLE,
            values: &[AF_INET as u32, AF_INET6 as u32],
        },
        "sockets: a flow's, over IPv4 and IPv6 only",
    ),
    call(SYS_bind, "sockets: an explicit port; --outbound"),
    call(SYS_connect, "sockets: TCP; UDP with one peer"),
    call(SYS_accept4, "published TCP ports"),
    call(SYS_shutdown, "TCP: half-close"),
    call(SYS_getsockname, "sockets: the port that the kernel chose"),
    call(SYS_getpeername, "sockets: who connected"),
    call(SYS_getsockopt, "sockets: SO_ERROR, TCP_INFO"),
    call(SYS_setsockopt, "sockets: options of a new flow"),
    call(SYS_sendto, "sockets: one part"),
    call(SYS_recvfrom, "TCP: discards what the guest has acknowledged"),
    call(SYS_sendmsg, "sockets: gathered payload; supervisor's channel"),
    call(
        SYS_recvmsg,
        "sockets: peeked data; error queue; supervisor's channel",
    ),
    call(SYS_sendmmsg, "UDP: several datagrams"),
    call(SYS_recvmmsg, "UDP: several datagrams"),
    only(
        SYS_ioctl,
        Only {
            argument: 1,
            mask: WHOLE,
            values: &[FIONBIO as u32, FIONREAD as u32, TIOCOUTQ as u32],
        },
        "sockets: non-blocking; bytes in either queue",
    ),
    only(
        SYS_fcntl,
        Only {
            argument: 1,
            mask: WHOLE,
            values: &[
                F_GETFL as u32,
                F_SETFL as u32,
                F_GETFD as u32,
                F_DUPFD_CLOEXEC as u32,
            ],
        },
        "descriptors: non-blocking; a second one for the same",
    ),
    // Memory.
    call(SYS_brk, "allocator"),
    only(SYS_mmap, NOT_EXECUTABLE, "allocator; stacks of threads"),
    only(SYS_mprotect, NOT_EXECUTABLE, "allocator; guard pages of stacks"),
    call(SYS_mremap, "allocator: a large table grows"),
    call(SYS_munmap, "allocator; stacks of threads"),
    call(SYS_madvise, "allocator: gives memory back"),
    // Threads, of which every worker but the first is one.
    only(
        SYS_clone,
        Only {
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
        },
        "threads: start of one",
    ),
    call(SYS_futex, "threads: locks, and waiting for the end of one"),
    call(SYS_set_robust_list, "threads: start of one"),
    call(SYS_rseq, "threads: start of one"),
    call(SYS_sigaltstack, "threads: the stack for an overflow of theirs"),
    only(
        SYS_rt_sigaction,
        Only {
            argument: 0,
            mask: WHOLE,
            values: &GLIBCS_SIGNALS,
        },
        "threads: glibc's own signals, at the start of the first one",
    ),
    call(SYS_rt_sigprocmask, "threads: start of one"),
    call(SYS_rt_sigreturn, "signals: the end of a handler, of SIGSYS too"),
    only(
        SYS_prctl,
        Only {
            argument: 0,
            mask: WHOLE,
            values: &[PR_SET_NAME as u32, PR_SET_VMA as u32],
        },
        "threads: their names; allocator: names of its memory",
    ),
    call(SYS_sched_getaffinity, "allocator: how many arenas"),
    call(SYS_sched_yield, "mesh: another worker is about to finish"),
    call(SYS_getpid, "standard library"),
    call(SYS_gettid, "threads: locks that know their owner"),
    call(SYS_getrandom, "ports and sequence numbers; keys of hashes"),
    call(SYS_exit, "threads: end of one"),
    call(SYS_exit_group, "end of the process"),
];
