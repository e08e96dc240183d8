//! Calls of C programs: results as codes, texts of errors, and panics that do not leave the library.

use core::ffi::{c_char, c_int};
use std::cell::RefCell;
use std::ffi::CString;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pontoon::{Error, ErrorKind};

/// An argument or option is invalid, or contradicts another one or the host's network.
pub const PONTOON_ERROR_INVALID: c_int = -1;
/// The host refuses an operation: a port is in use or not permitted, or no descriptor, memory or thread is available.
pub const PONTOON_ERROR_HOST: c_int = -2;
/// The network has ended: its guest has disconnected for good, or the engine has failed.
pub const PONTOON_ERROR_ENDED: c_int = -3;
/// There is nothing to take, or no room: the descriptor becomes ready when there is.
pub const PONTOON_ERROR_AGAIN: c_int = -4;
/// A fault of the library, which must not be used any more.
pub const PONTOON_ERROR_INTERNAL: c_int = -5;

thread_local! {
    /// Text of the last failure in this thread.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Failure of a call: its code and text.
#[derive(Debug)]
pub(crate) struct Failure {
    code: c_int,
    text: String,
}

impl Failure {
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(PONTOON_ERROR_INVALID, text)
    }

    pub(crate) fn again() -> Self {
        Self::new(PONTOON_ERROR_AGAIN, "there is nothing to take, or no room")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidOption => PONTOON_ERROR_INVALID,
            ErrorKind::Ended => PONTOON_ERROR_ENDED,
            ErrorKind::Panicked => PONTOON_ERROR_INTERNAL,
            _ => PONTOON_ERROR_HOST,
        };
        Self::new(code, error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::WouldBlock => PONTOON_ERROR_AGAIN,
            io::ErrorKind::InvalidInput => PONTOON_ERROR_INVALID,
            io::ErrorKind::BrokenPipe => PONTOON_ERROR_ENDED,
            _ => PONTOON_ERROR_HOST,
        };
        Self::new(code, error.to_string())
    }
}

/// Executes the body of a function, and returns its result or the code of a failure. A panic does not unwind into the caller.
pub(crate) fn call<T: From<c_int> + Default>(body: impl FnOnce() -> Result<T, Failure>) -> T {
    // A value that the body has left inconsistent is behind a lock, which is poisoned then.
    let result = catch_unwind(AssertUnwindSafe(body));
    match result {
        Ok(Ok(value)) => value,
        Ok(Err(Failure { code, text })) => {
            set_text(text);
            code.into()
        }
        Err(_) => {
            set_text("the library has panicked".to_owned());
            PONTOON_ERROR_INTERNAL.into()
        }
    }
}

fn set_text(text: String) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // During the destruction of a thread, the text is not kept.
    let _ = TEXT.try_with(|current| current.replace(text));
}

/// Returns the text of the last failure in the calling thread, in one line; empty if there was none. It is valid until the next
/// call of a function of the library in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn pontoon_error_text() -> *const c_char {
    TEXT.try_with(|text| text.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}
