//! Cases about the command as a job of a shell in a terminal.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::case::Context;
use crate::network::Network;
use crate::run::RunningProgram;

/// Returns the words of `pontoon run -q` for a line of shell.
pub(crate) fn words(context: &Context) -> Result<String> {
    let mut command = context.program.command()?;
    command.args(["run", "-q"]);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.display().to_string()).collect();
    Ok(words.join(" "))
}

/// A shell in a terminal of its own.
struct TerminalScene(RunningProgram);

impl TerminalScene {
    /// Starts a shell that executes `line`.
    fn start(shell: &str, line: &str) -> Result<Self> {
        let line = format!("stty -echo; {line}");
        let mut script = Command::new("script");
        script
            .args(["-qec", "eval \"$LINE\"", "/dev/null"])
            .envs([("SHELL", shell), ("LINE", &line)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let child = script.spawn().context("cannot run script")?;
        Ok(Self(RunningProgram::of(child)?))
    }

    /// Waits for a line. The shell prints others about its jobs.
    fn expect(&mut self, line: &str) -> Result<()> {
        loop {
            let next = self.0.line().with_context(|| format!("no line `{line}`"))?;
            eprintln!("{next}");
            if next == line {
                return Ok(());
            }
        }
    }

    /// Presses keys when the command runs.
    fn press(&mut self, keys: &str) -> Result<()> {
        // A program that has printed a line may not have called exec yet.
        std::thread::sleep(Duration::from_millis(200));
        self.0.send(keys)
    }
}

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// Tests that Ctrl-C ends the command and signals the script that runs it, which has the terminal again afterwards.
pub(super) fn interrupted_script(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let line = format!(
        "trap 'echo interrupted' INT; {} -- sh -c 'echo started; exec sleep 1000'; echo status $?; \
         read -r line; echo read $line",
        words(context)?
    );
    let mut scene = TerminalScene::start("/bin/sh", &line)?;
    scene.expect("started")?;
    scene.press(CTRL_C)?;
    scene.expect("interrupted")?;
    scene.expect("status 130")?;
    scene.press("text\n")?;
    scene.expect("read text")
}

/// Tests that a shell stops the command with Ctrl-Z, continues it in the foreground, where it has the terminal,
/// and ends it with Ctrl-C.
pub(super) fn job_control(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let line = format!(
        "set -m; {} -- sh -c 'echo started; while read -r line; do echo got $line; done'; echo status $?; \
         fg > /dev/null; echo status $?",
        words(context)?
    );
    let mut scene = TerminalScene::start("/bin/bash", &line)?;
    scene.expect("started")?;
    scene.press(CTRL_Z)?;
    scene.expect("status 148")?;
    scene.press("text\n")?;
    scene.expect("got text")?;
    scene.press(CTRL_C)?;
    scene.expect("status 130")
}

/// Tests that the command that a shell starts in the background is stopped when it reads the terminal, and has the terminal when
/// the shell continues it.
pub(super) fn background_job(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let line = format!(
        "set -m; {} -- sh -c 'echo started; read -r line; echo got $line' & \
         until [ \"$(jobs -s)\" ]; do sleep 0.05; done; echo stopped; fg > /dev/null; echo status $?",
        words(context)?
    );
    let mut scene = TerminalScene::start("/bin/bash", &line)?;
    scene.expect("stopped")?;
    scene.press("text\n")?;
    scene.expect("got text")?;
    scene.expect("status 0")
}
