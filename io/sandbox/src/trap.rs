//! Handler of SIGSYS for system calls that are not permitted: such a call fails with EPERM and is counted, and the
//! process continues.
//!
//! The seccomp filter raises SIGSYS for such a call (`SECCOMP_RET_TRAP`); the handler stores -EPERM in the register
//! that returns the call's result.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

/// Number of refused system calls in all threads since the start.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Number (`__NR_*`) of the system call that was refused last.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns how many system calls were refused since the start of the process.
#[must_use]
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Returns the number (`__NR_*`) of the system call that was refused last.
#[must_use]
pub fn last() -> u64 {
    LAST.load(Ordering::Relaxed)
}

/// Installs the handler of SIGSYS for all threads.
pub(crate) fn install() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = answer;
    // SAFETY: `sigaction` is plain C data, for which zeroes are valid; the handler has the type that SA_SIGINFO
    // requires, exists as long as the program, and is async-signal-safe (signal-safety(7)).
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut())
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn answer(_signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the interrupted thread's registers to a handler with SA_SIGINFO, and nothing else
    // accesses them before the handler returns.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    LAST.store(refuse(context), Ordering::Relaxed);
    REFUSED.fetch_add(1, Ordering::Relaxed);
}

/// Sets the result of the refused call to -EPERM, and returns the call's number, which x86-64 keeps in the result
/// register.
#[cfg(target_arch = "x86_64")]
fn refuse(context: &mut ucontext_t) -> u64 {
    let result = &mut context.uc_mcontext.gregs[libc::REG_RAX as usize];
    std::mem::replace(result, i64::from(-libc::EPERM)).cast_unsigned()
}

/// Sets the result of the refused call to -EPERM, and returns the call's number.
#[cfg(target_arch = "aarch64")]
fn refuse(context: &mut ucontext_t) -> u64 {
    context.uc_mcontext.regs[0] = i64::from(-libc::EPERM).cast_unsigned();
    context.uc_mcontext.regs[8]
}
