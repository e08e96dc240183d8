//! Messages to processes of ours that the kernel does not take.

use std::io;
use std::time::Duration;

/// Why a message was not sent, by what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// To wait until the socket is writable.
    Full,
    /// To wait: the host is short of memory, or this user has too many descriptors on their way.
    ForNow,
    /// Nothing: the other end is closed.
    Gone,
    /// Nothing: there can be no such message.
    Never,
}

impl Refused {
    /// Reads the error of a send.
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

/// What the host is short of does not come back sooner.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_end_is_taken_for_a_dead_process() {
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
