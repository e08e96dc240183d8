//! Job control of the command. Its process group is not the caller's, so that it cannot signal processes of the caller. For the
//! caller's shell, the supervisor represents the command:
//!
//! - The command's group is the terminal's foreground group while the caller's would be. At the end, the caller's group is
//!   again: an interactive shell in the guest sets another group, and cannot restore the caller's, which has no number in
//!   the guest's PID namespace. A group that a shell outside of the guest has set is kept.
//! - Signals that the terminal sends to the command's group (Ctrl-C) are sent to the caller's group as well, for scripts and
//!   pipelines.
//! - If the command is stopped (Ctrl-Z), the supervisor stops itself, and continues the command when its shell continues it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use pontoon_process::signals::{Sender, Signal};
use rustix::io::Errno;
use rustix::process::{Pid, kill_process_group, test_kill_process_group};
use rustix::termios::tcsetpgrp;

use crate::guest::handshake::Stop;

/// Controlling terminal of this process, if it has one, and the process group of the command.
#[derive(Debug)]
pub(crate) struct Job {
    terminal: Option<Terminal>,
    /// Process group of the command.
    group: Pid,
}

/// Controlling terminal of this process.
#[derive(Debug)]
struct Terminal {
    file: File,
    /// Process group of this process; 0 if its leader is in an outer PID namespace.
    own: libc::pid_t,
    /// True if the command's process group has been the foreground group.
    is_given: bool,
}

/// Action of the supervisor after a stop of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// None: the command stays stopped until another process continues it.
    Keep,
    /// Continue the command.
    Continue,
    /// Stop the supervisor, and continue the command when the supervisor is continued.
    StopSelf,
    /// The same for all processes of the caller's group.
    StopGroup,
}

impl Job {
    /// Returns the job of the command whose process group is `group`.
    #[must_use]
    pub(crate) fn new(group: Pid) -> Self {
        let terminal = Terminal::open();
        Self { terminal, group }
    }

    /// Makes the command's group the foreground group, if this process's group is.
    pub(crate) fn begin(&mut self) {
        let group = self.group;
        if let Some(terminal) = &mut self.terminal
            && terminal.is_own()
        {
            terminal.give(group);
        }
    }

    /// Handles a signal to this process's group: one from the terminal is sent to the command's group, unless that group is
    /// the foreground group and has received it.
    pub(crate) fn forward(&mut self, signal: Signal) {
        let is_own = self.terminal.as_ref().is_none_or(Terminal::may_be_own);
        if signal.by == Sender::Terminal && is_own {
            self.begin();
            self.send(signal.number);
        }
    }

    /// Sends a signal that the terminal has sent to the command's group to this process's group, which includes this process.
    pub(crate) fn pass_on(&self, number: u8) {
        if self.terminal.is_some() {
            // SAFETY: the call accesses no memory.
            unsafe { libc::kill(0, number.into()) };
        }
    }

    /// Returns the action after a stop of the command.
    #[must_use]
    pub(crate) fn reaction(&self, stop: Stop) -> Reaction {
        let foreground = self.terminal.as_ref().map(Terminal::is_own);
        // SAFETY: the calls take no argument and access no memory.
        let is_leader = unsafe { libc::getpgrp() == libc::getpid() };
        reaction(stop, foreground, is_leader)
    }

    /// Stops this process, or its group, until it is continued, and then continues the command.
    pub(crate) fn stop(&mut self, stop: Stop, reaction: Reaction) {
        let foreground = self.terminal.as_ref().and_then(Terminal::held_by_other);
        let reads = i32::from(stop.signal) == libc::SIGTTIN;
        let number = if reads { libc::SIGTTIN } else { libc::SIGTSTP };
        // The kernel does not stop a process group without a shell. The command would be stopped by each read again.
        if !stop_here(number, reaction == Reaction::StopGroup) && reads {
            tracing::warn!("the command is stopped, because it reads the terminal in the background");
            return;
        }
        if let Some(terminal) = &mut self.terminal
            && terminal.is_own()
        {
            terminal.give(foreground.unwrap_or(self.group));
        }
        self.send(libc::SIGCONT);
    }

    /// Continues the command, with the terminal if this process's group has it.
    pub(crate) fn resume(&mut self) {
        self.begin();
        self.send(libc::SIGCONT);
    }

    fn send(&self, number: i32) {
        if let Some(signal) = rustix::process::Signal::from_named_raw(number) {
            let _ = kill_process_group(self.group, signal);
        }
    }
}

/// Stops this process, or its group, by the signal `number`, and returns when it is continued. Returns false if the kernel has
/// not stopped it.
fn stop_here(number: i32, group: bool) -> bool {
    let who = if group {
        0
    } else {
        std::process::id().cast_signed()
    };
    // SAFETY: `sigset_t` is plain C data; `sigemptyset` initialises it before it is read, and the calls keep no pointer to it.
    // The signal `number` is not blocked, so it is delivered before kill(2) returns.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCONT);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::kill(who, number);
        // A signal that is blocked stays pending even if its default action is to ignore it.
        let at_once: libc::timespec = std::mem::zeroed();
        let is_continued =
            libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const at_once) == libc::SIGCONT;
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        is_continued
    }
}

/// Returns the action after a stop of the command. `foreground` is true if the group of this process is the terminal's
/// foreground group, and `None` without a terminal; `is_leader` is true if this process leads its group, because it was started
/// by a shell with job control.
///
/// Only a signal of the terminal stops other processes of the group, as the command can send all others itself.
fn reaction(stop: Stop, foreground: Option<bool>, is_leader: bool) -> Reaction {
    match (foreground, i32::from(stop.signal)) {
        (None, _) => Reaction::Keep,
        // The shell has set the foreground group, and has not signalled this process, because it was not stopped.
        (Some(true), libc::SIGTTIN | libc::SIGTTOU) => Reaction::Continue,
        _ if stop.by_terminal => Reaction::StopGroup,
        _ if is_leader => Reaction::StopSelf,
        (_, libc::SIGSTOP) => Reaction::Keep,
        _ => Reaction::Continue,
    }
}

impl Terminal {
    fn open() -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/tty");
        let copy = |descriptor: io::Result<std::os::fd::OwnedFd>| descriptor.ok().map(File::from);
        let standard = [
            copy(io::stdin().as_fd().try_clone_to_owned()),
            copy(io::stdout().as_fd().try_clone_to_owned()),
            copy(io::stderr().as_fd().try_clone_to_owned()),
        ];
        // SAFETY: the call takes no argument and accesses no memory.
        let own = unsafe { libc::getpgrp() };
        let terminal = |file| Self {
            file,
            own,
            is_given: false,
        };
        let files = device.ok().into_iter().chain(standard.into_iter().flatten());
        files
            .map(terminal)
            .find(|terminal| terminal.foreground().is_some())
    }

    /// Returns the foreground process group, or 0 if it has no number in this PID namespace; `None` if this is not the
    /// controlling terminal.
    fn foreground(&self) -> Option<libc::pid_t> {
        // SAFETY: the call writes no memory of this process.
        let group = unsafe { libc::tcgetpgrp(self.file.as_raw_fd()) };
        (group >= 0).then_some(group)
    }

    fn is_own(&self) -> bool {
        self.foreground() == Some(self.own)
    }

    /// Returns true unless another group is known to be the foreground group.
    fn may_be_own(&self) -> bool {
        self.foreground().is_none_or(|group| group == self.own)
    }

    /// Returns the foreground group, if it is another group that contains a process.
    fn held_by_other(&self) -> Option<Pid> {
        let group = self.foreground().filter(|group| *group != self.own)?;
        Pid::from_raw(group).filter(|group| is_held(*group))
    }

    fn give(&mut self, group: Pid) {
        self.is_given = true;
        if let Err(error) = tcsetpgrp(&self.file, group) {
            tracing::debug!(%error, "the command is in the background of the terminal");
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let Some(own) = Pid::from_raw(self.own).filter(|_| self.is_given) else {
            return;
        };
        if self.held_by_other().is_some() {
            return;
        }
        // A background process that sets the foreground group is stopped by SIGTTOU unless it ignores it.
        // SAFETY: SIG_IGN is a valid disposition, and this program has no handler for it.
        unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
        let _ = tcsetpgrp(&self.file, own);
    }
}

/// Returns true if the process group contains a process.
fn is_held(group: Pid) -> bool {
    test_kill_process_group(group) != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn terminal_is_held_by_a_group_with_a_running_process() {
        let mut job = Command::new("cat")
            .process_group(0)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let group = Pid::from_child(&job);
        assert!(is_held(group));
        drop(job.stdin.take());
        job.wait().unwrap();
        assert!(!is_held(group));
    }

    #[test]
    fn only_signals_of_the_terminal_stop_other_processes() {
        let stop = |signal: i32, by_terminal| Stop {
            signal: u8::try_from(signal).unwrap(),
            by_terminal,
        };
        for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGSTOP] {
            for is_leader in [false, true] {
                assert_eq!(reaction(stop(signal, false), None, is_leader), Reaction::Keep);
                let other = reaction(stop(signal, false), Some(false), is_leader);
                let expected = match (is_leader, signal) {
                    (true, _) => Reaction::StopSelf,
                    (false, libc::SIGSTOP) => Reaction::Keep,
                    (false, _) => Reaction::Continue,
                };
                assert_eq!(other, expected, "{signal}");
            }
        }
        let pressed = stop(libc::SIGTSTP, true);
        assert_eq!(reaction(pressed, Some(false), false), Reaction::StopGroup);
        let reading = stop(libc::SIGTTIN, true);
        assert_eq!(reaction(reading, Some(false), true), Reaction::StopGroup);
        assert_eq!(reaction(reading, Some(true), true), Reaction::Continue);
    }
}
