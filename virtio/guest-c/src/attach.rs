//! C functions that attach an interface to a vhost-user socket and detach it.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;

use pontoon_guest::{AttachError, Attached, Options, attach};

use crate::{Kind, Pontoon, SIZE, code};

/// Attaches an interface to the device that listens on the vhost-user socket `path`.
///
/// # Safety
/// `path` is a C string, and `interface` can be written.
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
    // SAFETY: the caller of this function promises it (section Safety).
    let path = unsafe { CStr::from_ptr(path) };
    let Ok(attached) = open(OsStr::from_bytes(path.to_bytes()), Options { frame, pacing }) else {
        return code::REFUSED;
    };
    let pontoon = Box::into_raw(Box::new(Pontoon(Kind::Attached(attached))));
    // SAFETY: the caller of this function promises it (section Safety).
    unsafe { interface.write(pontoon) };
    0
}

/// Detaches and frees an interface that was attached to a socket.
///
/// # Safety
/// `interface` was created by [`pontoon_attach`], and this is the last use of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_detach(interface: *mut Pontoon) {
    // SAFETY: `pontoon_attach` created it from a box, and the caller promises that this is its last use.
    drop(unsafe { Box::from_raw(interface) });
}

fn open(path: &OsStr, options: Options) -> Result<Attached<SIZE>, AttachError> {
    attach(UnixStream::connect(path)?, options)
}
