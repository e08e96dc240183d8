//! System calls that a test makes in another process by ptrace(2), as an attacker who controls the process would. x86-64
//! only, as registers are.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{Process, wait_until};

/// A process that is stopped and traced, and makes system calls on request.
pub(crate) struct TracedProcess {
    pid: libc::pid_t,
    /// Its registers when it was stopped, for when it is let go.
    was: libc::user_regs_struct,
    /// The address of a `syscall` instruction in it.
    instruction: u64,
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The kernel's result.
    Result(i64),
    /// It killed the process: the signal's number.
    Killed(i32),
}

/// Bytes below the stack pointer that a function may use without moving it (System V ABI, red zone), and the text that a
/// call is given.
const BELOW_STACK: u64 = 4096;

/// The `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

impl TracedProcess {
    /// Stops `process` in whatever system call it sleeps in.
    pub(crate) fn take(process: Process) -> Result<Self> {
        wait_until("it sleeps", Duration::from_secs(5), || process.sleeps())?;
        let pid = process.id().cast_signed();
        ptrace(libc::PTRACE_SEIZE, pid, 0, 0).context("cannot attach")?;
        ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0)?;
        stopped(pid)?;
        let mut traced = Self {
            pid,
            was: registers(pid)?,
            instruction: 0,
        };
        traced.instruction = traced.was.rip - SYSCALL.len() as u64;
        let code = ptrace(libc::PTRACE_PEEKTEXT, pid, traced.instruction, 0)?.to_ne_bytes();
        ensure!(code.starts_with(&SYSCALL), "it does not sleep in a system call");
        Ok(traced)
    }

    /// Has it call `number` with `arguments`. A `text` is put into its memory; [`Self::text`] is its address.
    pub(crate) fn call(&mut self, number: libc::c_long, arguments: &[u64], text: &str) -> Result<Answer> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(8) + 8, 0);
        for (place, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into()?);
            ptrace(
                libc::PTRACE_POKEDATA,
                self.pid,
                self.text() + 8 * place as u64,
                word,
            )?;
        }
        let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
        let mut registers = self.was;
        registers.rip = self.instruction;
        registers.rax = number.cast_unsigned();
        // Not a call to be restarted.
        registers.orig_rax = u64::MAX;
        registers.rdi = argument(0);
        registers.rsi = argument(1);
        registers.rdx = argument(2);
        registers.r10 = argument(3);
        registers.r8 = argument(4);
        registers.r9 = argument(5);
        set_registers(self.pid, &registers)?;
        // Past the call, and through the handler of the signal that a filter may send: it returns to where it was.
        for _ in 0..MOST_STEPS {
            ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, self.signal()?)?;
            if let Some(signal) = stopped(self.pid)? {
                return Ok(Answer::Killed(signal));
            }
            let now = self::registers(self.pid)?;
            if now.rip == self.instruction + SYSCALL.len() as u64
                && now.rsp == self.was.rsp
                && self.signal()? == 0
            {
                return Ok(Answer::Result(now.rax.cast_signed()));
            }
        }
        bail!("it did not come back from call {number}")
    }

    /// Returns the address of a call's text.
    pub(crate) fn text(&self) -> u64 {
        (self.was.rsp - BELOW_STACK) & !7
    }

    /// The signal that it was stopped for, if any.
    fn signal(&self) -> Result<u64> {
        let mut info: libc::siginfo_t = plain();
        ptrace(
            libc::PTRACE_GETSIGINFO,
            self.pid,
            0,
            (&raw mut info).expose_provenance() as u64,
        )?;
        Ok(match info.si_signo {
            libc::SIGTRAP => 0,
            signal => u64::from(signal.unsigned_abs()),
        })
    }

    /// Lets it go on where it was.
    pub(crate) fn release(self) -> Result<()> {
        set_registers(self.pid, &self.was)?;
        ptrace(libc::PTRACE_DETACH, self.pid, 0, 0)?;
        Ok(())
    }
}

/// Instructions that a signal handler and its return may take.
const MOST_STEPS: u32 = 10_000;

fn registers(pid: libc::pid_t) -> Result<libc::user_regs_struct> {
    let mut registers: libc::user_regs_struct = plain();
    ptrace(
        libc::PTRACE_GETREGS,
        pid,
        0,
        (&raw mut registers).expose_provenance() as u64,
    )?;
    Ok(registers)
}

fn set_registers(pid: libc::pid_t, registers: &libc::user_regs_struct) -> Result<()> {
    ptrace(
        libc::PTRACE_SETREGS,
        pid,
        0,
        (&raw const *registers).expose_provenance() as u64,
    )?;
    Ok(())
}

/// Waits until it stops; the signal that killed it, if it does not.
fn stopped(pid: libc::pid_t) -> Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: `status` is a live int that the call writes.
    let rc = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    ensure!(rc == pid, "cannot wait: {}", io::Error::last_os_error());
    if libc::WIFSIGNALED(status) {
        return Ok(Some(libc::WTERMSIG(status)));
    }
    ensure!(libc::WIFSTOPPED(status), "it ended");
    Ok(None)
}

/// Zeroes.
fn plain<T: Copy>() -> T {
    // SAFETY: it is used for C structures of integers and padding only, for which zeroes are values.
    unsafe { std::mem::zeroed() }
}

/// `address` and `data` are the process's own addresses and values, or (GETREGS, SETREGS, GETSIGINFO) a live structure
/// of ours of the type that the request names.
fn ptrace(request: libc::c_uint, pid: libc::pid_t, address: u64, data: u64) -> io::Result<i64> {
    // only errno distinguishes a peeked -1 from a failure.
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = 0 };
    // SAFETY: the caller's pointer is valid for the request, see above; the rest concerns the other process.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    match (result, io::Error::last_os_error()) {
        (-1, error) if error.raw_os_error() != Some(0) => Err(error),
        _ => Ok(result),
    }
}
