//! Termination signals of a program that must restore state before it exits, such as the modes of a terminal.

use std::io;

use crate::signals::Signals;

/// Signals that would terminate this process. They are blocked, and received from a signalfd instead.
#[derive(Debug)]
pub struct TerminationSignals(Signals);

impl TerminationSignals {
    /// Blocks the termination signals in this thread and in the threads that it starts.
    ///
    /// # Errors
    /// No free descriptor.
    pub fn collect() -> io::Result<Self> {
        Signals::block_only(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]).map(Self)
    }

    /// Returns true if a termination signal has been received.
    ///
    /// # Errors
    /// The kernel refuses the read of the signalfd.
    pub fn is_pending(&self) -> io::Result<bool> {
        Ok(self.0.fatal()?.is_some())
    }
}
