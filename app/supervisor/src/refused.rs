//! Errors of sends to child processes.

use std::io;
use std::time::Duration;

/// The reason why a message was not sent, by remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Wait until the socket is writable.
    Full,
    /// Retry later: the host is short of memory, or this user has too many descriptors in flight.
    ForNow,
    /// None: the other end is closed.
    Gone,
    /// None: the message is invalid.
    Never,
}

impl Refused {
    /// Classifies the error of a send.
    pub(crate) fn why(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Self::Full,
            Some(libc::EPIPE | libc::ECONNRESET | libc::ECONNREFUSED | libc::ENOTCONN) => Self::Gone,
            // Without a number: refused before the kernel was asked.
            Some(libc::EMSGSIZE | libc::EINVAL | libc::EBADF) | None => Self::Never,
            Some(_) => Self::ForNow,
        }
    }
}

/// The time to a retry. A shortage on the host rarely ends sooner.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_a_closed_socket_are_classified_as_gone() {
        let why = |number| Refused::why(&io::Error::from_raw_os_error(number));
        for (number, refused) in [
            (libc::EAGAIN, Refused::Full),
            (libc::ENOBUFS, Refused::ForNow),
            (libc::ENOMEM, Refused::ForNow),
            (libc::ETOOMANYREFS, Refused::ForNow),
            (libc::EPIPE, Refused::Gone),
            (libc::ECONNRESET, Refused::Gone),
            (libc::EMSGSIZE, Refused::Never),
        ] {
            assert_eq!(why(number), refused, "{number}");
        }
        assert_eq!(Refused::why(&io::ErrorKind::InvalidInput.into()), Refused::Never);
    }
}
