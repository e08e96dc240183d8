//! C functions that send and receive frames, for attached and created interfaces.

use core::ffi::{c_int, c_void};
use core::slice;
use core::time::Duration;

use pontoon_guest::{Error, Interface, Platform, QueueError, Ready};
use pontoon_ring::memory::Memory;

use crate::{Pontoon, code};

/// Operations of an interface, as a trait that permits trait objects.
pub(crate) trait FrameOperations {
    fn start(&mut self);
    fn queue(&mut self, frame: &[u8]) -> Result<(), QueueError>;
    fn flush(&mut self) -> Result<(), Error>;
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Error>;
    fn poll(&mut self, deadline: Option<Duration>) -> Result<Ready, Error>;
    fn now(&mut self) -> Duration;
}

impl<M: Memory, P: Platform, const N: usize> FrameOperations for Interface<M, P, N> {
    fn start(&mut self) {
        self.start();
    }

    fn queue(&mut self, frame: &[u8]) -> Result<(), QueueError> {
        self.queue(frame)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.flush()
    }

    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Error> {
        self.read(into)
    }

    fn poll(&mut self, deadline: Option<Duration>) -> Result<Ready, Error> {
        self.poll(deadline)
    }

    fn now(&mut self) -> Duration {
        self.platform().now()
    }
}

/// Notifies the device that the receive ring has buffers.
///
/// # Safety
/// `interface` was created by this library, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_start(interface: *mut Pontoon) -> c_int {
    // SAFETY: the caller of this function promises it (section Safety).
    unsafe { frames(interface) }.start();
    0
}

/// Copies a frame into a transmit buffer, to be sent at the next flush.
///
/// # Safety
/// `interface` was created by this library, and no other thread uses it; `len` bytes at `frame` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_queue(interface: *mut Pontoon, frame: *const c_void, len: usize) -> c_int {
    if frame.is_null() {
        return code::INVALID;
    }
    // SAFETY: the caller of this function promises it (section Safety).
    let (interface, frame) = unsafe { (frames(interface), slice::from_raw_parts(frame.cast(), len)) };
    interface.queue(frame).map_or_else(code::of_queue, |()| 0)
}

/// Makes queued frames available to the device, and notifies it if it has requested that.
///
/// # Safety
/// `interface` was created by this library, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_flush(interface: *mut Pontoon) -> c_int {
    // SAFETY: the caller of this function promises it (section Safety).
    let interface = unsafe { frames(interface) };
    interface.flush().map_or_else(code::of, |()| 0)
}

/// Queues a frame and flushes the interface.
///
/// # Safety
/// Those of [`pontoon_queue`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_write(interface: *mut Pontoon, frame: *const c_void, len: usize) -> c_int {
    // SAFETY: the caller of this function promises it (section Safety).
    match unsafe { pontoon_queue(interface, frame, len) } {
        // SAFETY: the caller of this function promises it (section Safety).
        0 => unsafe { pontoon_flush(interface) },
        error => error,
    }
}

/// Copies the next received frame to `frame`, and returns its length in bytes.
///
/// # Safety
/// `interface` was created by this library, and no other thread uses it; `len` bytes at `frame` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_read(interface: *mut Pontoon, frame: *mut c_void, len: usize) -> isize {
    if frame.is_null() {
        return code::INVALID as isize;
    }
    // SAFETY: the caller of this function promises it (section Safety). The bytes need not be initialised: they are only written.
    let (interface, into) = unsafe { (frames(interface), slice::from_raw_parts_mut(frame.cast(), len)) };
    match interface.read(into) {
        // A frame is no longer than a buffer, so its length fits.
        Ok(Some(len)) => len as isize,
        Ok(None) => code::AGAIN as isize,
        Err(error) => code::of(error) as isize,
    }
}

/// Flushes the interface and waits until `deadline`, in nanoseconds, for a frame or for room. Returns bits of `enum
/// pontoon_ready`.
///
/// # Safety
/// `interface` was created by this library, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_poll(interface: *mut Pontoon, deadline: u64) -> c_int {
    // SAFETY: the caller of this function promises it (section Safety).
    let interface = unsafe { frames(interface) };
    let deadline = (deadline != FOREVER).then_some(Duration::from_nanos(deadline));
    match interface.poll(deadline) {
        Ok(ready) => c_int::from(ready.frame) | c_int::from(ready.room) << 1,
        Err(error) => code::of(error),
    }
}

/// Returns the time on the clock of deadlines, in nanoseconds.
///
/// # Safety
/// `interface` was created by this library, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_now(interface: *mut Pontoon) -> u64 {
    // SAFETY: the caller of this function promises it (section Safety).
    let now = unsafe { frames(interface) }.now();
    u64::try_from(now.as_nanos()).unwrap_or(FOREVER)
}

/// Deadline that means no deadline (PONTOON_FOREVER).
pub(crate) const FOREVER: u64 = u64::MAX;

/// # Safety
/// `interface` was created by this library, and is not used otherwise during 'i.
unsafe fn frames<'i>(interface: *mut Pontoon) -> &'i mut dyn FrameOperations {
    // SAFETY: the caller of this function promises it (section Safety).
    unsafe { &mut *interface }.frames()
}
