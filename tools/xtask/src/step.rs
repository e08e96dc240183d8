//! Runs one program with a deadline and prints its duration.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// Runs `command` and returns true if it succeeded before `deadline`, at which its process group is killed.
pub(crate) fn run(name: &str, command: &mut Command, deadline: Duration) -> Result<bool> {
    let start = begin(name);
    let mut child = spawn(command)?;
    let mut verdict = None;
    while start.elapsed() < deadline && verdict.is_none() {
        verdict = child.try_wait()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    finish(name, &mut child, start, deadline)
}

/// As [`run`], with `line` called for each line of the program's standard output.
pub(crate) fn lines(
    name: &str,
    command: &mut Command,
    deadline: Duration,
    line: impl FnMut(&str),
) -> Result<bool> {
    let start = begin(name);
    let mut child = spawn(command.stdout(Stdio::piped()))?;
    let output = child.stdout.take().context("no pipe")?;
    follow(name, child, output, start, deadline, line)
}

/// As [`lines`], for standard error, which is printed as well.
pub(crate) fn errors(
    name: &str,
    mut command: Command,
    deadline: Duration,
    mut line: impl FnMut(&str),
) -> Result<bool> {
    let start = begin(name);
    let mut child = spawn(command.stderr(Stdio::piped()))?;
    let output = child.stderr.take().context("no pipe")?;
    follow(name, child, output, start, deadline, |text| {
        eprintln!("{text}");
        line(text);
    })
}

/// As [`run`], with the program's output printed when it has ended, because other steps run at the same time.
pub(crate) fn aside(name: &str, command: &mut Command, deadline: Duration) -> Result<bool> {
    let mut output = tempfile::tempfile().context("cannot make a temporary file")?;
    command.stdout(output.try_clone()?).stderr(output.try_clone()?);
    let passed = run(name, command, deadline)?;
    output.seek(SeekFrom::Start(0))?;
    // One write at a time, so that the output of two steps does not mix.
    let mut text = Vec::new();
    output.read_to_end(&mut text)?;
    std::io::stderr().lock().write_all(&text)?;
    Ok(passed)
}

/// Runs `command` without output; returns true if it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn follow(
    name: &str,
    mut child: Child,
    output: impl Read + Send + 'static,
    start: Instant,
    deadline: Duration,
    mut line: impl FnMut(&str),
) -> Result<bool> {
    let output = BufReader::new(output);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        output
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| sender.send(line))
    });
    while let Some(left) = deadline.checked_sub(start.elapsed()) {
        match receiver.recv_timeout(left) {
            Ok(text) => line(&text),
            Err(_) => break,
        }
    }
    finish(name, &mut child, start, deadline)
}

fn begin(name: &str) -> Instant {
    eprintln!("--- {name}");
    Instant::now()
}

fn spawn(command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))
}

fn finish(name: &str, child: &mut Child, start: Instant, deadline: Duration) -> Result<bool> {
    // The output may end a moment before the program does.
    let grace = Instant::now() + Duration::from_secs(1);
    let mut status = child.try_wait()?;
    while status.is_none() && Instant::now() < grace {
        std::thread::sleep(Duration::from_millis(5));
        status = child.try_wait()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    match status {
        Some(status) if status.success() => eprintln!("--- {name}: {seconds:.1} s"),
        Some(status) => eprintln!("--- {name}: failed ({status}) after {seconds:.1} s"),
        None => {
            if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            eprintln!("--- {name}: killed at its deadline of {} s", deadline.as_secs());
        }
    }
    Ok(status.is_some_and(|status| status.success()))
}
