//! Notification that the network is ready: a descriptor (`--ready-fd`) and a file (`--pid-file`).

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use pontoon_sys::timed_write::TimedWrite;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::descriptor;
use crate::error::{Context as _, Error};
use crate::file;

/// Descriptor of `--ready-fd` and file of `--pid-file`, which are written when the network is ready.
#[derive(Debug)]
pub struct ReadyNotifier {
    ready: Option<OwnedFd>,
    pid_file: Option<PidFile>,
    written: bool,
}

/// File of `--pid-file`.
#[derive(Clone, Debug)]
pub struct PidFile {
    /// Path of the file.
    pub path: PathBuf,
    /// True if the file stays when the process ends.
    pub keep: bool,
}

impl ReadyNotifier {
    /// Creates a notifier that owns the descriptor `ready` of [`Self::take_over`].
    ///
    /// # Errors
    /// The directory of the pid file does not exist.
    pub fn new(ready: Option<OwnedFd>, pid_file: Option<PidFile>) -> Result<Self, Error> {
        if let Some(directory) = pid_file.as_ref().and_then(|file| file.path.parent())
            && !directory.as_os_str().is_empty()
            && !directory.is_dir()
        {
            return Err(Error::new(format!(
                "the directory {} of the pid file does not exist",
                directory.display()
            )));
        }
        Ok(Self {
            ready,
            pid_file,
            written: false,
        })
    }

    /// Takes ownership of the descriptor with the number of `--ready-fd`.
    ///
    /// # Errors
    /// The descriptor is not open.
    ///
    /// # Safety
    /// Same as [`descriptor::take_over`].
    pub unsafe fn take_over(ready_fd: Option<RawFd>) -> Result<Option<OwnedFd>, Error> {
        // SAFETY: the caller ensures the conditions of `descriptor::take_over`, which are those of this function.
        let take_over = |number| unsafe { descriptor::take_over(number, "--ready-fd", WITHOUT_READY) };
        ready_fd.map(take_over).transpose()
    }

    /// Writes the pid file, then a line to the ready descriptor.
    ///
    /// # Errors
    /// The pid file cannot be written. A ready descriptor without a reader is not an error.
    pub fn notify(&mut self) -> Result<(), Error> {
        if let Some(PidFile { path, .. }) = &self.pid_file {
            let shown = path.display();
            let write = || file::open_to_write(path, 0o644)?.write_all(line().as_bytes());
            write().context(format_args!("cannot write pid file {shown}"))?;
            self.written = true;
        }
        if let Some(ready) = self.ready.take()
            && let Err(error) = write_ready(&ready, TimedWrite::new())
        {
            tracing::debug!(%error, "cannot write to the ready descriptor");
        }
        Ok(())
    }
}

/// Writes to the ready descriptor. Without a timer (`timer_create` fails with EAGAIN at `RLIMIT_SIGPENDING`) the write could
/// block only if another process filled the descriptor after poll(2).
fn write_ready(ready: &OwnedFd, timer: io::Result<TimedWrite>) -> Result<(), Errno> {
    const READY: &[u8] = b"1\n";
    if let Ok(timer) = timer {
        timer.write(ready, READY)?;
        return Ok(());
    }
    if poll(
        &mut [PollFd::new(ready, PollFlags::OUT)],
        Some(&Timespec::default()),
    )? == 0
    {
        return Err(Errno::AGAIN);
    }
    rustix::io::write(ready, READY)?;
    Ok(())
}

/// Removes the pid file, unless it is to stay or another instance has replaced it.
impl Drop for ReadyNotifier {
    fn drop(&mut self) {
        if let (Some(PidFile { path, keep: false }), true) = (&self.pid_file, self.written)
            && names_us(path).unwrap_or(false)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns true if the pid file at `path` contains the id of this process.
fn names_us(path: &Path) -> io::Result<bool> {
    let mut text = String::new();
    let longest = line().len() as u64 + 1;
    file::open_to_read(path)?
        .take(longest)
        .read_to_string(&mut text)?;
    Ok(text == line())
}

/// Returns the content of the pid file: the id of this process, and a newline.
fn line() -> String {
    format!("{}\n", std::process::id())
}

/// Advice for the option `--ready-fd` with a descriptor that is not open.
const WITHOUT_READY: &str = "N>FILE or a pipe in the shell";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    fn pid_file(path: &Path, keep: bool) -> Option<PidFile> {
        let path = path.to_owned();
        Some(PidFile { path, keep })
    }

    #[test]
    fn ready_is_written_without_a_timer_unless_there_is_no_room() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        // The read must fail the test instead of blocking it if nothing was written.
        rustix::io::ioctl_fionbio(&read, true).unwrap();
        let no_timer = || Err(io::Error::from(Errno::AGAIN));
        assert_eq!(write_ready(&write, no_timer()), Ok(()));
        let mut buffer = [0; 8];
        assert_eq!(rustix::io::read(&read, &mut buffer), Ok(2));
        assert_eq!(&buffer[..2], b"1\n");
        rustix::io::ioctl_fionbio(&write, true).unwrap();
        while rustix::io::write(&write, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&write, false).unwrap();
        // The write runs on another thread, so that it cannot block the test.
        let (done, result) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(write_ready(&write, no_timer())));
        let result = result.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(result, Ok(Err(Errno::AGAIN)));
    }

    #[test]
    fn the_pid_file_is_removed_unless_it_is_kept_or_names_another_instance() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let notified = |keep| {
            let mut notifier = ReadyNotifier::new(None, pid_file(&path, keep)).unwrap();
            notifier.notify().unwrap();
            notifier
        };
        let notifier = notified(false);
        assert_eq!(fs::read_to_string(&path).unwrap(), line());
        drop(notifier);
        assert!(!path.exists());

        let notifier = notified(false);
        fs::write(&path, "1\n").unwrap();
        drop(notifier);
        assert_eq!(fs::read(&path).unwrap(), b"1\n");

        drop(notified(true));
        assert_eq!(fs::read_to_string(&path).unwrap(), line());
    }

    #[test]
    fn the_pid_file_is_not_written_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        fs::write(&target, "precious").unwrap();
        let path = directory.path().join("pid");
        for link in [symlink::<&Path, &Path>, fs::hard_link::<&Path, &Path>] {
            link(&target, &path).unwrap();
            let error = ReadyNotifier::new(None, pid_file(&path, false))
                .unwrap()
                .notify()
                .unwrap_err();
            let wanted = format!("cannot write pid file {}: it ", path.display());
            assert!(error.to_string().starts_with(&wanted), "{error}");
            assert_eq!(fs::read(&target).unwrap(), b"precious");
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn drop_does_not_block_on_a_pipe_in_place_of_the_pid_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let mut notifier = ReadyNotifier::new(None, pid_file(&path, false)).unwrap();
        notifier.notify().unwrap();
        fs::remove_file(&path).unwrap();
        mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(notifier);
            done.send(()).unwrap();
        });
        ended.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
        assert!(path.exists());
    }
}
