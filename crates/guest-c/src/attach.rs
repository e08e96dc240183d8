//! Interfaces on vhost-user sockets.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;

use pontoon_guest::{AttachError, Attached, Options, attach};

use crate::{Kind, Pontoon, SIZE, code};

/// Attaches an interface.
///
/// # Safety
/// `path` is a string, and `interface` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_attach(
    interface: *mut *mut Pontoon,
    path: *const c_char,
    frame: u16,
    pacing: c_int,
) -> c_int {
    let Some(pacing) = code::pacing(pacing) else {
        return code::INVALID;
    };
    if interface.is_null() || path.is_null() {
        return code::INVALID;
    }
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    let Ok(attached) = open(OsStr::from_bytes(path.to_bytes()), Options { frame, pacing }) else {
        return code::REFUSED;
    };
    let made = Box::into_raw(Box::new(Pontoon(Kind::Attached(attached))));
    // SAFETY: as the caller promises.
    unsafe { interface.write(made) };
    0
}

/// Gives an attached interface back.
///
/// # Safety
/// `interface` was made by [`pontoon_attach`], and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_detach(interface: *mut Pontoon) {
    // SAFETY: `pontoon_attach` made it from a box, and this is the last use of it, as the caller promises.
    drop(unsafe { Box::from_raw(interface) });
}

fn open(path: &OsStr, options: Options) -> Result<Attached<SIZE>, AttachError> {
    attach(UnixStream::connect(path)?, options)
}
