//! The process that writes the audit file.
//!
//! A write to a file does not return while its file system does not respond: it is frozen, or the server of a network file system
//! is gone. Such a write must not block the supervisor, and with a thread for it the supervisor could not fork engines. So records
//! are written by a process of its own, which receives them by a pipe, and returns errors by another one, a line for each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pontoon_process::child::spawn::{self, Child};
use pontoon_process::child::stdio;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::audit_file::AuditFile;

/// The writing process, as the supervisor sees it. Dropping this value lets the process write what it has received, and exit.
#[derive(Debug)]
pub(super) struct AuditWriter {
    process: WriterProcess,
    /// Non-blocking writing end of the pipe of the records.
    records: Rc<OwnedFd>,
    errors: ErrorPipe,
}

#[derive(Debug)]
enum WriterProcess {
    Forked(Child),
    /// A thread, because a test has several threads and cannot fork.
    #[cfg(test)]
    Thread(std::thread::JoinHandle<u8>),
}

/// The supervisor's end of the pipe of the errors.
#[derive(Debug)]
struct ErrorPipe {
    /// Non-blocking. The other end is closed when the process exits.
    pipe: Rc<OwnedFd>,
    /// Bytes of a line whose end was not received.
    begun: Vec<u8>,
}

/// The writer's ends of both pipes, which are blocking for records and non-blocking for errors.
#[derive(Debug)]
struct WriterEnds {
    records: OwnedFd,
    errors: OwnedFd,
}

/// Time between two attempts to write after an error.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Size of one read of records, in bytes: the default capacity of a pipe.
const CHUNK: usize = 64 << 10;

/// Limit on the length of an error in bytes. A pipe does not divide a write of this length (pipe(7)).
const LONGEST_ERROR: usize = 512;

impl AuditWriter {
    /// Forks the process that writes `file`.
    ///
    /// # Errors
    /// No free descriptor, no memory, or too many processes.
    pub(super) fn start(file: AuditFile) -> io::Result<Self> {
        let (records, errors, ends) = pipes()?;
        let child = spawn::fork(|| match isolate(&file, &ends) {
            Ok(()) => run(file, &ends),
            Err(_) => 1,
        })?;
        Ok(Self {
            process: WriterProcess::Forked(child),
            records,
            errors,
        })
    }

    /// Writes `file` by a thread.
    #[cfg(test)]
    pub(super) fn start_thread(file: AuditFile) -> io::Result<Self> {
        let (writer, held) = testing::HeldWriter::start(file)?;
        held.release();
        Ok(writer)
    }

    /// Returns the pipe of the records, to be polled for writing while records wait for room in it.
    pub(super) fn records(&self) -> Rc<OwnedFd> {
        self.records.clone()
    }

    /// Returns the pipe of the errors, to be polled for reading.
    pub(super) fn errors(&self) -> Rc<OwnedFd> {
        self.errors.pipe.clone()
    }

    /// Writes some bytes of the text of the records to the pipe, and returns their number.
    ///
    /// # Errors
    /// `AGAIN` if the pipe has no room; `PIPE` if the process has exited.
    pub(super) fn write(&self, text: &[u8]) -> Result<usize, Errno> {
        rustix::io::retry_on_intr(|| rustix::io::write(&self.records, text))
    }

    /// Waits until the pipe of the records has room, for `most` at most; returns true if it has.
    pub(super) fn has_room_within(&self, most: Duration) -> bool {
        is_ready(self.records.as_fd(), PollFlags::OUT, most)
    }

    /// Passes the errors of the process to `each`. Returns true if the process has exited.
    pub(super) fn read_errors(&mut self, each: impl FnMut(&str)) -> bool {
        self.errors.read(each)
    }

    /// Closes the pipe of the records. The process then writes what it has received, and exits, for which this function waits
    /// until the time `until`. Passes its errors to `each`, and returns true if it has exited.
    pub(super) fn finish(self, until: Instant, mut each: impl FnMut(&str)) -> bool {
        let Self {
            process,
            records,
            mut errors,
        } = self;
        drop(records);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !is_ready(errors.pipe.as_fd(), PollFlags::IN, left) {
                return false;
            }
            if errors.read(&mut each) {
                return process.exits_within(until.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Reaps the process, if it has exited within `most`. The exit takes long if the file system does not respond to close(2).
    pub(super) fn reap(self, most: Duration) {
        self.process.exits_within(most);
    }
}

impl WriterProcess {
    fn exits_within(self, most: Duration) -> bool {
        match self {
            Self::Forked(child) => {
                let exits = is_ready(child.fd(), PollFlags::IN, most);
                if exits {
                    let _ = child.wait();
                }
                exits
            }
            #[cfg(test)]
            Self::Thread(thread) => thread.join().is_ok(),
        }
    }
}

impl ErrorPipe {
    fn read(&mut self, mut each: impl FnMut(&str)) -> bool {
        let mut buffer = [0; 4096];
        let has_exited = match rustix::io::read(&self.pipe, &mut buffer) {
            Ok(len) => {
                self.begun.extend_from_slice(&buffer[..len]);
                len == 0
            }
            Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
        };
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            each(String::from_utf8_lossy(&line).trim_end());
        }
        has_exited
    }
}

/// Creates both pipes: the supervisor's ends, and the writer's.
fn pipes() -> io::Result<(Rc<OwnedFd>, ErrorPipe, WriterEnds)> {
    let (theirs, records) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&records, true)?;
    let (pipe, errors) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let pipe = ErrorPipe {
        pipe: Rc::new(pipe),
        begun: Vec::new(),
    };
    let ends = WriterEnds {
        records: theirs,
        errors,
    };
    Ok((Rc::new(records), pipe, ends))
}

/// Prepares the child process, which has the blocked signals of the supervisor: it exits when the supervisor has exited and
/// everything is written.
fn isolate(file: &AuditFile, ends: &WriterEnds) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"pontoon-audit");
    let keep = [ends.records.as_fd(), ends.errors.as_fd()];
    spawn::close_all_but(&keep.into_iter().chain(file.descriptor()).collect::<Vec<_>>())?;
    // This process may outlive the supervisor, whose caller waits until all copies of its standard error are closed.
    stdio::leave_all_to_the_command()?;
    super::ignore_file_size_signal();
    Ok(())
}

/// Writes records until the pipe ends; returns the exit status. While the file cannot be written, no records are read, so that
/// the supervisor notices by the full pipe.
fn run(mut file: AuditFile, ends: &WriterEnds) -> u8 {
    let mut buffer = vec![0; CHUNK];
    loop {
        let Ok(len) = rustix::io::retry_on_intr(|| rustix::io::read(&ends.records, &mut buffer)) else {
            return 1;
        };
        file.push(&buffer[..len]);
        while let Err(error) = file.write() {
            report(&ends.errors, &error);
            let ended = is_ready(ends.records.as_fd(), PollFlags::empty(), RETRY);
            if ended && file.write().is_err() {
                return 1;
            }
        }
        if len == 0 {
            return 0;
        }
    }
}

/// Sends an error to the supervisor, unless the pipe is full.
fn report(errors: &OwnedFd, error: &io::Error) {
    let text = error.to_string();
    // The standard library appends the number of the error, which is removed.
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut line = text.replace('\n', " ");
    line.truncate(line.floor_char_boundary(LONGEST_ERROR - 1));
    line.push('\n');
    let _ = rustix::io::write(errors, line.as_bytes());
}

/// Waits for `events`, or the end of the other process, on a descriptor for `most` at most; returns true if one has happened.
fn is_ready(fd: BorrowedFd<'_>, events: PollFlags, most: Duration) -> bool {
    let until = Instant::now() + most;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        match poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::sync::mpsc;

    use super::*;

    /// Writer that reads nothing until it is released. Dropping this value ends it.
    #[derive(Debug)]
    pub(in super::super) struct HeldWriter(mpsc::Sender<()>);

    impl HeldWriter {
        /// Starts the thread of a writer of `file`.
        pub(in super::super) fn start(file: AuditFile) -> io::Result<(AuditWriter, Self)> {
            let (go, released) = mpsc::channel();
            let (records, errors, ends) = pipes()?;
            let thread = std::thread::spawn(move || match released.recv() {
                Ok(()) => run(file, &ends),
                Err(_) => 1,
            });
            let writer = AuditWriter {
                process: WriterProcess::Thread(thread),
                records,
                errors,
            };
            Ok((writer, Self(go)))
        }

        /// Lets the writer read and write.
        pub(in super::super) fn release(self) {
            self.0.send(()).unwrap();
        }
    }
}
