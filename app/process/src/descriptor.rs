//! Descriptors inherited from the parent process, by number, and the limit on descriptors.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::Error;

/// Takes ownership of a descriptor. To be called once for each, before any descriptor is opened. `option` is the option that
/// names it, and `advice` the advice if it is not open; `N` in the advice is replaced by the number.
///
/// # Errors
/// It is not open, or is one of the first three.
pub fn take_over(number: RawFd, option: &str, advice: &str) -> Result<OwnedFd, Error> {
    let cannot = |error: &io::Error| {
        let what = format_args!("cannot use descriptor {number} for {option}");
        Error::io(what, error).advise(advice.replace('N', &number.to_string()))
    };
    if number <= 2 {
        return Err(Error::new(format!(
            "{option} {number}: descriptors 0, 1 and 2 are reserved for the command"
        ))
        .with_status(2));
    }
    // SAFETY: F_GETFD changes nothing, and reports if the number is not an open descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(borrowed).map_err(|error| cannot(&error.into()))?;
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).map_err(|error| cannot(&error.into()))?;
    // SAFETY: it is open, the parent process passed it for this use, and nothing else in this process uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Raises the soft descriptor limit to the hard one, and returns the previous limits.
pub fn raise_limit() -> Rlimit {
    let was = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: was.maximum,
        maximum: was.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "descriptor limit not raised");
    }
    was
}
