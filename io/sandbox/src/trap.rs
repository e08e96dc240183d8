//! Handles system calls that are not on the list: each fails with EPERM and is counted, and the process continues.
//!
//! On such a call the filter raises SIGSYS (`SECCOMP_RET_TRAP`); the handler stores the result in the register in which the
//! call would return it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

/// Calls refused so far, in all threads.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Number of the call that was refused last.
static LAST: AtomicU64 = AtomicU64::new(0);

/// System calls that were refused so far.
#[must_use]
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Number of the system call that was refused last.
#[must_use]
pub fn last() -> u64 {
    LAST.load(Ordering::Relaxed)
}

/// Installs the handler, for every thread.
pub(crate) fn install() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = answer;
    // SAFETY: `sigaction` is plain C data, for which zeroes are valid; the handler has the type that SA_SIGINFO asks
    // for, lives as long as the program, and does nothing that a signal handler must not (signal-safety(7)).
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
    // SAFETY: the kernel hands a handler with SA_SIGINFO the interrupted thread's registers, which nothing else looks
    // at before the handler returns.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    LAST.store(refuse(context), Ordering::Relaxed);
    REFUSED.fetch_add(1, Ordering::Relaxed);
}

/// Sets the call's result to -EPERM; returns its number, which is where the kernel found it.
#[cfg(target_arch = "x86_64")]
fn refuse(context: &mut ucontext_t) -> u64 {
    let result = &mut context.uc_mcontext.gregs[libc::REG_RAX as usize];
    std::mem::replace(result, i64::from(-libc::EPERM)).cast_unsigned()
}

/// Sets the call's result to -EPERM; returns its number.
#[cfg(target_arch = "aarch64")]
fn refuse(context: &mut ucontext_t) -> u64 {
    context.uc_mcontext.regs[0] = i64::from(-libc::EPERM).cast_unsigned();
    context.uc_mcontext.regs[8]
}
