//! The end, where there is no operating system.

use core::panic::PanicInfo;

unsafe extern "C" {
    /// Stops the program: C's.
    safe fn abort() -> !;
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    abort()
}
