//! What a worker may ask of the kernel (seccomp(2)): to move packets, and nothing that opens anything.

use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// Refuses every other system call from here on with EPERM.
///
/// # Errors
/// The kernel has no seccomp, or none for this architecture.
pub(crate) fn enter() -> io::Result<()> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let rules = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch).map_err(io::Error::other)?;
    let program = BpfProgram::try_from(filter).map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

const ALLOWED: &[i64] = &[
    // The loop: waiting, and the batch clock.
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_clock_nanosleep,
    // The supervisor's messages, and packets.
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    // TTL and DSCP of what is sent; an interface's error.
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // The memory of rings and counters, and the allocator's.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Descriptors that came with messages.
    libc::SYS_close,
    // What is said on standard error.
    libc::SYS_write,
    // The standard library's and the kernel's own: locks, panics, signals, hash seeds, the end.
    libc::SYS_clock_gettime,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
];
