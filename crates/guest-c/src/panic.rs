//! The end, where there is no operating system.

use core::panic::PanicInfo;

// SAFETY: the declaration is C's (C11, 7.22.4.1), and it may be called at any time.
unsafe extern "C" {
    /// Stops the program: C's.
    safe fn abort() -> !;
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    abort()
}
