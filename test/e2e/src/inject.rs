//! System calls that a test makes inside of another process by ptrace(2), as an attacker who controls the process
//! would. x86-64 only, as the registers are.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{Process, wait_until};

/// A process that is stopped by ptrace, and makes system calls on request.
pub(crate) struct TracedProcess {
    pid: libc::pid_t,
    /// Registers of the process when it was stopped, which are restored before it continues.
    was: libc::user_regs_struct,
    /// Address of a `syscall` instruction in the process.
    instruction: u64,
}

/// The result of an injected system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// The result that the kernel returned: a negated error number if it is negative.
    Result(i64),
    /// The call has killed the process; this is the number of the signal.
    Killed(i32),
}

/// Distance from the stack pointer to the text of a call, in bytes: more than the red zone, which a function may use
/// below the stack pointer (System V ABI).
const BELOW_STACK: u64 = 4096;

/// Encoding of the `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

impl TracedProcess {
    /// Stops `process`, which must sleep in a system call.
    pub(crate) fn take(process: Process) -> Result<Self> {
        wait_until("the process sleeps", Duration::from_secs(5), || process.sleeps())?;
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
        ensure!(
            code.starts_with(&SYSCALL),
            "the process does not sleep in a system call"
        );
        Ok(traced)
    }

    /// Makes the process call `number` with `arguments`. `text` is copied into its memory, at the address
    /// [`Self::text`].
    pub(crate) fn call(&mut self, number: libc::c_long, arguments: &[u64], text: &str) -> Result<CallResult> {
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
        // Prevents that the kernel restarts the interrupted call.
        registers.orig_rax = u64::MAX;
        registers.rdi = argument(0);
        registers.rsi = argument(1);
        registers.rdx = argument(2);
        registers.r10 = argument(3);
        registers.r8 = argument(4);
        registers.r9 = argument(5);
        set_registers(self.pid, &registers)?;
        // Steps over the call, and through the handler of a signal that the filter may send, which returns to the
        // same address.
        for _ in 0..MOST_STEPS {
            ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, self.signal()?)?;
            if let Some(signal) = stopped(self.pid)? {
                return Ok(CallResult::Killed(signal));
            }
            let now = self::registers(self.pid)?;
            if now.rip == self.instruction + SYSCALL.len() as u64
                && now.rsp == self.was.rsp
                && self.signal()? == 0
            {
                return Ok(CallResult::Result(now.rax.cast_signed()));
            }
        }
        bail!("the process did not return from system call {number}")
    }

    /// Returns the address of the text in the process.
    pub(crate) fn text(&self) -> u64 {
        (self.was.rsp - BELOW_STACK) & !7
    }

    /// Returns the signal by which the process was stopped, if any.
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

    /// Restores the registers, and lets the process continue.
    pub(crate) fn release(self) -> Result<()> {
        set_registers(self.pid, &self.was)?;
        ptrace(libc::PTRACE_DETACH, self.pid, 0, 0)?;
        Ok(())
    }
}

/// An engine that is stopped by ptrace in a turn of its loop, at the beginning of a system call.
pub(crate) struct StoppedTurn {
    pid: libc::pid_t,
    /// Address of the instruction after the call.
    next: u64,
}

/// Encoding of an instruction that jumps to itself, on a little-endian CPU.
const ENDLESS: u64 = 0xfe_eb;

/// System calls in which a worker waits between two turns.
const WAITS: [libc::c_long; 4] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_restart_syscall,
];

impl StoppedTurn {
    /// Stops `engine`, which must have one worker, in the turn after `wake` has caused an event.
    pub(crate) fn take(engine: Process, wake: impl FnOnce() -> Result<()>) -> Result<Self> {
        let pid = engine.id().cast_signed();
        wait_until("the engine sleeps", Duration::from_secs(5), || engine.sleeps())?;
        ptrace(libc::PTRACE_SEIZE, pid, 0, libc::PTRACE_O_TRACESYSGOOD as u64).context("cannot attach")?;
        ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0)?;
        stopped(pid)?;
        wake()?;
        for _ in 0..MOST_STEPS {
            ptrace(libc::PTRACE_SYSCALL, pid, 0, 0)?;
            ensure!(stopped(pid)?.is_none(), "the engine was killed");
            let registers = registers(pid)?;
            if !WAITS.contains(&registers.orig_rax.cast_signed()) {
                let next = registers.rip;
                return Ok(Self { pid, next });
            }
        }
        bail!("the engine has no event")
    }

    /// Lets the engine continue with an endless loop behind the system call.
    pub(crate) fn hang(self) -> Result<()> {
        let code = ptrace(libc::PTRACE_PEEKTEXT, self.pid, self.next, 0)?.cast_unsigned();
        ptrace(
            libc::PTRACE_POKETEXT,
            self.pid,
            self.next,
            code & !0xffff | ENDLESS,
        )?;
        ptrace(libc::PTRACE_DETACH, self.pid, 0, 0)?;
        Ok(())
    }

    /// Leaves the engine stopped by a signal.
    pub(crate) fn leave_stopped(self) -> Result<()> {
        ptrace(libc::PTRACE_DETACH, self.pid, 0, libc::SIGSTOP as u64)?;
        Ok(())
    }
}

/// Largest number of instructions of a signal handler and its return.
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

/// Waits until the process stops. Returns the signal that has killed it, or `None` if it was stopped.
fn stopped(pid: libc::pid_t) -> Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: `status` is a live int that the call writes.
    let rc = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    ensure!(rc == pid, "cannot wait: {}", io::Error::last_os_error());
    if libc::WIFSIGNALED(status) {
        return Ok(Some(libc::WTERMSIG(status)));
    }
    ensure!(libc::WIFSTOPPED(status), "the process has exited");
    Ok(None)
}

/// Returns a value of zero bytes.
fn plain<T: Copy>() -> T {
    // SAFETY: it is called for C structures of integers and padding only, for which zero bytes are valid.
    unsafe { std::mem::zeroed() }
}

/// Calls ptrace(2). `address` and `data` are addresses and values of the traced process, or (GETREGS, SETREGS,
/// GETSIGINFO) a live structure of this process with the type of the request.
fn ptrace(request: libc::c_uint, pid: libc::pid_t, address: u64, data: u64) -> io::Result<i64> {
    // Only errno distinguishes a peeked -1 from an error. SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = 0 };
    // SAFETY: the caller's pointer is valid for the request, see above; all other accesses are to the traced process.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    match (result, io::Error::last_os_error()) {
        (-1, error) if error.raw_os_error() != Some(0) => Err(error),
        _ => Ok(result),
    }
}
