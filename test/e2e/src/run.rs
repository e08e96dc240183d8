//! `pontoon run` as the tests start it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

use anyhow::{Context, Result, ensure};
use pontoon_netns::Namespace;
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{self, Program};

/// A `pontoon run` that is configured and not started yet.
pub(crate) struct PontoonRun<'a> {
    program: &'a Program,
    direct: Option<&'a Namespace>,
    options: Vec<String>,
    command: Vec<String>,
    talk: Option<PathBuf>,
    log: Option<OwnedFd>,
}

impl<'a> PontoonRun<'a> {
    pub(crate) fn new(program: &'a Program, direct: Option<&'a Namespace>) -> Self {
        Self {
            program,
            direct,
            options: Vec::new(),
            command: Vec::new(),
            talk: None,
            log: None,
        }
    }

    /// Adds command-line options of `pontoon run`.
    pub(crate) fn options<T: ToString>(mut self, options: impl IntoIterator<Item = T>) -> Self {
        self.options
            .extend(options.into_iter().map(|option| option.to_string()));
        self
    }

    /// Sets the command that `pontoon run` runs in the guest.
    pub(crate) fn command<T: ToString>(mut self, command: impl IntoIterator<Item = T>) -> Self {
        self.command
            .extend(command.into_iter().map(|word| word.to_string()));
        self
    }

    /// Sets a line of shell as the guest's command. `$E2E` is the path of this program.
    pub(crate) fn shell(self, line: &str) -> Self {
        self.command(["sh", "-c", &format!("E2E={}; {line}", own_path())])
    }

    /// Sets `pontoon-e2e guest ...` as the guest's command.
    pub(crate) fn guest<T: ToString>(self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.command([own_path(), "guest".to_string()]).command(arguments)
    }

    /// Writes the program's standard error to a file instead of the log of the case.
    pub(crate) fn talk_to(mut self, file: &Path) -> Self {
        self.talk = Some(file.to_path_buf());
        self
    }

    /// Writes the program's standard error to `descriptor`.
    pub(crate) fn log_to(mut self, descriptor: OwnedFd) -> Self {
        self.log = Some(descriptor);
        self
    }

    fn build(&self) -> Result<Command> {
        let mut command = if self.direct.is_some() {
            Command::new(&self.command[0])
        } else {
            let mut command = self.program.command()?;
            command
                .arg("run")
                .args(&self.program.options)
                .args(&self.options)
                .arg("--")
                .arg(&self.command[0]);
            command
        };
        command.args(&self.command[1..]).stdin(Stdio::null());
        if let Some(file) = &self.talk {
            command.stderr(File::create(file)?);
        }
        if let Some(log) = &self.log {
            command.stderr(log.try_clone()?);
        }
        Ok(command)
    }

    fn start(&self, command: &mut Command) -> Result<Child> {
        eprintln!(
            "+ pontoon run {} -- {}",
            self.options.join(" "),
            self.command.join(" ")
        );
        match self.direct {
            Some(guest) => guest.enter(|| Ok(command.spawn()?)),
            None => command
                .spawn()
                .with_context(|| format!("cannot run {}", command.get_program().display())),
        }
    }

    /// Runs the program until it exits with any status. Returns its standard output, standard error and status.
    pub(crate) fn output(&self) -> Result<Output> {
        let child = self.start(self.build()?.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let output = child.wait_with_output()?;
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        Ok(output)
    }

    /// Runs the program until it exits, which must be with status 0. Returns its standard output.
    pub(crate) fn text(&self) -> Result<String> {
        let child = self.start(self.build()?.stdout(Stdio::piped()))?;
        let output = child.wait_with_output()?;
        process::checked(&self.command.join(" "), output.status, &output.stdout, &[])
    }

    /// Starts the program, and returns the running process.
    pub(crate) fn spawn(&self) -> Result<RunningProgram> {
        RunningProgram::of(self.start(self.build()?.stdin(Stdio::piped()).stdout(Stdio::piped()))?)
    }
}

/// A running `pontoon run`, or another program, which is killed on drop.
pub(crate) struct RunningProgram {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl RunningProgram {
    /// Wraps a child process whose standard input and output are pipes.
    pub(crate) fn of(mut child: Child) -> Result<Self> {
        let output = BufReader::new(child.stdout.take().context("the program has no pipe")?);
        Ok(Self { child, output })
    }

    /// Returns the next line of the program's standard output.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(
            self.output.read_line(&mut line)? > 0,
            "it ended before the line that was waited for"
        );
        Ok(line.trim_end().to_string())
    }

    /// Writes a line to the program's standard input.
    pub(crate) fn send_line(&mut self, line: &str) -> Result<()> {
        self.send(&format!("{line}\n"))
    }

    /// Writes text to the program's standard input.
    pub(crate) fn send(&mut self, text: &str) -> Result<()> {
        eprintln!("> {}", text.escape_debug());
        let input = self.child.stdin.as_mut().context("the program has no pipe")?;
        Ok(input.write_all(text.as_bytes())?)
    }

    /// Writes a line to the shell that runs in the guest, and returns the line that this prints.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String> {
        self.send_line(line)?;
        self.line()
    }

    /// Waits for the line that servers inside print when they listen.
    pub(crate) fn listening(mut self) -> Result<Self> {
        let line = self.line()?;
        ensure!(line == "listening", "instead of `listening`: {line}");
        Ok(self)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("the program has no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Closes the program's standard input, and waits as [`Self::finish`].
    pub(crate) fn finish_by_end_of_input(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        self.finish()
    }

    /// Waits until the program exits, which must be with status 0. Returns the rest of its standard output.
    pub(crate) fn finish(mut self) -> Result<String> {
        let mut rest = String::new();
        while self.output.read_line(&mut rest)? > 0 {}
        let status = self.child.wait()?;
        process::checked("pontoon run", status, rest.as_bytes(), &[])
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of this program.
pub(crate) fn own_path() -> String {
    std::env::current_exe().map_or_else(|_| "pontoon-e2e".to_string(), |path| path.display().to_string())
}
