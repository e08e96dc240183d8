//! Errors of sends to child processes.

use std::io;
use std::time::Duration;

/// Error of a send to a child process, by remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Wait until the socket is writable.
    WouldBlock,
    /// Retry later: the host is short of memory, or this user has too many descriptors in flight.
    Temporary,
    /// None: the other end is closed.
    Closed,
    /// None: the message is invalid.
    Invalid,
}

impl SendError {
    /// Classifies the error of a send.
    pub fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Self::WouldBlock,
            Some(libc::EPIPE | libc::ECONNRESET | libc::ECONNREFUSED | libc::ENOTCONN) => Self::Closed,
            // Without a number: refused before the kernel was asked.
            Some(libc::EMSGSIZE | libc::EINVAL | libc::EBADF) | None => Self::Invalid,
            Some(_) => Self::Temporary,
        }
    }
}

/// The time to a retry. A shortage on the host rarely ends sooner.
pub const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_a_closed_socket_are_classified_as_closed() {
        let class = |number| SendError::of(&io::Error::from_raw_os_error(number));
        for (number, expected) in [
            (libc::EAGAIN, SendError::WouldBlock),
            (libc::ENOBUFS, SendError::Temporary),
            (libc::ENOMEM, SendError::Temporary),
            (libc::ETOOMANYREFS, SendError::Temporary),
            (libc::EPIPE, SendError::Closed),
            (libc::ECONNRESET, SendError::Closed),
            (libc::EMSGSIZE, SendError::Invalid),
        ] {
            assert_eq!(class(number), expected, "{number}");
        }
        assert_eq!(
            SendError::of(&io::ErrorKind::InvalidInput.into()),
            SendError::Invalid
        );
    }
}
