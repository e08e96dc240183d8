//! Descriptors that whoever started us left open for us, by number.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::error::Error;

/// Takes a descriptor over. Call it once for each, before any descriptor is made. `option` is where its number was given,
/// and `advice` what to try where there is none: `N` in it stands for the number.
///
/// # Errors
/// There is no such descriptor, or it is one of the first three.
pub(crate) fn take_over(number: RawFd, option: &str, advice: &str) -> Result<OwnedFd, Error> {
    let cannot = |error: &io::Error| {
        let what = format_args!("cannot use descriptor {number} for {option}");
        Error::io(what, error).advise(advice.replace('N', &number.to_string()))
    };
    if number <= 2 {
        return Err(Error::new(format!("{option} {number}: 0, 1 and 2 are the command's")).with_status(2));
    }
    // SAFETY: a number that is no open descriptor is what F_GETFD is asked about; it changes nothing.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(borrowed).map_err(|error| cannot(&error.into()))?;
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).map_err(|error| cannot(&error.into()))?;
    // SAFETY: it is open, and whoever started us handed it over for this; nothing else here uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
