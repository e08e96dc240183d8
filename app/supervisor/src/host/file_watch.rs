//! Changes of files, by one inotify(7) instance for all of them, as a user has 128 (`fs.inotify.max_user_instances`). Without
//! one, the files are checked once a second.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use pontoon_process::error::reason;
use pontoon_process::retry::Retry;
use rustix::fs::inotify;
use rustix::io::Errno;

/// The interval of checks without inotify.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An inotify instance, which is created when the first file is watched.
#[derive(Debug, Default)]
pub(crate) struct FileWatch {
    inotify: Option<OwnedFd>,
    /// The time of the last check, if an instance or a watch is missing.
    looked: Option<Instant>,
    again: Retry,
}

impl FileWatch {
    /// Watches a file or directory. Watching it once more changes nothing.
    ///
    /// # Errors
    /// Errors of the path. Exceeding the user's limits is not an error: the files are then checked at [`Self::deadline`].
    pub(crate) fn add(&mut self, place: &Path, events: inotify::WatchFlags) -> Result<(), Errno> {
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
        inotify::add_watch(inotify, place, events).map(drop)
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

    /// Returns the descriptor to poll for reading, if inotify works.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        let inotify = self.inotify.as_ref().filter(|_| !self.again.is_pending());
        inotify.map(AsFd::as_fd)
    }

    /// Returns the time to check the files if no event comes before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let look = self.looked.map(|looked| looked + LOOK_AGAIN);
        look.into_iter().chain(self.again.deadline()).min()
    }

    /// Reads all queued events; returns true if there was one. To be called before the files are read.
    ///
    /// # Errors
    /// inotify's, unless it is temporary.
    pub(crate) fn drain(&mut self) -> io::Result<bool> {
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
    /// Returns one without inotify.
    pub(crate) fn without_inotify() -> Self {
        Self {
            looked: Some(Instant::now()),
            ..Self::default()
        }
    }
}
