//! Signals received through a descriptor (signalfd(2)), so that one poll waits for all events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};

/// Signals that are forwarded to the command. The signals of job control and those that report faults (SIGSEGV, SIGBUS,
/// ...) keep their default disposition.
pub const FORWARDED: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGWINCH,
];

/// Signals that the kernel sends to the foreground process group of a terminal.
const OF_TERMINALS: [i32; 7] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGWINCH,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// Unblocks every signal in this thread.
///
/// # Errors
/// None that the kernel documents for these arguments.
pub fn unblock_all() -> io::Result<()> {
    // SAFETY: `sigset_t` is plain C data; `sigemptyset` initialises it before it is read.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Set of blocked signals, which are received by reading a signalfd(2).
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    /// Signals that the parent process had ignored, as nohup(1) does. They are received nevertheless, as they are blocked.
    ignored: Vec<i32>,
}

/// Signal that was received by [`Signals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Number of the signal (signal(7)).
    pub number: i32,
    /// Sender of the signal, from its `si_code`.
    pub by: Sender,
    /// True if the parent process had set the disposition of the signal to `SIG_IGN`.
    pub ignored: bool,
}

/// The sender of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The kernel sent the signal to the whole process group of this process, the terminal's foreground process group or, for
    /// SIGTTIN and SIGTTOU, one in the background.
    Terminal,
    /// This process sent the signal, to itself or to its process group (kill(2)).
    Itself,
    /// A process, or a timer that was set before exec, sent the signal to this process only.
    Process,
}

impl Sender {
    /// Returns the sender of the signal `number` with this `si_code`.
    fn of(number: i32, code: i32) -> Self {
        // SI_KERNEL and its like are positive; kill, sigqueue and tgkill are not (sigaction(2)). The kernel sends SIGALRM
        // for alarm(2), too, which outlives an exec.
        if code > 0 && OF_TERMINALS.contains(&number) {
            Self::Terminal
        } else {
            Self::Process
        }
    }
}

impl Signals {
    /// Blocks the forwarded signals and `more` in this thread and its children, and opens the descriptor.
    ///
    /// # Errors
    /// No free descriptor.
    pub fn block(more: &[i32]) -> io::Result<Self> {
        // If SIGCHLD stayed ignored by the parent process's choice, the kernel would reap children, and their status would be lost.
        // SAFETY: SIG_DFL is a valid disposition.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        // If the terminal has TOSTOP set, which the command can do, a write to the log would otherwise stop the process group
        // while another group is in the foreground.
        // SAFETY: `sigset_t` is plain C data; `sigemptyset` initialises it before it is read, and the call keeps no pointer.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTTOU);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        }
        Self::block_only(&[&FORWARDED, more].concat())
    }

    /// Blocks the signals `numbers`, and no other, and opens the descriptor that receives them.
    ///
    /// # Errors
    /// No free descriptor.
    pub fn block_only(numbers: &[i32]) -> io::Result<Self> {
        let ignored = numbers.iter().copied().filter(|number| is_ignored(*number));
        let ignored = ignored.collect();
        // SAFETY: `sigset_t` is plain C data; `sigemptyset` initialises it before it is read, and the calls keep no
        // pointer to it. The descriptor is new and has no other owner.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for number in numbers {
                libc::sigaddset(&raw mut set, *number);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) < 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self {
                fd: OwnedFd::from_raw_fd(fd),
                ignored,
            })
        }
    }

    /// Returns the signalfd, to be polled for reading.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads the next signal, if any is pending.
    ///
    /// # Errors
    /// The kernel refuses the read of the signalfd.
    pub fn take(&self) -> io::Result<Option<Signal>> {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut record) {
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // SAFETY: the kernel writes whole records only, so `record` holds one; it is plain C data.
        let info: libc::signalfd_siginfo = unsafe { std::ptr::read_unaligned(record.as_ptr().cast()) };
        let number = info.ssi_signo.cast_signed();
        let by = match info.ssi_code == libc::SI_USER && info.ssi_pid == std::process::id() {
            true => Sender::Itself,
            false => Sender::of(number, info.ssi_code),
        };
        Ok(Some(Signal {
            number,
            by,
            ignored: self.ignored.contains(&number),
        }))
    }

    /// Reads all pending signals; returns the exit status of a command that the first of them would have terminated.
    ///
    /// # Errors
    /// The kernel refuses the read of the signalfd.
    pub fn fatal(&self) -> io::Result<Option<u8>> {
        while let Some(signal) = self.take()? {
            if !signal.ignored && signal.number != libc::SIGWINCH {
                return Ok(u8::try_from(128 + signal.number).ok());
            }
        }
        Ok(None)
    }

    /// Waits for a signal.
    ///
    /// # Errors
    /// The kernel refuses the read of the signalfd.
    pub fn wait(&self) -> io::Result<Signal> {
        loop {
            if let Some(signal) = self.take()? {
                return Ok(signal);
            }
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_ignored(number: i32) -> bool {
    // SAFETY: `sigaction` is plain C data, for which zeroes are valid; the call writes it, and changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `si_code` of signals that the kernel sends (`<asm-generic/siginfo.h>`).
    const SI_KERNEL: i32 = 0x80;

    #[test]
    fn kernel_sends_signals_of_terminals_only() {
        for number in FORWARDED {
            let by = match number {
                libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGWINCH => Sender::Terminal,
                _ => Sender::Process,
            };
            assert_eq!(Sender::of(number, SI_KERNEL), by, "{number}");
            assert_eq!(Sender::of(number, libc::SI_USER), Sender::Process, "{number}");
        }
    }

    #[test]
    fn signal_ignored_by_the_parent_is_received_and_marked() {
        // SAFETY: both are valid dispositions, and no other test receives this signal.
        unsafe { libc::signal(libc::SIGQUIT, libc::SIG_IGN) };
        let signals = Signals::block(&[]).unwrap();
        // SAFETY: as above. Both signals are blocked in this thread, which `raise` sends them to.
        unsafe {
            libc::raise(libc::SIGQUIT);
            libc::signal(libc::SIGQUIT, libc::SIG_DFL);
            libc::raise(libc::SIGTERM);
        }
        let mut came = [signals.wait().unwrap(), signals.wait().unwrap()];
        came.sort_by_key(|signal| signal.number);
        let signal = |number, ignored| Signal {
            number,
            by: Sender::Process,
            ignored,
        };
        assert_eq!(came, [signal(libc::SIGQUIT, true), signal(libc::SIGTERM, false)]);
    }

    #[test]
    fn pending_fatal_signal_gives_its_exit_status() {
        // SAFETY: SIG_DFL is a valid disposition. A shell starts background processes, and perhaps this test, with SIGINT
        // ignored.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        let signals = Signals::block(&[]).unwrap();
        assert_eq!(signals.fatal().unwrap(), None);
        // SAFETY: both are blocked in this thread, which `raise` sends them to.
        unsafe { libc::raise(libc::SIGWINCH) };
        assert_eq!(signals.fatal().unwrap(), None);
        // SAFETY: SIGINT is blocked in this thread, to which `raise` sends it.
        unsafe { libc::raise(libc::SIGINT) };
        assert_eq!(signals.fatal().unwrap(), Some(128 + 2));
        assert_eq!(signals.fatal().unwrap(), None);
    }
}
