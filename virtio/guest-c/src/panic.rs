//! The panic handler for targets without an operating system.

use core::panic::PanicInfo;

// SAFETY: the declaration is that of C (C11, 7.22.4.1), and it may be called at any time.
unsafe extern "C" {
    /// Ends the program (function of the C library).
    safe fn abort() -> !;
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    abort()
}
