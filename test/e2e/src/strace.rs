//! Traces the system calls of a running process by strace.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Process, wait_until};

/// Environment of a program whose system calls strace makes fail. strace replaces the call's number by an invalid
/// one, which the program's seccomp filter would refuse before.
pub(crate) const OPEN: [(&str, &str); 1] = [("PONTOON_DISABLE", "seccomp")];

/// An strace that is attached to a process.
pub(crate) struct Strace {
    child: Child,
    process: Process,
    /// True if the options make system calls fail.
    injects: bool,
    output: PathBuf,
}

impl Strace {
    /// Attaches to `process`. `options` select the calls; the trace is written to the file `output`.
    pub(crate) fn attach(process: Process, options: &[&str], output: &Path) -> Result<Self> {
        let mut child = Command::new("strace")
            .arg("-q")
            .args(options)
            .arg("-o")
            .arg(output)
            .args(["-p", &process.id().to_string()])
            .spawn()
            .context("cannot run strace")?;
        wait_until("strace is attached", Duration::from_secs(5), || {
            ensure!(child.try_wait()?.is_none(), "strace ended at once");
            Ok(process.number("status", "TracerPid")? != 0)
        })?;
        let output = output.to_path_buf();
        let injects = options.iter().any(|option| option.starts_with("inject="));
        Ok(Self {
            child,
            process,
            injects,
            output,
        })
    }

    /// Detaches from the process. Returns the trace.
    pub(crate) fn finish(mut self) -> Result<String> {
        if !self.injects {
            self.detach()?;
            return self.written();
        }
        // strace injects an error by replacing the number at the start of the call and the result at its end. If
        // strace detached between them, the process would see ENOSYS. A process that SIGSTOP has stopped is outside
        // of any call, as signals are delivered on return to user mode.
        self.process.signal(Signal::STOP)?;
        let detached = wait_until("strace reports the stop", Duration::from_secs(5), || {
            Ok(self.written()?.contains("--- stopped by SIGSTOP ---"))
        })
        .and_then(|_| self.detach());
        self.process.signal(Signal::CONT)?;
        detached?;
        self.written()
    }

    /// Ends strace, which detaches from the process.
    fn detach(&mut self) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("strace has no process id")?;
        kill_process(pid, Signal::INT)?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns the output of strace so far.
    pub(crate) fn written(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.output)?)
    }
}
