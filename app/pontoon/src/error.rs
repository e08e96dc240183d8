//! Errors of the library.

use std::fmt;
use std::io;

use pontoon_host_network::publish::PortRefusal;

/// Failure of an operation, with its kind and one line of text.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    text: String,
    source: Option<io::Error>,
}

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option cannot be parsed, or contradicts another one or the host's network.
    InvalidOption,
    /// The host refuses an operation: a port is in use or not permitted, or no descriptor, memory or thread is available.
    Host,
    /// The engine has ended: its guest has disconnected for good, or it has failed.
    Ended,
    /// A function of the program has panicked.
    Panicked,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
            source: None,
        }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidOption, text)
    }

    pub(crate) fn ended() -> Self {
        Self::new(ErrorKind::Ended, "the engine has ended")
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::InvalidOption => io::ErrorKind::InvalidInput,
            ErrorKind::Ended => io::ErrorKind::BrokenPipe,
            ErrorKind::Host | ErrorKind::Panicked => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Extension of results of system calls, which names the operation that failed.
pub(crate) trait Context<T> {
    /// Converts the host's error into an [`Error`] of the kind [`ErrorKind::Host`] that begins with `what`.
    fn context(self, what: &str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: &str) -> Result<T, Error> {
        self.map_err(|error| {
            let error = error.into();
            let kind = match error.kind() {
                io::ErrorKind::InvalidInput => ErrorKind::InvalidOption,
                _ => ErrorKind::Host,
            };
            Error {
                kind,
                text: format!("{what}: {error}"),
                source: Some(error),
            }
        })
    }
}

/// Errors of the code that the library shares with the command line.
impl Error {
    pub(crate) fn of_ports(refusal: PortRefusal) -> Self {
        let kind = match refusal {
            PortRefusal::Wrong(_) => ErrorKind::InvalidOption,
            PortRefusal::InUse(_) | PortRefusal::Conflict(_) => ErrorKind::Host,
        };
        Self::new(kind, pontoon_process::Error::from(refusal).parts().0)
    }

    /// Returns an error about options.
    pub(crate) fn of_options(error: &pontoon_process::Error) -> Self {
        Self::invalid(error.parts().0)
    }
}
