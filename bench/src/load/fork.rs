//! Load clients in child processes, which start together.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::exit;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};

use crate::job::JobMessage;

use super::latency::LatencySamples;
use super::{failed, stalled_or_failed};

/// A child process with one load client. The kernel kills it when this process ends.
pub(crate) struct ClientProcess {
    pid: Pid,
    pipe: UnixStream,
}

/// The child's end of a socket pair, on which it reports readiness and waits for the start.
pub(crate) struct StartBarrier(UnixStream);

impl ClientProcess {
    /// Forks a child process that runs `body`.
    ///
    /// # Errors
    /// Out of memory or processes, or this process has more than one thread.
    pub(crate) fn new(
        body: impl FnOnce(&mut StartBarrier) -> Result<LatencySamples, JobMessage>,
    ) -> io::Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(io::Error::other(format!("cannot fork with {threads} threads")));
        }
        let (pipe, theirs) = UnixStream::pair()?;
        // SAFETY: there is one thread, so the child's copy of memory holds no lock that would never be released.
        match unsafe { libc::fork() } {
            0 => {
                // The child must not return into the caller's stack frames, whose values belong to the
                // parent.
                let done = catch_unwind(AssertUnwindSafe(|| perform(StartBarrier(theirs), body)));
                exit(i32::from(!matches!(done, Ok(Ok(())))))
            }
            pid => {
                let pid = Pid::from_raw(pid).filter(|pid| !pid.as_raw_nonzero().get().is_negative());
                let pid = pid.ok_or_else(io::Error::last_os_error)?;
                Ok(Self { pid, pipe })
            }
        }
    }

    /// Waits until the child has reported readiness at its barrier.
    pub(crate) fn wait_ready(&mut self, timeout: Duration) -> Result<(), JobMessage> {
        self.wait_at_most(timeout)?;
        let mut first = [0];
        self.pipe.read_exact(&mut first).map_err(lost)?;
        if first == READY {
            return Ok(());
        }
        self.read(first.to_vec())?;
        Err(failed(
            "a client process has sent its result before it was started",
        ))
    }

    /// Releases the child from its barrier.
    pub(crate) fn start(&mut self) -> Result<(), JobMessage> {
        self.pipe.write_all(&READY).map_err(lost)
    }

    /// Waits until the child process has finished its measurement, and returns the times of its transactions.
    pub(crate) fn result(&mut self, timeout: Duration) -> Result<LatencySamples, JobMessage> {
        self.wait_at_most(timeout)?;
        self.read(Vec::new())
    }

    /// Reads the remaining bytes of the child's result, whose first bytes are `begun`, and parses it.
    fn read(&mut self, mut begun: Vec<u8>) -> Result<LatencySamples, JobMessage> {
        self.pipe.read_to_end(&mut begun).map_err(lost)?;
        serde_json::from_slice(&begun).map_err(|_| failed("a client process ended without a result"))?
    }

    fn wait_at_most(&self, limit: Duration) -> Result<(), JobMessage> {
        self.pipe.set_read_timeout(Some(limit + GRACE)).map_err(failed)
    }
}

/// The byte by which a child reports readiness. No result, which is JSON, begins with it.
const READY: [u8; 1] = *b"\n";

/// Time beyond the timeout in which a child ends its waits itself, unless it hangs.
const GRACE: Duration = Duration::from_millis(500);

fn lost(error: io::Error) -> JobMessage {
    match error.kind() {
        io::ErrorKind::WouldBlock => stalled_or_failed(&error, 0),
        _ => failed("a client process ended without a result"),
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // The process id cannot have been reused: the child was not waited for.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

impl StartBarrier {
    /// Reports readiness to the parent, and waits until the parent releases all children.
    pub(crate) fn wait(&mut self) -> Result<(), JobMessage> {
        let barrier = self
            .0
            .write_all(&READY)
            .and_then(|()| self.0.read_exact(&mut [0]));
        barrier.map_err(failed)
    }
}

fn perform(
    mut barrier: StartBarrier,
    body: impl FnOnce(&mut StartBarrier) -> Result<LatencySamples, JobMessage>,
) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let result = body(&mut barrier);
    barrier.0.write_all(&serde_json::to_vec(&result)?)
}
