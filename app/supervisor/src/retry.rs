//! What the kernel could not say for want of memory is asked again a second later; until then, what was known holds.

use std::io;
use std::time::{Duration, Instant};

/// When to ask again, if the last time came to nothing.
#[derive(Debug, Default)]
pub(crate) struct Again(Option<Instant>);

impl Again {
    /// How soon.
    const PAUSE: Duration = Duration::from_secs(1);

    /// What the kernel said of `what`; nothing where it may say so later. The first failure in a row is told.
    ///
    /// # Errors
    /// One that time does not mend.
    pub(crate) fn unless_short<T>(&mut self, what: &str, said: io::Result<T>) -> io::Result<Option<T>> {
        match said {
            Ok(said) => {
                self.0 = None;
                Ok(Some(said))
            }
            Err(error) if passes(&error) => {
                if self.0.is_none() {
                    tracing::warn!("cannot read {what} now, and tries again every second: {error}");
                }
                self.0 = Some(Instant::now() + Self::PAUSE);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// When to ask again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0
    }

    /// Whether the last time came to nothing. Whatever was asked may have left parts of an answer behind.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it is time.
    pub(crate) fn is_due(&self) -> bool {
        self.0.is_some_and(|due| due <= Instant::now())
    }
}

/// Whether the error is about what is short now. `EBUSY` is rtnetlink's while it is still at an earlier list. An answer that
/// did not come was lost for want of room.
fn passes(error: &io::Error) -> bool {
    const SHORT: [i32; 6] = [
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EMFILE,
        libc::ENFILE,
        libc::EBUSY,
        libc::EINTR,
    ];
    error.kind() == io::ErrorKind::TimedOut
        || error.raw_os_error().is_some_and(|errno| SHORT.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_short_is_waited_for() {
        let mut again = Again::default();
        let mut says = |errno: Option<i32>| {
            let said = errno.map_or(Ok(7), |errno| Err(io::Error::from_raw_os_error(errno)));
            let heard = again.unless_short("the test", said);
            (heard.map_err(|error| error.raw_os_error()), again.is_pending())
        };
        assert_eq!(says(None), (Ok(Some(7)), false));
        assert_eq!(says(Some(libc::ENOBUFS)), (Ok(None), true));
        assert_eq!(says(Some(libc::ENOMEM)), (Ok(None), true));
        assert_eq!(says(None), (Ok(Some(7)), false));
        assert_eq!(says(Some(libc::EPERM)), (Err(Some(libc::EPERM)), false));
    }
}
