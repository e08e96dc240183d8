//! Says that the network stands: a descriptor (`--ready-fd`) and a file (`--pid-file`).

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use crate::error::{Context as _, Error};

/// Whom to tell.
#[derive(Debug)]
pub(crate) struct Announcement {
    ready: Option<OwnedFd>,
    pid_file: Option<PathBuf>,
    written: bool,
}

impl Announcement {
    /// Takes the descriptor over. Call it once, before any other descriptor is made.
    ///
    /// # Errors
    /// There is no such descriptor; there is no directory for the file.
    pub(crate) fn new(ready_fd: Option<RawFd>, pid_file: Option<PathBuf>) -> Result<Self, Error> {
        if let Some(directory) = pid_file.as_ref().and_then(|path| path.parent())
            && !directory.as_os_str().is_empty()
            && !directory.is_dir()
        {
            return Err(Error::new(format!(
                "no directory {} for the pid file",
                directory.display()
            )));
        }
        Ok(Self {
            ready: ready_fd.map(take_over).transpose()?,
            pid_file,
            written: false,
        })
    }

    /// The network stands.
    ///
    /// # Errors
    /// The file cannot be written. A reader that has gone away is no error.
    pub(crate) fn announce(&mut self) -> Result<(), Error> {
        if let Some(path) = &self.pid_file {
            let shown = path.display();
            fs::write(path, format!("{}\n", std::process::id()))
                .context(format_args!("cannot write pid file {shown}"))?;
            self.written = true;
        }
        if let Some(ready) = self.ready.take()
            && let Err(error) = rustix::io::write(&ready, b"1\n")
        {
            tracing::debug!(%error, "nobody reads the ready descriptor");
        }
        Ok(())
    }
}

/// The file lives as long as the process that it names.
impl Drop for Announcement {
    fn drop(&mut self) {
        if let (Some(path), true) = (&self.pid_file, self.written) {
            let _ = fs::remove_file(path);
        }
    }
}

fn take_over(number: RawFd) -> Result<OwnedFd, Error> {
    let cannot = |error: &io::Error| {
        Error::io(
            format_args!("cannot use descriptor {number} for --ready-fd"),
            error,
        )
        .advise(format!("{number}>FILE or a pipe in the shell"))
    };
    if number <= 2 {
        return Err(Error::new(format!("--ready-fd {number}: 0, 1 and 2 are the command's")).with_status(2));
    }
    // SAFETY: a number that is no open descriptor is what F_GETFD is asked about; it changes nothing.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(borrowed).map_err(|error| cannot(&error.into()))?;
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).map_err(|error| cannot(&error.into()))?;
    // SAFETY: it is open, and whoever started us handed it over for this; nothing else here uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
