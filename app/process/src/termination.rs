//! Termination signals of a program that must restore state before it exits, such as a terminal.

use std::io;

use crate::signals::Signals;

/// Signals that would terminate this process. They are blocked and queued instead.
#[derive(Debug)]
pub struct TerminationSignals(Signals);

impl TerminationSignals {
    /// Blocks the signals in this thread and in those that it starts.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn collect() -> io::Result<Self> {
        Signals::block_only(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]).map(Self)
    }

    /// Returns true if one was received.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_pending(&self) -> io::Result<bool> {
        Ok(self.0.fatal()?.is_some())
    }
}
