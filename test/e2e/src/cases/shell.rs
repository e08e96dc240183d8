//! A shell on the host of a case, by which the program runs as other programs start it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::lifecycle::nothing_left;
use super::{OBEDIENT, tmpfs};
use crate::case::Context;
use crate::machine::DIRECTORY;
use crate::process;
use crate::run::{RunningProgram, own_path};

/// A shell on the host of a case, which runs as the user that starts the program and creates network namespaces.
pub(super) struct Shell {
    shell: RunningProgram,
    /// Options of unshare(1) for a new namespace of this user.
    pub(super) unshare: &'static str,
    /// Options of nsenter(1).
    pub(super) nsenter: &'static str,
}

impl Shell {
    pub(super) fn start(context: &Context) -> Result<Self> {
        tmpfs(Path::new(DIRECTORY))?;
        let program = &context.program;
        let binary = program
            .binary
            .as_deref()
            .context("there is no program under test")?;
        let (mut command, unshare, nsenter) = match program.drop_privileges {
            true => {
                let mut command = Command::new("unshare");
                command.args(["--user", "--map-user=1000", "--map-group=1000", "--"]);
                (command, "--user --map-root-user", "--user --preserve-credentials")
            }
            false => (Command::new("env"), "", ""),
        };
        // The cases use `wait -n` and process substitution, which bash has and dash does not.
        let child = command
            .args(["bash", "-c", OBEDIENT])
            .env("SLIRP", format!("{binary} compat slirp4netns"))
            .env("PASTA", format!("{binary} compat pasta"))
            .env("PASST", format!("{binary} compat passt"))
            .env("PONTOON", binary)
            .env("E2E", own_path())
            .envs(program.environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let shell = RunningProgram::of(child)?.listening()?;
        Ok(Self {
            shell,
            unshare,
            nsenter,
        })
    }

    /// Runs a line that prints one line.
    pub(super) fn ask(&mut self, line: &str) -> Result<String> {
        self.shell.ask(line)
    }

    /// Runs a line that prints nothing.
    pub(super) fn run(&mut self, line: &str) -> Result<()> {
        let status = self.ask(&format!("{line}; echo $?"))?;
        ensure!(status == "0", "{line}: exit status {status}");
        Ok(())
    }

    /// Starts a process that keeps a new network namespace; `$holder` is its process id.
    pub(super) fn holder(&mut self) -> Result<String> {
        let unshare = self.unshare;
        self.ask(&format!(
            "unshare {unshare} --net sleep 1000 >/dev/null & holder=$!; \
             until [ \"$(cat /proc/$holder/comm)\" = sleep ]; do sleep 0.01; done; echo $holder"
        ))
    }

    /// Runs a line in the network namespace of the last `$holder`, and returns its output in one line.
    pub(super) fn inside(&mut self, line: &str) -> Result<String> {
        let nsenter = self.nsenter;
        self.ask(&format!(
            "echo $(nsenter {nsenter} --net --target $holder bash -c '{line}' 2>&1)"
        ))
    }

    /// Ends the last `$holder`, and checks that no process other than the shell is left.
    pub(super) fn finish(mut self) -> Result<()> {
        self.run("kill $holder; ! wait $holder")?;
        drop(self);
        nothing_left()
    }
}

/// Waits until no process of the program runs.
pub(super) fn wait_for_the_end(context: &Context) -> Result<()> {
    process::wait_until("the program has exited", Duration::from_secs(3), || {
        Ok(context.program.processes().is_empty())
    })
    .map(drop)
}
