//! Clients that are processes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::exit;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};

use crate::job::Word;

use super::latency::Sheet;
use super::{failed, stalled_or_failed};

/// A child at work. It dies with us.
pub(crate) struct Child {
    pid: Pid,
    pipe: UnixStream,
}

/// The child's end of the pipe.
pub(crate) struct Turn(UnixStream);

impl Child {
    /// Runs `body` in a child.
    ///
    /// # Errors
    /// No memory, too many processes, or more than one thread.
    pub(crate) fn new(body: impl FnOnce(&mut Turn) -> Result<Sheet, Word>) -> io::Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(io::Error::other(format!(
                "{threads} threads where there must be one"
            )));
        }
        let (pipe, theirs) = UnixStream::pair()?;
        // SAFETY: there is one thread, so the child's copy of memory holds no lock that nobody will release.
        match unsafe { libc::fork() } {
            0 => {
                // Nothing of the parent's that is further up the stack may run in the child.
                let done = catch_unwind(AssertUnwindSafe(|| perform(Turn(theirs), body)));
                exit(i32::from(!matches!(done, Ok(Ok(())))))
            }
            pid => {
                let pid = Pid::from_raw(pid).filter(|pid| !pid.as_raw_nonzero().get().is_negative());
                let pid = pid.ok_or_else(io::Error::last_os_error)?;
                Ok(Self { pid, pipe })
            }
        }
    }

    /// Waits until it is at its turn.
    pub(crate) fn wait_ready(&mut self, patience: Duration) -> Result<(), Word> {
        self.wait_at_most(patience)?;
        let mut first = [0];
        self.pipe.read_exact(&mut first).map_err(lost)?;
        if first == READY {
            return Ok(());
        }
        self.read(first.to_vec())?;
        Err(failed("a client process did not wait for its turn"))
    }

    /// Gives it its turn.
    pub(crate) fn start(&mut self) -> Result<(), Word> {
        self.pipe.write_all(&READY).map_err(lost)
    }

    /// What it measured.
    pub(crate) fn result(&mut self, patience: Duration) -> Result<Sheet, Word> {
        self.wait_at_most(patience)?;
        self.read(Vec::new())
    }

    /// The rest of the result, of which there is `begun`.
    fn read(&mut self, mut begun: Vec<u8>) -> Result<Sheet, Word> {
        self.pipe.read_to_end(&mut begun).map_err(lost)?;
        serde_json::from_slice(&begun).map_err(|_| failed("a client process died"))?
    }

    fn wait_at_most(&self, limit: Duration) -> Result<(), Word> {
        self.pipe.set_read_timeout(Some(limit + GRACE)).map_err(failed)
    }
}

/// What no result begins with.
const READY: [u8; 1] = *b"\n";

/// The child ends its waits by itself; this is for one that cannot.
const GRACE: Duration = Duration::from_millis(500);

fn lost(error: io::Error) -> Word {
    match error.kind() {
        io::ErrorKind::WouldBlock => stalled_or_failed(&error, 0),
        _ => failed("a client process died"),
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It cannot be another's id before it is waited for.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

impl Turn {
    /// Says that all is ready, and waits.
    pub(crate) fn wait(&mut self) -> Result<(), Word> {
        let turn = self
            .0
            .write_all(&READY)
            .and_then(|()| self.0.read_exact(&mut [0]));
        turn.map_err(failed)
    }
}

fn perform(mut turn: Turn, body: impl FnOnce(&mut Turn) -> Result<Sheet, Word>) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let result = body(&mut turn);
    turn.0.write_all(&serde_json::to_vec(&result)?)
}
