//! Gives the terminal back to our process group at the end: an interactive shell inside takes it, and cannot give it
//! back, as our group has no number in its pid namespace. What a shell outside gave to another job stays with that one.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// A terminal that was ours at the start.
#[derive(Debug)]
pub(crate) struct Foreground {
    terminal: File,
    group: Pid,
}

impl Foreground {
    /// The terminal on standard input, if we are its foreground group.
    #[must_use]
    pub(crate) fn of_stdin() -> Option<Self> {
        let terminal = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
        let group = tcgetpgrp(&terminal).ok()?;
        // 0 where the group is of a pid namespace further out, as its leader is.
        // SAFETY: it takes no argument and touches no memory.
        let ours = Pid::from_raw(unsafe { libc::getpgrp() })?;
        (group == ours).then_some(Self { terminal, group })
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        if is_held(tcgetpgrp(&self.terminal)) {
            return;
        }
        // A background process that sets the foreground group is stopped by SIGTTOU unless it ignores it.
        // SAFETY: SIG_IGN is a valid disposition, and no handler of ours is replaced.
        unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
        let _ = tcsetpgrp(&self.terminal, self.group);
    }
}

/// Returns true if the foreground process group has a process. A group in a PID namespace that is not visible here has no
/// number.
fn is_held(foreground: rustix::io::Result<Pid>) -> bool {
    foreground.is_ok_and(|group| test_kill_process_group(group) != Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_terminal_is_held_by_a_group_that_lives() {
        let mut job = Command::new("cat")
            .process_group(0)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let group = Pid::from_child(&job);
        assert!(is_held(Ok(group)));
        drop(job.stdin.take());
        job.wait().unwrap();
        assert!(!is_held(Ok(group)));
        assert!(!is_held(Err(Errno::OPNOTSUPP)));
    }
}
