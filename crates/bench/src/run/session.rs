//! A program inside a stack, from its start until nothing of it is left.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{WaitOptions, wait};

use super::processes::Processes;
use crate::host::Host;
use crate::job::Message;
use crate::stack::{NetworkConfig, Stack, Started};

/// How long a client may take to end when it was told to.
const GRACE: Duration = Duration::from_secs(2);

pub(super) struct Session {
    started: Started,
    lines: Receiver<String>,
    last_stderr_line: Option<JoinHandle<String>>,
    persistent: Vec<u32>,
}

/// What a client says next.
pub(super) enum Next {
    Message(Message),
    /// A line that is none of its words.
    Other,
    /// Its output has ended.
    Closed,
    /// Nothing until the deadline.
    TimedOut,
}

impl Session {
    /// Starts `program` inside `stack`.
    ///
    /// # Errors
    /// It cannot be started.
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
        let stdout = BufReader::new(started.guest.stdout.take().context("no pipe")?);
        let stderr = started.guest.stderr.take().context("no pipe")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let _ = stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line));
        });
        // A helper's pipes are not read: it would have to say 64 KiB to block.
        Ok(Self {
            started,
            lines,
            last_stderr_line: Some(std::thread::spawn(move || last_line(stderr))),
            persistent,
        })
    }

    /// The client's next message.
    pub(super) fn next(&self, deadline: Instant) -> Next {
        match self
            .lines
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(message) => Next::Message(message),
                Err(_) => Next::Other,
            },
            Err(RecvTimeoutError::Timeout) => Next::TimedOut,
            Err(RecvTimeoutError::Disconnected) => Next::Closed,
        }
    }

    /// Its living processes.
    pub(super) fn processes(&self) -> Processes {
        Processes::living(&self.persistent)
    }

    /// Waits until the program has ended; whether it did, and well, before `deadline`.
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

    /// Lets the program end, then kills what is left. Returns the last line of its standard error.
    pub(super) fn finish(mut self) -> String {
        drop(self.started.guest.stdin.take());
        self.wait_for_success(Instant::now() + GRACE);
        self.kill()
    }

    /// Kills everything at once. Returns the last line of its standard error.
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

/// Kills all processes here but our own and `persistent`, and collects those that were left to us.
fn kill_all(persistent: &[u32]) {
    let begun = Instant::now();
    loop {
        let left = Processes::living(persistent);
        if left.is_empty() || begun.elapsed() > GRACE {
            break;
        }
        left.kill();
        std::thread::sleep(Duration::from_millis(1));
    }
    // Nobody else waits for children meanwhile, and those whose status anybody wants have handles of their own.
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// The last line that is not empty, of at most 64 KiB of text.
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
