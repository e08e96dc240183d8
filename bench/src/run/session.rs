//! A load client (or another program) inside a stack, from the start of the stack until all its processes have ended.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{WaitOptions, wait};

use super::processes::Processes;
use crate::host::Host;
use crate::job::JobMessage;
use crate::stack::{NetworkConfig, Stack, StackProcesses};

/// Time limit for a client to exit after the harness has closed its standard input.
const GRACE: Duration = Duration::from_secs(2);

/// A program, such as the load client, that runs inside of a started stack.
pub(super) struct ClientSession {
    started: StackProcesses,
    lines: Receiver<String>,
    last_stderr_line: Option<JoinHandle<String>>,
    persistent: Vec<u32>,
}

/// An event of a client that the harness waits for.
pub(super) enum ClientEvent {
    JobMessage(JobMessage),
    /// The client has written a line that is not a message.
    Other,
    /// The client has closed its standard output.
    Closed,
    /// The deadline has passed without a line.
    TimedOut,
}

impl ClientSession {
    /// Starts `program` inside `stack`.
    ///
    /// # Errors
    /// The stack cannot be started.
    pub(super) fn start(
        host: &Host,
        stack: &dyn Stack,
        config: &NetworkConfig,
        program: &[OsString],
    ) -> Result<Self> {
        let persistent = host.persistent_processes();
        let mut started = stack
            .start(host, config, program)
            .inspect_err(|_| kill_all(&persistent))?;
        let stdout = BufReader::new(
            started
                .guest
                .stdout
                .take()
                .context("the child process has no pipe")?,
        );
        let stderr = started
            .guest
            .stderr
            .take()
            .context("the child process has no pipe")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let _ = stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line));
        });
        // The pipes of helpers are not read: a helper that writes more than 64 KiB blocks.
        Ok(Self {
            started,
            lines,
            last_stderr_line: Some(std::thread::spawn(move || last_line(stderr))),
            persistent,
        })
    }

    /// Waits for the client's next line until `deadline`.
    pub(super) fn next(&self, deadline: Instant) -> ClientEvent {
        match self
            .lines
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(message) => ClientEvent::JobMessage(message),
                Err(_) => ClientEvent::Other,
            },
            Err(RecvTimeoutError::Timeout) => ClientEvent::TimedOut,
            Err(RecvTimeoutError::Disconnected) => ClientEvent::Closed,
        }
    }

    /// Returns the running processes of the stack and the client.
    pub(super) fn processes(&self) -> Processes {
        Processes::running(&self.persistent)
    }

    /// Waits until the program exits. Returns true if it exits with status 0 before `deadline`.
    pub(super) fn wait_for_success(&mut self, deadline: Instant) -> bool {
        while Instant::now() < deadline {
            match self.started.guest.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) => std::thread::sleep(Duration::from_micros(100)),
                Err(_) => return false,
            }
        }
        false
    }

    /// Closes the program's standard input and waits until it exits, then kills the remaining processes. Returns the
    /// last line of its standard error.
    pub(super) fn finish(mut self) -> String {
        drop(self.started.guest.stdin.take());
        self.wait_for_success(Instant::now() + GRACE);
        self.kill()
    }

    /// Kills all processes of the session. Returns the last line of the program's standard error.
    pub(super) fn kill(mut self) -> String {
        kill_all(&self.persistent);
        let _ = self.started.guest.wait();
        for helper in &mut self.started.helpers {
            let _ = helper.wait();
        }
        let last_stderr_line = self.last_stderr_line.take().and_then(|thread| thread.join().ok());
        last_stderr_line.unwrap_or_default()
    }
}

/// Kills all processes in the PID namespace except this one and `persistent`, and reaps the orphans.
fn kill_all(persistent: &[u32]) {
    let begun = Instant::now();
    loop {
        let left = Processes::running(persistent);
        if left.is_empty() || begun.elapsed() > GRACE {
            break;
        }
        left.kill();
        std::thread::sleep(Duration::from_millis(1));
    }
    // No other thread waits for children now, and the exit statuses that matter were read through their `Child`
    // handles.
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Returns the last line that is not empty of a stream, of whose end at most 64 KiB are examined.
fn last_line(mut from: impl Read) -> String {
    let mut text = Vec::new();
    let mut block = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut block) {
        text.extend_from_slice(&block[..length]);
        let excess = text.len().saturating_sub(64 * 1024);
        text.drain(..excess);
    }
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or_default().trim().to_owned()
}
