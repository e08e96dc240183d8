//! Retries of kernel queries that failed for lack of memory or descriptors. The result of the last successful query stays
//! valid until a retry succeeds.

use std::io;
use std::time::{Duration, Instant};

/// Time of the retry of a kernel query, if the last query failed.
#[derive(Debug, Default)]
pub struct Retry(Option<Instant>);

impl Retry {
    /// Time between two retries of a query.
    const PAUSE: Duration = Duration::from_secs(1);

    /// Returns the result of a query for `what`, or `None` if the query failed for a temporary reason and is to be retried.
    /// The first of several consecutive failures is logged.
    ///
    /// # Errors
    /// The failure is not temporary.
    pub fn unless_short<T>(&mut self, what: &str, result: io::Result<T>) -> io::Result<Option<T>> {
        match result {
            Ok(reply) => {
                self.0 = None;
                Ok(Some(reply))
            }
            Err(error) if passes(&error) => {
                if self.0.is_none() {
                    tracing::warn!("cannot read {what}, retrying every second: {error}");
                }
                self.0 = Some(Instant::now() + Self::PAUSE);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the time of the retry, if the last query failed.
    pub fn deadline(&self) -> Option<Instant> {
        self.0
    }

    /// Returns true if the last query failed. Parts of its reply may be unread.
    pub fn is_pending(&self) -> bool {
        self.0.is_some()
    }

    /// Returns true if the time of the retry has come.
    pub fn is_due(&self) -> bool {
        self.0.is_some_and(|due| due <= Instant::now())
    }
}

/// Returns true if the error is a temporary lack of resources. rtnetlink returns `EBUSY` while an earlier dump runs. A
/// timeout means that the kernel dropped the reply for lack of socket buffer.
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
    fn only_temporary_errors_are_retried() {
        let mut again = Retry::default();
        let mut query = |errno: Option<i32>| {
            let result = errno.map_or(Ok(7), |errno| Err(io::Error::from_raw_os_error(errno)));
            let result = again.unless_short("the test", result);
            (result.map_err(|error| error.raw_os_error()), again.is_pending())
        };
        assert_eq!(query(None), (Ok(Some(7)), false));
        assert_eq!(query(Some(libc::ENOBUFS)), (Ok(None), true));
        assert_eq!(query(Some(libc::ENOMEM)), (Ok(None), true));
        assert_eq!(query(None), (Ok(Some(7)), false));
        assert_eq!(query(Some(libc::EPERM)), (Err(Some(libc::EPERM)), false));
    }
}
