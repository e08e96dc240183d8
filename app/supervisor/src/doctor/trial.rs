//! Short-lived child processes that try a step and report its result.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use pontoon_process::child::spawn;
use pontoon_process::error::reason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Size of the longest result in bytes.
const LONGEST: u64 = 1 << 20;

/// Runs `body` in a child process, and returns its result.
///
/// # Errors
/// A description, if no child can be created, or if it exits without a result or not before the deadline.
pub(super) fn run<T: Serialize + DeserializeOwned>(
    deadline: Duration,
    body: impl FnOnce() -> T,
) -> Result<T, String> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| format!("cannot make a pipe: {}", reason(&error.into())))?;
    let child = spawn::fork(|| {
        let alone = set_parent_process_death_signal(Some(Signal::KILL));
        let closed = spawn::close_all_but(&[theirs.as_fd()]);
        if alone.is_err() || closed.is_err() {
            return 1;
        }
        let text = serde_json::to_vec(&body()).unwrap_or_default();
        // SAFETY: this process is a child, which uses the descriptor by no other value, and calls this once.
        let mut pipe = std::fs::File::from(unsafe { spawn::take_over(&theirs) });
        u8::from(pipe.write_all(&text).is_err())
    })
    .map_err(|error| format!("cannot fork: {}", reason(&error)))?;
    drop(theirs);
    let text = read(std::fs::File::from(ours), Instant::now() + deadline);
    if !matches!(text, Ok(Some(_))) {
        child.kill();
    }
    let status = child.wait();
    match text {
        Ok(Some(text)) => serde_json::from_slice(&text).map_err(|_| exited(status)),
        Ok(None) => Err(format!("no result within {} s", deadline.as_secs())),
        Err(error) => Err(reason(&error)),
    }
}

/// Reads to the end of the pipe; `None` if that is later than `until`.
fn read(pipe: std::fs::File, until: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    let mut pipe = pipe.take(LONGEST);
    let mut buffer = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        let mut fds = [PollFd::new(pipe.get_ref(), PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&left)))? == 0 {
            return Ok(None);
        }
        match pipe.read(&mut buffer)? {
            0 => return Ok(Some(text)),
            len => text.extend_from_slice(&buffer[..len]),
        }
    }
}

fn exited(status: u8) -> String {
    match status.checked_sub(128) {
        Some(31) => "a filter of system calls (seccomp) has killed the child".to_owned(),
        Some(signal) => format!("signal {signal} has killed the child"),
        None => format!("the child exited with status {status}"),
    }
}

#[cfg(test)]
mod tests {
    use pontoon_test_support::process::in_child;

    use super::*;

    /// Runs the test in a process with one thread, as the function requires.
    fn alone(name: &str, body: impl FnOnce() -> bool) {
        let full = format!("doctor::trial::tests::{name}");
        assert_eq!(in_child(&full, || u8::from(!body())), 0);
    }

    #[test]
    fn results_are_received() {
        alone("results_are_received", || {
            let long = "x".repeat(200_000);
            run(Duration::from_secs(10), || (7, long.clone())) == Ok((7, long.clone()))
        });
    }

    #[test]
    fn children_without_a_result_are_errors() {
        alone("children_without_a_result_are_errors", || {
            let exits = run::<u8>(Duration::from_secs(10), || std::process::exit(3));
            let waits = run::<u8>(Duration::from_millis(50), || {
                loop {
                    std::thread::park();
                }
            });
            exits == Err("the child exited with status 3".to_owned())
                && waits == Err("no result within 0 s".to_owned())
        });
    }

    #[test]
    fn exit_statuses_are_described() {
        assert_eq!(exited(128 + 9), "signal 9 has killed the child");
        assert!(exited(128 + 31).contains("seccomp"));
    }
}
