//! What ends a program that has something to put in order first, such as a terminal.

use std::io;

use crate::signals::Signals;

/// Signals that would end this process, collected instead.
#[derive(Debug)]
pub struct Ends(Signals);

impl Ends {
    /// Collects them from here on, for this thread and those that it starts.
    ///
    /// # Errors
    /// No descriptor.
    pub fn collect() -> io::Result<Self> {
        Signals::block_only(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]).map(Self)
    }

    /// Whether one has come.
    ///
    /// # Errors
    /// The kernel's.
    pub fn came(&self) -> io::Result<bool> {
        Ok(self.0.deadly()?.is_some())
    }
}
