//! Watch of changes of files by a single inotify(7) instance, because a user has only 128
//! (`fs.inotify.max_user_instances`). Without inotify, the files are checked once a second.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use pontoon_process::error::reason;
use pontoon_process::retry::Retry;
use rustix::fs::inotify;
use rustix::io::Errno;

/// Interval of checks of the files without inotify.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Watch of files by inotify. The inotify instance is created when the first file is watched.
#[derive(Debug, Default)]
pub struct FileWatch {
    inotify: Option<OwnedFd>,
    /// Time of the last check of the files, if the inotify instance or a watch could not be created.
    looked: Option<Instant>,
    again: Retry,
}

impl FileWatch {
    /// Watches a file or directory for `events`, in addition to the events of earlier calls for the same file.
    ///
    /// # Errors
    /// The path cannot be watched. A limit of the user is not an error: the files are then checked at [`Self::deadline`].
    pub fn add(&mut self, place: &Path, events: inotify::WatchFlags) -> Result<(), Errno> {
        match self.try_add(place, events) {
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC)) => {
                self.look_instead(error);
                Ok(())
            }
            added => added,
        }
    }

    fn try_add(&mut self, place: &Path, events: inotify::WatchFlags) -> Result<(), Errno> {
        if self.looked.is_some() && self.inotify.is_none() {
            return Ok(());
        }
        let inotify = match self.inotify.take() {
            Some(inotify) => inotify,
            None => inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?,
        };
        let inotify = self.inotify.insert(inotify);
        inotify::add_watch(inotify, place, events | inotify::WatchFlags::MASK_ADD).map(drop)
    }

    fn look_instead(&mut self, error: Errno) {
        if self.looked.is_none() {
            let (what, advice) = match self.inotify {
                None => ("instance", "max_user_instances"),
                Some(_) => ("watch", "max_user_watches"),
            };
            tracing::warn!(
                "no inotify {what} ({}): checking files once per second (try: sysctl fs.inotify.{advice} with a higher value)",
                reason(&error.into())
            );
            self.looked = Some(Instant::now());
        }
    }

    /// Returns the inotify descriptor to poll for reading, if inotify is available.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let inotify = self.inotify.as_ref().filter(|_| !self.again.is_pending());
        inotify.map(AsFd::as_fd)
    }

    /// Returns the time to check the files if no event comes earlier.
    pub fn deadline(&self) -> Option<Instant> {
        let look = self.looked.map(|looked| looked + LOOK_AGAIN);
        look.into_iter().chain(self.again.deadline()).min()
    }

    /// Reads all queued events; returns true if there was one. It is called before the files are read, so that no change is
    /// missed.
    ///
    /// # Errors
    /// The read fails for a reason that is not temporary.
    pub fn drain(&mut self) -> io::Result<bool> {
        self.looked = self.looked.map(|_| Instant::now());
        let drained = self.inotify.as_ref().map_or(Ok(false), drain);
        let drained = self.again.unless_short("the events of files", drained)?;
        Ok(drained.unwrap_or(false))
    }
}

fn drain(inotify: &OwnedFd) -> io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut any = false;
    loop {
        match reader.next() {
            Ok(_) => any = true,
            Err(Errno::AGAIN) => return Ok(any),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
impl FileWatch {
    /// Returns a watch that checks the files once a second, without inotify.
    pub fn without_inotify() -> Self {
        Self {
            looked: Some(Instant::now()),
            ..Self::default()
        }
    }
}
