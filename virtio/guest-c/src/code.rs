//! Conversion of errors to the numbers of `enum pontoon_error`, and of numbers to the pacing.

use core::ffi::c_int;

use pontoon_guest::{Error, Pacing, QueueError};

pub(crate) const AGAIN: c_int = -1;
pub(crate) const LONG: c_int = -2;
pub(crate) const BROKEN: c_int = -3;
pub(crate) const GONE: c_int = -4;
pub(crate) const INVALID: c_int = -5;
#[cfg(target_os = "linux")]
pub(crate) const REFUSED: c_int = -6;

pub(crate) fn of(error: Error) -> c_int {
    match error {
        Error::Unmapped { .. } | Error::Layout(_) => INVALID,
        Error::Device(_) => BROKEN,
        Error::Gone(_) => GONE,
    }
}

pub(crate) fn of_queue(error: QueueError) -> c_int {
    match error {
        QueueError::Full => AGAIN,
        QueueError::Long { .. } => LONG,
        QueueError::Broken(error) => of(error),
    }
}

/// Converts a number of `enum pontoon_pacing`; `None` if it is invalid.
pub(crate) fn pacing(number: c_int) -> Option<Pacing> {
    match number {
        0 => Some(Pacing::Event),
        1 => Some(Pacing::Hybrid),
        2 => Some(Pacing::Poll),
        _ => None,
    }
}
