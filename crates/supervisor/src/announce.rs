//! Says that the network stands: a descriptor (`--ready-fd`) and a file (`--pid-file`).

use std::fs;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

use pontoon_sys::timed_write::TimedWrite;

use crate::descriptor;
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
            ready: ready_fd
                .map(|number| descriptor::take_over(number, "--ready-fd", WITHOUT_READY))
                .transpose()?,
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
            fs::write(path, line()).context(format_args!("cannot write pid file {shown}"))?;
            self.written = true;
        }
        if let Some(ready) = self.ready.take()
            && let Err(error) = TimedWrite::new().and_then(|write| Ok(write.write(&ready, b"1\n")?))
        {
            tracing::debug!(%error, "nobody reads the ready descriptor");
        }
        Ok(())
    }
}

/// The file lives as long as the process that it names: one that names another instance by now is that one's.
impl Drop for Announcement {
    fn drop(&mut self) {
        if let (Some(path), true) = (&self.pid_file, self.written)
            && fs::read(path).is_ok_and(|text| text == line().as_bytes())
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// What the pid file says.
fn line() -> String {
    format!("{}\n", std::process::id())
}

/// What to try where there is no such descriptor.
const WITHOUT_READY: &str = "N>FILE or a pipe in the shell";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_file_goes_unless_it_is_of_another_instance() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let announced = || {
            let mut announcement = Announcement::new(None, Some(path.clone())).unwrap();
            announcement.announce().unwrap();
            announcement
        };
        let announcement = announced();
        assert_eq!(fs::read_to_string(&path).unwrap(), line());
        drop(announcement);
        assert!(!path.exists());

        let announcement = announced();
        fs::write(&path, "1\n").unwrap();
        drop(announcement);
        assert_eq!(fs::read(&path).unwrap(), b"1\n");
    }
}
