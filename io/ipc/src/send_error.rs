//! Errors of sends to another process, classified by their remedy.

use std::io;
use std::time::Duration;

/// Reason why a message could not be sent, by the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The socket's buffer is full: the sender waits until the socket is writable.
    Full,
    /// The host has no memory, or this user has too many descriptors in flight: the sender retries later.
    Temporary,
    /// The other end of the socket is closed.
    Closed,
    /// The message is invalid, and is dropped.
    Invalid,
}

impl SendError {
    /// Classifies the error of a send.
    pub(crate) fn classify(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Self::Full,
            Some(libc::EPIPE | libc::ECONNRESET | libc::ECONNREFUSED | libc::ENOTCONN) => Self::Closed,
            // An error without a number was returned before the system call.
            Some(libc::EMSGSIZE | libc::EINVAL | libc::EBADF) | None => Self::Invalid,
            Some(_) => Self::Temporary,
        }
    }
}

/// Delay of a retry. A lack of resources on the host rarely ends sooner.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_a_closed_socket_are_classified_as_closed() {
        let classify = |number| SendError::classify(&io::Error::from_raw_os_error(number));
        for (number, error) in [
            (libc::EAGAIN, SendError::Full),
            (libc::ENOBUFS, SendError::Temporary),
            (libc::ENOMEM, SendError::Temporary),
            (libc::ETOOMANYREFS, SendError::Temporary),
            (libc::EPIPE, SendError::Closed),
            (libc::ECONNRESET, SendError::Closed),
            (libc::EMSGSIZE, SendError::Invalid),
        ] {
            assert_eq!(classify(number), error, "{number}");
        }
        let invalid = io::ErrorKind::InvalidInput.into();
        assert_eq!(SendError::classify(&invalid), SendError::Invalid);
    }
}
