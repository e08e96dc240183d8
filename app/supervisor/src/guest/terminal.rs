//! Restoration of the terminal's foreground process group at exit: an interactive shell in the guest sets another group,
//! and cannot restore this process's group, which has no number in the guest's PID namespace. A group that a shell outside
//! of the guest has set is kept.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Terminal whose foreground process group was this process's at the start.
#[derive(Debug)]
pub(crate) struct Foreground {
    terminal: File,
    group: Pid,
}

impl Foreground {
    /// Returns the terminal that is standard input, if this process is in its foreground process group.
    #[must_use]
    pub(crate) fn of_stdin() -> Option<Self> {
        let terminal = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
        let group = tcgetpgrp(&terminal).ok()?;
        // getpgrp returns 0 if the leader of the group is in an outer PID namespace.
        // SAFETY: the call takes no argument and accesses no memory.
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
        // SAFETY: SIG_IGN is a valid disposition, and this program has no handler for it.
        unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
        let _ = tcsetpgrp(&self.terminal, self.group);
    }
}

/// Returns true if the foreground process group contains a process. A group of a PID namespace that is not visible here has
/// no number.
fn is_held(foreground: rustix::io::Result<Pid>) -> bool {
    foreground.is_ok_and(|group| test_kill_process_group(group) != Err(Errno::SRCH))
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
        assert!(is_held(Ok(group)));
        drop(job.stdin.take());
        job.wait().unwrap();
        assert!(!is_held(Ok(group)));
        assert!(!is_held(Err(Errno::OPNOTSUPP)));
    }
}
