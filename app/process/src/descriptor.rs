//! Descriptors inherited from the parent process, by number, and the limit on descriptors.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit, getppid, getrlimit, setrlimit};

use crate::error::{Error, reason};
use crate::fix::Fix;

/// Takes ownership of a descriptor that this process has inherited from its parent. Errors name `option`, the command-line
/// option with the descriptor's number, and give `advice` if the descriptor is not open; `N` in the advice is replaced by
/// the number.
///
/// # Errors
/// The descriptor is not open, or is 0, 1 or 2.
///
/// # Safety
/// No value in this process owns the descriptor, and this function is called once for each number. Both hold if it is
/// called before the process opens its first descriptor, which could receive that number.
pub unsafe fn take_over(number: RawFd, option: &str, advice: &str) -> Result<OwnedFd, Error> {
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
    // SAFETY: it is open, and no other value in this process owns it, which the caller ensures.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Hard limit on descriptors that [`more`] sets: room for the largest number of flows.
const ENOUGH: u32 = 262_144;

/// Returns the command that raises the limit on descriptors of the parent process (a shell), whose later children inherit it.
#[must_use]
pub fn more() -> Fix {
    let parent = getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
    Fix::root(format!("prlimit --pid {parent} --nofile={ENOUGH}:{ENOUGH}"))
}

/// Adds the command that raises the limit on descriptors to an error that the limit has caused. The error may be that of a
/// child process, of which only the text is known.
#[must_use]
pub fn explain_exhaustion(error: Error) -> Error {
    let exhausted = reason(&io::Error::from_raw_os_error(libc::EMFILE));
    match error.parts() {
        (what, None, _) if what.ends_with(&exhausted) => error.with_fix(&more()),
        _ => error,
    }
}

/// Raises the soft limit on descriptors (`RLIMIT_NOFILE`) to the hard one, and returns the previous limits.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_descriptors_have_a_fix() {
        let of = |number| Error::io("cannot make a pipe", &io::Error::from_raw_os_error(number));
        let text = explain_exhaustion(of(libc::EMFILE)).to_string();
        let begin = "cannot make a pipe: too many open files (try: as root: prlimit --pid ";
        assert!(
            text.starts_with(begin) && text.ends_with(" --nofile=262144:262144)"),
            "{text}"
        );
        assert_eq!(explain_exhaustion(of(libc::ENOMEM)), of(libc::ENOMEM));
        let advised = of(libc::EMFILE).advise("fewer ports");
        assert_eq!(explain_exhaustion(advised.clone()), advised);
    }
}
